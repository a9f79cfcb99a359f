"""Extractive question answering: how much of the answer is in the spans that a QA model would take from the context?

Baak (2024) compares the Yes-score with the probability that such a model gives to its own best span. Here another model
gave the answer, so the score is its agreement with the answer that the QA model expects.

Notes:

* p(span) is softmax(start + end) over the spans of all chunks together, and over "no answer" (Devlin et al. 2019,
  section 4.3), so chunks compete as they do in the prompt of the base model.
* The score is the expected token F1 of the answer, sum of p(span) * F1(answer, span) over the `MAX_SPANS` most probable
  spans. So a sentence around the correct span counts by the share of the span in it; "no answer" and less probable
  spans add nothing. An answer that is one span and shares no word with the others scores the probability of that span.
* The feature cache holds the spans, not the score: another answer to the same question costs nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from abstain.config.settings import Settings
from abstain.core.contracts import Interaction
from abstain.core.labels import Labels
from abstain.llm.engine.prompts import PromptSegments, Segment
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.auxiliary_model import AuxiliaryModel, TextExcerpt, find_auxiliary_model
from abstain.llm.signals.base import FeatureBatch

SETTING = "scorers.extractive_qa_model"
SCORER_VERSION = "extractive-1"
"""Change it with every edit that changes the spans: it is part of every cache key."""
MAX_SPANS = 20
MAX_SPAN_TOKENS = 30
"""Tokens of the longest span."""
SPAN_BASE = 2**24
"""More characters than any chunk has: a span is encoded as one number. Spans are float32, which is exact up to this."""
WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class ExcerptLogits:
    """Output of the model for one excerpt of a chunk.

    Attributes:
        chunk: Index of the chunk.
        start: Start logits of the tokens of the chunk, float64 `(tokens,)`.
        end: End logits, float64 `(tokens,)`.
        offsets: First and last (exclusive) character of each token in the chunk, int `(tokens, 2)`.
        no_answer_logit: Logit of "no answer"; None if the model has no such output.
    """

    chunk: int
    start: np.ndarray
    end: np.ndarray
    offsets: np.ndarray
    no_answer_logit: float | None = None


@dataclass(frozen=True)
class ExtractiveQA:
    """Expected token F1 of the answer.

    The score is nan without chunks, for an answer without words, and if the question alone fills the context
    length of the model.

    Attributes:
        model: The QA model.
        name: Name on the leaderboard.
        requires: No features of the base model.
    """

    model: AuxiliaryModel
    name: str = "extractive_qa"
    requires: tuple[FeatureRequest, ...] = ()

    def fit(self, batch: FeatureBatch, labels: Labels) -> ExtractiveQA:
        """Return the scorer itself; there is nothing to fit."""
        return self

    def score(self, batch: FeatureBatch) -> np.ndarray:
        """Compute the expected token F1 of each answer."""
        prompts = [
            (
                Segment("question", interaction.question),
                *(Segment("context", context.text) for context in interaction.contexts),
            )
            for interaction in batch.interactions
        ]
        span_tables = self.model.compute_cached(
            f"spans top={MAX_SPANS} longest={MAX_SPAN_TOKENS}", SCORER_VERSION, prompts, self._compute
        )
        scores = []
        for interaction, span_table in zip(batch.interactions, span_tables, strict=True):
            spans = [
                (interaction.contexts[int(chunk)].text[int(first) : int(last)], p)
                for chunk, first, last, p in span_table.tolist()
            ]
            scores.append(compute_expected_f1(interaction.answer, spans))
        return np.array(scores, float)

    def estimate_forward_tokens(self, interactions: Sequence[Interaction]) -> float:
        """Return 0: another model than the base model reads the answer."""
        return 0.0

    def _compute(self, prompts: list[PromptSegments]) -> list[Tensor]:
        """Return the spans of each question and its chunks: `find_best_spans`, float32."""
        excerpts = [
            (row, chunk, excerpt)
            for row, (question, *contexts) in enumerate(prompts)
            for chunk, context in enumerate(contexts)
            for excerpt in self.model.build_excerpts(question.text, context.text, "second")
        ]
        logits_by_row: list[list[ExcerptLogits]] = [[] for _ in prompts]
        for excerpt_index, (start, end) in self.model.run([excerpt for _, _, excerpt in excerpts]):
            row, chunk, excerpt = excerpts[excerpt_index]
            logits_by_row[row].append(self._make_excerpt_logits(chunk, excerpt, start, end))
        return [torch.from_numpy(find_best_spans(row_logits)).float() for row_logits in logits_by_row]

    def _make_excerpt_logits(self, chunk: int, excerpt: TextExcerpt, start: Tensor, end: Tensor) -> ExcerptLogits:
        chunk_tokens = [index for index, text in enumerate(excerpt.sequence_ids) if text == 1]
        ids, cls = excerpt.inputs["input_ids"], self.model.tokenizer.cls_token_id
        cls_index = ids.index(cls) if cls in ids else None
        return ExcerptLogits(
            chunk,
            start[chunk_tokens].double().numpy(),
            end[chunk_tokens].double().numpy(),
            np.array([excerpt.offsets[index] for index in chunk_tokens], int).reshape(-1, 2),
            None if cls_index is None else float(start[cls_index].double() + end[cls_index].double()),
        )


def make_extractive_scorer(model: str | None, settings: Settings) -> ExtractiveQA:
    """Make the scorer by extractive question answering.

    Args:
        model: A folder or a Hugging Face `id[@revision]`; None if it is not set.
        settings: Settings of this machine.

    Returns:
        The scorer.

    Raises:
        ScorerUnavailable: The model is not set, not found or not suitable.
    """
    auxiliary_model, _ = find_auxiliary_model(model, SETTING, "ForQuestionAnswering", settings)
    return ExtractiveQA(auxiliary_model)


def find_best_spans(
    excerpts: Sequence[ExcerptLogits], max_spans: int = MAX_SPANS, max_tokens: int = MAX_SPAN_TOKENS
) -> np.ndarray:
    """Find the most probable spans.

    A span in two excerpts counts once, with the better score. For "no answer" the excerpt counts that is least sure of
    it: the whole has no answer only if no part has one.

    Args:
        excerpts: Output of the model for all excerpts of all chunks.
        max_spans: Most spans to return.
        max_tokens: Tokens of the longest span.

    Returns:
        Float64 `(spans, 4)`, best first: chunk, first and last (exclusive) character, probability.
    """
    scores, spans = [], []
    for excerpt in excerpts:
        first = np.repeat(np.arange(len(excerpt.start)), max_tokens)
        last = first + np.tile(np.arange(max_tokens), len(excerpt.start))
        first, last = first[last < len(excerpt.start)], last[last < len(excerpt.start)]
        scores.append(excerpt.start[first] + excerpt.end[last])
        spans.append((excerpt.chunk * SPAN_BASE + excerpt.offsets[first, 0]) * SPAN_BASE + excerpt.offsets[last, 1])
    if not sum(map(len, scores)):
        return np.empty((0, 4))
    distinct, span_index = np.unique(np.concatenate(spans), return_inverse=True)
    best = np.full(len(distinct), -np.inf)
    np.maximum.at(best, span_index, np.concatenate(scores))
    no_answer = min(
        (excerpt.no_answer_logit for excerpt in excerpts if excerpt.no_answer_logit is not None), default=-np.inf
    )
    p = np.exp(best - np.logaddexp.reduce(np.append(best, no_answer)))
    order = np.argsort(-p, kind="stable")[:max_spans]
    codes = distinct[order]
    return np.column_stack([codes // SPAN_BASE**2, codes // SPAN_BASE % SPAN_BASE, codes % SPAN_BASE, p[order]])


def compute_expected_f1(answer: str, spans: Sequence[tuple[str, float]]) -> float:
    """Compute the expected token F1, sum of p * `token_f1`(answer, span).

    Args:
        answer: Text of the answer.
        spans: Text and probability of each span.

    Returns:
        The expected F1; nan without spans, or without a word in the answer.
    """
    if not spans or not WORD.search(answer):
        return float("nan")
    return min(1.0, sum(p * token_f1(answer, text) for text, p in spans))


def token_f1(answer: str, span: str) -> float:
    """Return the harmonic mean of precision and recall of the common words, ignoring case (Rajpurkar et al. 2016).

    Args:
        answer: Text of the answer.
        span: Text of the span.

    Returns:
        The F1 in [0, 1].
    """
    answer_words, span_words = (Counter(WORD.findall(text.casefold())) for text in (answer, span))
    return 2 * (answer_words & span_words).total() / max(answer_words.total() + span_words.total(), 1)
