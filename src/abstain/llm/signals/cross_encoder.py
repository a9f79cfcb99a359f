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

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence

from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.core.labels import Labels
from abstain.core.scorer_names import CROSS_ENCODER
from abstain.knowledge.retrieval.encoder import find_encoder_folder
from abstain.llm.engine.device import choose_device
from abstain.llm.engine.loading import find_model, load_weights
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.base import FeatureBatch, ScorerUnavailable

MAX_TOKENS = 256
"""Tokens of a pair, as the encoder was trained; of a longer one the end of the chunk is not read."""
EPOCHS, BATCH_ANSWERS, LEARNING_RATE, WEIGHT_DECAY, SEED = 3, 16, 3e-4, 0.01, 0
ENCODED_AT_ONCE = 32
"""Pairs that the frozen layers read together, those of similar length, and answers that are scored together."""

Pair = tuple[str, str]
"""Question and answer, and a chunk."""


class PairEncoder:
    """The embedded encoder without its last layer, which is trained.

    Args:
        settings: Settings of this machine.

    Raises:
        AbstainError: The encoder's package is not installed.
    """

    def __init__(self, settings: Settings) -> None:
        self._ref = find_model(str(find_encoder_folder()), settings)
        self._device = choose_device(settings)
        self._states: dict[Pair, Tensor] = {}

    @cached_property
    def _model(self) -> tuple[Any, Any, nn.Module]:
        """Tokenizer, frozen layers, and the pretrained last layer."""
        from transformers import AutoTokenizer

        model = load_weights(self._ref, "AutoModel", self._device, torch.float32)
        last_layer = model.encoder.layer[-1]
        model.encoder.layer = model.encoder.layer[:-1]
        return AutoTokenizer.from_pretrained(self._ref.path, trust_remote_code=False), model, last_layer

    def make_classifier(self) -> PairClassifier:
        """Make an untrained classifier: a copy of the last layer, with a head whose logits are 0."""
        return PairClassifier(deepcopy(self._model[2]).to("cpu")).requires_grad_(True)

    def encode(self, pairs: Sequence[Pair], *, remember: bool) -> list[Tensor]:
        """Compute what the last layer reads.

        Args:
            pairs: The pairs.
            remember: Whether the results are kept in memory for the next call.

        Returns:
            For each pair float16 (tokens, d), on the CPU.
        """
        missing = sorted({pair for pair in pairs if pair not in self._states}, key=lambda pair: sum(map(len, pair)))
        computed: dict[Pair, Tensor] = {}
        for start in range(0, len(missing), ENCODED_AT_ONCE):
            batch = missing[start : start + ENCODED_AT_ONCE]
            computed |= zip(batch, self._encode_batch(batch), strict=True)
        states = [computed[pair] if pair in computed else self._states[pair] for pair in pairs]
        if remember:
            self._states |= computed
        return states

    def _encode_batch(self, pairs: Sequence[Pair]) -> Iterator[Tensor]:
        tokenizer, model, _ = self._model
        firsts, seconds = zip(*pairs, strict=True)
        inputs = tokenizer(
            list(firsts), list(seconds), truncation="longest_first", max_length=MAX_TOKENS, padding=True,
            return_tensors="pt",
        ).to(self._device)  # fmt: skip
        with torch.inference_mode():
            states = model(**inputs).last_hidden_state.half().cpu()
        for row, length in zip(states, inputs["attention_mask"].sum(1).tolist(), strict=True):
            yield row[:length].clone()


class PairClassifier(nn.Module):
    """The last layer of BERT for [CLS] alone, and a linear head.

    Args:
        layer: The pretrained layer.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(layer.attention.self.query.in_features, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """Compute the logits of pairs.

        Args:
            states: For each pair (tokens, d), of `PairEncoder`.

        Returns:
            (pairs,).
        """
        padded = pad_sequence([row.float() for row in states], batch_first=True)
        lengths = torch.tensor([len(row) for row in states])
        is_token = torch.arange(padded.shape[1]) < lengths[:, None]
        attention = self.layer.attention.self
        heads = (attention.num_attention_heads, -1)
        first = padded[:, :1]
        query, key, value = (
            project(read).unflatten(-1, heads).transpose(1, 2)
            for project, read in ((attention.query, first), (attention.key, padded), (attention.value, padded))
        )
        context = scaled_dot_product_attention(query, key, value, attn_mask=is_token[:, None, None])
        attended = self.layer.attention.output(context.transpose(1, 2).flatten(2), first)
        output = self.layer.output(self.layer.intermediate(attended), attended)
        return self.head(output)[:, 0, 0]  # type: ignore[no-any-return]


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
