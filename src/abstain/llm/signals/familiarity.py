"""Self-Familiarity of the question (Luo et al.): how well the base model knows the concepts of a question.

It is measured before the model answers. The concepts of all questions are guessed together, and each once per base
model: the feature cache holds them. A question without a concept names nothing that the model could fail to know; its
score is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from abstain.config.params import LLMParams
from abstain.config.settings import Settings
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.core.labels import Labels
from abstain.core.scorer_names import FAMILIARITY
from abstain.llm.familiarity.concepts import require_packages
from abstain.llm.familiarity.familiarity import Familiarity, SelfFamiliarity
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.base import FeatureBatch, ScorerUnavailable


@dataclass(frozen=True)
class QuestionFamiliarity:
    """s_f of eq. 7 of each question; nan if none of its concepts can be guessed.

    Attributes:
        familiarity: Computation for the base model.
        name: Name on the leaderboard.
        requires: No feature requests; it has its own prompts.
    """

    familiarity: SelfFamiliarity
    name: str = FAMILIARITY
    requires: tuple[FeatureRequest, ...] = ()

    def fit(self, batch: FeatureBatch, labels: Labels) -> QuestionFamiliarity:
        """Return the scorer itself; there is nothing to fit."""
        return self

    def score(self, batch: FeatureBatch) -> np.ndarray:
        """Compute the familiarity of each question."""
        familiarities = self.familiarity.score([interaction.question for interaction in batch.interactions])
        return np.array([get_question_score(familiarity) for familiarity in familiarities])

    def estimate_forward_tokens(self, interactions: Sequence[Interaction]) -> float:
        """Estimate the tokens that explain and guess the concepts of a question, if none of them is cached."""
        return self.familiarity.estimate_forward_tokens([interaction.question for interaction in interactions])


def get_question_score(familiarity: Familiarity) -> float:
    """Return s_f of a question; 1 without a concept, nan if none can be guessed."""
    if not familiarity.concepts:
        return 1.0
    return np.nan if familiarity.score is None else familiarity.score


def make_familiarity_scorer(llm: LLMParams, settings: Settings) -> QuestionFamiliarity:
    """Make the familiarity scorer for the base model.

    Args:
        llm: Base model and prompt layout.
        settings: Settings of this machine.

    Returns:
        The scorer.

    Raises:
        ScorerUnavailable: The extra `familiarity` is not installed.
    """
    try:
        require_packages()
    except AbstainError as error:
        raise ScorerUnavailable(error.code, error.message) from None
    return QuestionFamiliarity(SelfFamiliarity(llm.model, llm.layout, settings))
