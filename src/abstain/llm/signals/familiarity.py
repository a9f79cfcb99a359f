"""Self-Familiarity of the question (Luo et al.): how well the base model knows what the question names, before it
answers.

The concepts of all questions are guessed together, and each once for a base model: the feature cache holds them. A
question without a concept names nothing that the model could not know; its score is 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from abstain.config.params import LLMParams
from abstain.config.settings import Settings
from abstain.core.errors import AbstainError
from abstain.core.labels import Labels
from abstain.core.scorer_names import FAMILIARITY
from abstain.llm.familiarity.concepts import require_packages
from abstain.llm.familiarity.familiarity import Familiarity, SelfFamiliarity
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.base import FeatureBatch, ScorerUnavailable


@dataclass(frozen=True)
class QuestionFamiliarity:
    """s_f of eq. 7 of each question; nan where no concept of it can be guessed."""

    familiarity: SelfFamiliarity
    name: str = FAMILIARITY
    readings: tuple[FeatureRequest, ...] = ()

    def fit(self, answers: FeatureBatch, labels: Labels) -> QuestionFamiliarity:
        return self

    def score(self, answers: FeatureBatch) -> np.ndarray:
        found = self.familiarity.score([one.question for one in answers.interactions])
        return np.array([_score(one) for one in found])


def _score(found: Familiarity) -> float:
    if not found.concepts:
        return 1.0
    return np.nan if found.score is None else found.score


def familiarity_scorer(llm: LLMParams, settings: Settings) -> QuestionFamiliarity:
    """The scorer for the base model. Raises `ScorerUnavailable` without the extra `familiarity`."""
    try:
        require_packages()
    except AbstainError as why:
        raise ScorerUnavailable(why.code, why.message) from None
    return QuestionFamiliarity(SelfFamiliarity(llm.model, llm.layout, settings))
