"""A small cross-encoder fine-tuned on the reviews: does a chunk support the answer, as the reviewers judge it?

Huang et al. fine-tune HHEM, a cross-encoder that reads context and answer together, on their reviews ("Vectara,
fine-tuned"). Here it is the embedded sentence encoder, all-MiniLM-L6-v2, with a classification head.

Notes:

* Only the last of six layers and the head are trained, so that a CPU is enough. What the layers below compute is the
  same in every epoch and fold: it is computed once and kept in half precision, at most 0.2 MB per answer and chunk.
* The head reads [CLS] alone, so the last layer computes nothing for other tokens but their keys and values.
* The confidence is the one of the chunk that supports the answer best, in training too: an answer's loss is that of
  its best chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.core.labels import Labels
from abstain.core.scorer_names import CROSS_ENCODER
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.base import FeatureBatch, ScorerUnavailable
from abstain.llm.signals.pair_encoder import ENCODED_AT_ONCE, Pair, PairClassifier, PairEncoder

EPOCHS, BATCH_ANSWERS, LEARNING_RATE, WEIGHT_DECAY, SEED = 3, 16, 3e-4, 0.01, 0


@dataclass(frozen=True)
class CrossEncoder:
    """p(correct) of the chunk that supports the answer best; nan without chunks.

    It is compared and not served: a bundle would have to carry its weights.

    Attributes:
        encoder: The frozen layers.
        classifier: The trained layer and head; None before the fit.
        name: Name on the leaderboard.
        requires: No features of the base model.
    """

    encoder: PairEncoder
    classifier: PairClassifier | None = None
    name: str = CROSS_ENCODER
    requires: tuple[FeatureRequest, ...] = ()

    def fit(self, batch: FeatureBatch, labels: Labels) -> CrossEncoder:
        """Train the last layer and the head on training answers, with AdamW.

        Args:
            batch: Training answers.
            labels: Labels and weights of the same rows.

        Returns:
            The fitted scorer.

        Raises:
            ScorerUnavailable: The answers with chunks and positive weight are of one class only, or there are none.
        """
        pairs = [_make_pairs(row) for row in batch.interactions]
        rows = [index for index, row_pairs in enumerate(pairs) if row_pairs and labels.weight[index] > 0]
        if len(np.unique(labels.correct[rows])) < 2:
            raise ScorerUnavailable(
                Code.TOO_FEW_LABELS, "the training answers with chunks are of one class only: bring feedback of both"
            )
        states = iter(self.encoder.encode([pair for row in rows for pair in pairs[row]], remember=True))
        answers = [[next(states) for _ in pairs[row]] for row in rows]
        correct = torch.tensor(labels.correct[rows], dtype=torch.float32)
        weight = torch.tensor(labels.weight[rows] / labels.weight[rows].mean(), dtype=torch.float32)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            classifier = self.encoder.make_classifier()
            _train(classifier, answers, correct, weight)
        return replace(self, classifier=classifier.eval())

    def score(self, batch: FeatureBatch) -> np.ndarray:
        """Compute the probability of correctness of each answer, float64 `(rows,)`."""
        assert self.classifier is not None
        scores = np.full(len(batch), np.nan)
        rows = [(index, pairs) for index, row in enumerate(batch.interactions) if (pairs := _make_pairs(row))]
        for start in range(0, len(rows), ENCODED_AT_ONCE):
            block = rows[start : start + ENCODED_AT_ONCE]
            states = self.encoder.encode([pair for _, pairs in block for pair in pairs], remember=False)
            with torch.inference_mode():
                logits = self.classifier(states).split([len(pairs) for _, pairs in block])
            scores[[index for index, _ in block]] = [float(row_logits.max().sigmoid()) for row_logits in logits]
        return scores

    def estimate_forward_tokens(self, interactions: Sequence[Interaction]) -> float:
        """Return 0: another model than the base model reads the answer."""
        return 0.0


def _make_pairs(interaction: Interaction) -> list[Pair]:
    claim = f"{interaction.question} {interaction.answer}"
    return [(claim, context.text) for context in interaction.contexts]


def _train(classifier: PairClassifier, answers: Sequence[Sequence[Tensor]], correct: Tensor, weight: Tensor) -> None:
    """Train on answers, each with the states of its pairs; the loss of an answer is that of its best pair."""
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    classifier.train()
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(answers)).split(BATCH_ANSWERS):
            batch = [answers[row] for row in rows.tolist()]
            logits = classifier([state for states in batch for state in states]).split(
                [len(states) for states in batch]
            )
            best = torch.stack([row_logits.max() for row_logits in logits])
            loss = binary_cross_entropy_with_logits(best, correct[rows], weight[rows])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(classifier.parameters(), 1.0)
            optimizer.step()


def make_cross_encoder(settings: Settings) -> CrossEncoder:
    """Make the untrained scorer.

    Args:
        settings: Settings of this machine.

    Returns:
        The scorer.

    Raises:
        ScorerUnavailable: The encoder's package is not installed.
    """
    try:
        return CrossEncoder(PairEncoder(settings))
    except AbstainError as error:
        raise ScorerUnavailable(error.code, error.message) from None
