"""Extractive question answering: how much of the answer is in the spans that a QA model would take from the context.

Baak (2024) compares the Yes-score with the probability that such a model gives to its own best span. Here another model
gave the answer, so the score is its agreement with the answer that the QA model expects.

Notes:

* p(span) is softmax(start + end) over the spans of all chunks together, and over "no answer" (Devlin et al. 2019,
  section 4.3), so that chunks compete as they do before the base model.
* The score is the expected token F1 of the answer, sum of p(span) * F1(answer, span) over the `MAX_SPANS` most probable
  spans. So a sentence around the correct span counts by the span's share of it; "no answer" and less probable spans add
  nothing. An answer that is one span and shares no word with the others scores that span's probability.
* The spans are kept in the feature cache, not the score: another answer to the same question costs nothing.
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
from abstain.core.labels import Labels
from abstain.llm.engine.prompts import PromptSegments, Segment
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.auxiliary_model import AuxiliaryModel, TextWindow, find_auxiliary_model
from abstain.llm.signals.base import FeatureBatch

SETTING = "scorers.extractive_qa_model"
SCORER_VERSION = "extractive-1"
"""Change it with every edit that changes the spans: it is part of every cache key."""
MAX_SPANS = 20
MAX_SPAN_TOKENS = 30
"""Tokens of the longest span."""
FAR = 2**24
"""Characters that no chunk has: a span is one number. It is also as far as float32 counts, in which spans are kept."""
WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class WindowLogits:
    """The model's output for one window of chunk number `chunk`.

    `start`, `end`: logits, float64 (tokens,), of the chunk's tokens; `places`: first and past the last character in the
    chunk of each, int (tokens, 2); `none`: logit of "no answer"; None where the model has no such output.
    """

    chunk: int
    start: np.ndarray
    end: np.ndarray
    places: np.ndarray
    no_answer_logit: float | None = None


@dataclass(frozen=True)
class ExtractiveQA:
    """The expected token F1 of the answer.

    nan without chunks, for an answer without words, and where the question alone fills the model's window.
    """

    model: AuxiliaryModel
    name: str = "extractive_qa"
    readings: tuple[FeatureRequest, ...] = ()

    def fit(self, answers: FeatureBatch, labels: Labels) -> ExtractiveQA:
        return self

    def score(self, answers: FeatureBatch) -> np.ndarray:
        asked = [
            (Segment("question", one.question), *(Segment("context", context.text) for context in one.contexts))
            for one in answers.interactions
        ]
        found = self.model.cached(
            f"spans top={MAX_SPANS} longest={MAX_SPAN_TOKENS}", SCORER_VERSION, asked, self._compute
        )
        scores = []
        for one, rows in zip(answers.interactions, found, strict=True):
            spans = [(one.contexts[int(at)].text[int(first) : int(last)], p) for at, first, last, p in rows.tolist()]
            scores.append(expected_f1(one.answer, spans))
        return np.array(scores, float)

    def _compute(self, asked: list[PromptSegments]) -> list[Tensor]:
        """The spans of each question and its chunks: `best_spans`, float32."""
        windows = [
            (row, chunk, window)
            for row, (question, *contexts) in enumerate(asked)
            for chunk, context in enumerate(contexts)
            for window in self.model.windows(question.text, context.text, "second")
        ]
        readouts: list[list[WindowLogits]] = [[] for _ in asked]
        for number, (start, end) in self.model.run([window for _, _, window in windows]):
            row, chunk, window = windows[number]
            readouts[row].append(self._readout(chunk, window, start, end))
        return [torch.from_numpy(best_spans(of_row)).float() for of_row in readouts]

    def _readout(self, chunk: int, window: TextWindow, start: Tensor, end: Tensor) -> WindowLogits:
        of_chunk = [at for at, text in enumerate(window.texts) if text == 1]
        ids, cls = window.inputs["input_ids"], self.model.tokenizer.cls_token_id
        none = ids.index(cls) if cls in ids else None
        return WindowLogits(
            chunk,
            start[of_chunk].double().numpy(),
            end[of_chunk].double().numpy(),
            np.array([window.places[at] for at in of_chunk], int).reshape(-1, 2),
            None if none is None else float(start[none].double() + end[none].double()),
        )


def extractive_scorer(model: str | None, settings: Settings) -> ExtractiveQA:
    """The scorer for the model of that folder or Hugging Face `id[@revision]`. Raises `ScorerUnavailable`."""
    found, _ = find_auxiliary_model(model, SETTING, "ForQuestionAnswering", settings)
    return ExtractiveQA(found)


def best_spans(readouts: Sequence[WindowLogits], top: int = MAX_SPANS, longest: int = MAX_SPAN_TOKENS) -> np.ndarray:
    """The `top` most probable spans, best first: float64 (spans, 4), chunk, first and past the last character, p.

    A span that two windows hold counts once, with the better score. Of "no answer" the window counts that is least sure
    of it: there is none in the whole only if there is none in any part.
    """
    scores, spans = [], []
    for one in readouts:
        first = np.repeat(np.arange(len(one.start)), longest)
        last = first + np.tile(np.arange(longest), len(one.start))
        first, last = first[last < len(one.start)], last[last < len(one.start)]
        scores.append(one.start[first] + one.end[last])
        spans.append((one.chunk * FAR + one.places[first, 0]) * FAR + one.places[last, 1])
    if not sum(map(len, scores)):
        return np.empty((0, 4))
    distinct, which = np.unique(np.concatenate(spans), return_inverse=True)
    best = np.full(len(distinct), -np.inf)
    np.maximum.at(best, which, np.concatenate(scores))
    none = min((one.no_answer_logit for one in readouts if one.no_answer_logit is not None), default=-np.inf)
    p = np.exp(best - np.logaddexp.reduce(np.append(best, none)))
    order = np.argsort(-p, kind="stable")[:top]
    found = distinct[order]
    return np.column_stack([found // FAR**2, found // FAR % FAR, found % FAR, p[order]])


def expected_f1(answer: str, spans: Sequence[tuple[str, float]]) -> float:
    """sum of p * `token_f1`(answer, span) over `spans` of (text, p); nan without any, or without a word in `answer`."""
    if not spans or not WORD.search(answer):
        return float("nan")
    return min(1.0, sum(p * token_f1(answer, text) for text, p in spans))


def token_f1(answer: str, span: str) -> float:
    """Harmonic mean of precision and recall of the words that both have, in any case (Rajpurkar et al. 2016)."""
    one, other = (Counter(WORD.findall(text.casefold())) for text in (answer, span))
    return 2 * (one & other).total() / max(one.total() + other.total(), 1)
