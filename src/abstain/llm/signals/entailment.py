"""Entailment: does a retrieved chunk support the answer, according to a cross-encoder that reads both?

Huang et al. compare their probe with HHEM (Bao et al. 2024). Any sequence-classification model of transformers itself
can be used. A model with its own code, such as later versions of HHEM, is not run.

Notes:

* The hypothesis is question and answer. An answer is often a fragment ("5 euros") that no text entails and that many
  chunks contain; with the question before it, it is a claim.
* The model reads one chunk at a time, in excerpts if it is long, and the best chunk counts. These models were trained
  on short premises, and support in one place is enough. So an answer that needs two chunks together scores low.
* The label that means "supported" is read from the configuration of the model, not guessed from the order of labels.
  Exception: of two labels without names it is the second, by convention.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import torch
from torch import Tensor

from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.contracts import Interaction
from abstain.core.labels import Labels
from abstain.llm.engine.prompts import PromptSegments, Segment
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.auxiliary_model import AuxiliaryModel, find_auxiliary_model
from abstain.llm.signals.base import FeatureBatch, ScorerUnavailable

SETTING = "scorers.entailment_model"
SCORER_VERSION = "entailment-1"
"""Change it with every edit that changes a score: it is part of every cache key."""
SUPPORTED = ("entailment", "entailed", "entails", "support", "supported", "supports", "consistent", "faithful")


@dataclass(frozen=True)
class Entailment:
    """p(supported) of the chunk that supports the answer best.

    The score is nan without chunks, and if question and answer alone fill the context length of the model.

    Attributes:
        model: The entailment model.
        supported_index: Index of the label "supported"; None for a model with one logit.
        name: Name on the leaderboard.
        requires: No features of the base model.
    """

    model: AuxiliaryModel
    supported_index: int | None
    name: str = "entailment"
    requires: tuple[FeatureRequest, ...] = ()

    def fit(self, batch: FeatureBatch, labels: Labels) -> Entailment:
        """Return the scorer itself; there is nothing to fit."""
        return self

    def score(self, batch: FeatureBatch) -> np.ndarray:
        """Compute p(supported) of the best chunk of each answer."""
        pairs = [_make_pairs(interaction) for interaction in batch.interactions]
        results = self.model.compute_cached(
            "entailment", SCORER_VERSION, list(chain.from_iterable(pairs)), self._compute
        )
        probabilities, offsets = [float(result) for result in results], np.cumsum([0, *map(len, pairs)])
        return np.array(
            [max(probabilities[start:end], default=float("nan")) for start, end in pairwise(offsets)], float
        )

    def estimate_forward_tokens(self, interactions: Sequence[Interaction]) -> float:
        """Return 0: another model than the base model reads the answer."""
        return 0.0

    def _compute(self, pairs: list[PromptSegments]) -> list[Tensor]:
        """Return p(supported), `(1, 1)`, of each premise and hypothesis: the maximum over excerpts of the premise."""
        excerpts = [
            (index, excerpt)
            for index, (premise, hypothesis) in enumerate(pairs)
            for excerpt in self.model.build_excerpts(premise.text, hypothesis.text, "first")
        ]
        best: dict[int, float] = {}
        for excerpt_index, (logits,) in self.model.run([excerpt for _, excerpt in excerpts]):
            pair_index = excerpts[excerpt_index][0]
            best[pair_index] = max(best.get(pair_index, 0.0), compute_support_probability(logits, self.supported_index))
        return [torch.tensor([[best.get(i, float("nan"))]]) for i in range(len(pairs))]


def _make_pairs(interaction: Interaction) -> list[PromptSegments]:
    hypothesis = Segment("hypothesis", f"{interaction.question} {interaction.answer}")
    return [(Segment("premise", context.text), hypothesis) for context in interaction.contexts]


def make_entailment_scorer(model: str | None, settings: Settings) -> Entailment:
    """Make the entailment scorer.

    Args:
        model: A folder or a Hugging Face `id[@revision]`; None if it is not set.
        settings: Settings of this machine.

    Returns:
        The scorer.

    Raises:
        ScorerUnavailable: The model is not set, not found or not suitable, or its label "supported" is ambiguous.
    """
    auxiliary_model, config = find_auxiliary_model(model, SETTING, "ForSequenceClassification", settings)
    try:
        return Entailment(auxiliary_model, find_supported_label(config.id2label))
    except ValueError as error:
        raise ScorerUnavailable(Code.MODEL_UNSUITABLE, f"{model}: {error}; change {SETTING}") from None


def find_supported_label(id2label: Mapping[int, str]) -> int | None:
    """Find the label that means that the premise supports the hypothesis.

    Args:
        id2label: Labels of the model by index.

    Returns:
        The index of the label; None if there is one logit, the log-odds of this label.

    Raises:
        ValueError: None of the labels, or several, are known to mean it; the message lists them.
    """
    if len(id2label) == 1:
        return None
    matches = [index for index, label in id2label.items() if re.sub(r"[\W_]+", "", label.lower()) in SUPPORTED]
    if len(matches) == 1:
        return matches[0]
    if len(id2label) == 2 and all(label.upper() == f"LABEL_{index}" for index, label in id2label.items()):
        return 1
    raise ValueError(f"the label that means 'supported' is ambiguous among {', '.join(id2label.values())}")


def compute_support_probability(logits: Tensor, supported_index: int | None) -> float:
    """Compute p(supported): the softmax of the logits, or the sigmoid of a single one.

    Args:
        logits: Logits `(labels,)`.
        supported_index: Index of the label; None for a single logit.

    Returns:
        The probability.
    """
    return float(logits[0].sigmoid() if supported_index is None else logits.softmax(-1)[supported_index])
