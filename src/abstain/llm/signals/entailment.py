"""Entailment: does a retrieved chunk support the answer, as judged by a cross-encoder that reads both?

The probe's paper compares itself with HHEM (Bao et al. 2024). Any sequence-classification model of transformers' own
will do; one that brings its own code, as later versions of HHEM do, is not run.

Notes:

* The hypothesis is question and answer: an answer is often a fragment ("5 euros") that no text entails, and that many
  chunks contain; with the question before it, it is a claim.
* One chunk at a time, in windows where it is long, and the best of them counts: these models were trained on short
  premises, and support that stands in one place is enough. So an answer that needs two chunks together scores low.
* The label that means "supported" is read from the model's configuration, not guessed from its order. Exception: of two
  labels without names it is the second, by convention.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from abstain.config.settings import Settings
from abstain.core.codes import Code
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
    """p(supported) of the chunk that supports the answer best; `supported`: the label's index, None for one logit.

    nan without chunks, and where question and answer alone fill the model's window.
    """

    model: AuxiliaryModel
    supported_index: int | None
    name: str = "entailment"
    readings: tuple[FeatureRequest, ...] = ()

    def fit(self, answers: FeatureBatch, labels: Labels) -> Entailment:
        return self

    def score(self, answers: FeatureBatch) -> np.ndarray:
        pairs = [
            [
                (Segment("premise", context.text), Segment("hypothesis", f"{one.question} {one.answer}"))
                for context in one.contexts
            ]
            for one in answers.interactions
        ]
        found = iter(self.model.cached("entailment", SCORER_VERSION, list(chain.from_iterable(pairs)), self._compute))
        return np.array([max((float(next(found)) for _ in of_row), default=float("nan")) for of_row in pairs], float)

    def _compute(self, pairs: list[PromptSegments]) -> list[Tensor]:
        """p(supported), (1, 1), of each premise and hypothesis: the maximum over the premise's windows."""
        windows = [
            (at, window)
            for at, (premise, hypothesis) in enumerate(pairs)
            for window in self.model.windows(premise.text, hypothesis.text, "first")
        ]
        best: dict[int, float] = {}
        for number, (logits,) in self.model.run([window for _, window in windows]):
            at = windows[number][0]
            best[at] = max(best.get(at, 0.0), compute_support_probability(logits, self.supported_index))
        return [torch.tensor([[best.get(at, float("nan"))]]) for at in range(len(pairs))]


def entailment_scorer(model: str | None, settings: Settings) -> Entailment:
    """The scorer for the model of that folder or Hugging Face `id[@revision]`. Raises `ScorerUnavailable`."""
    found, config = find_auxiliary_model(model, SETTING, "ForSequenceClassification", settings)
    try:
        return Entailment(found, find_supported_label(config.id2label))
    except ValueError as error:
        raise ScorerUnavailable(Code.MODEL_UNSUITABLE, f"{model}: {error}; change {SETTING}") from None


def find_supported_label(id2label: Mapping[int, str]) -> int | None:
    """The label that means that the premise supports the hypothesis; None where there is one logit, its log-odds.

    Raises ValueError, listing the labels, where none of them is known to mean it.
    """
    if len(id2label) == 1:
        return None
    means = [at for at, label in id2label.items() if re.sub(r"[\W_]+", "", label.lower()) in SUPPORTED]
    if len(means) == 1:
        return means[0]
    if len(id2label) == 2 and all(label.upper() == f"LABEL_{at}" for at, label in id2label.items()):
        return 1
    raise ValueError(f"the label that means 'supported' is ambiguous among {', '.join(id2label.values())}")


def compute_support_probability(logits: Tensor, supported: int | None) -> float:
    """p(supported) from logits (labels,): their softmax, or of one logit the sigmoid."""
    return float(logits[0].sigmoid() if supported is None else logits.softmax(-1)[supported])
