"""Why a version decides so about an answer: the score of each signal, and how likely each token of the answer was."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from abstain.llm.engine.loading import find_model, load_tokenizer
from abstain.llm.engine.requests import NLL, cut_to_operation
from abstain.llm.engine.tokenization import TOKENIZER_LOCK, encode_prompt
from abstain.llm.features.extraction import FeatureSource, PreparedRequest
from abstain.llm.signals.base import FeatureBatch
from abstain.serving.decision import Decision
from abstain.serving.predictor import Predictor


@dataclass(frozen=True)
class AnswerToken:
    """A piece of the answer, and its log-probability after all before it, in nats: of its tokens together, where
    several make one character."""

    text: str
    log_probability: float


@dataclass(frozen=True)
class Explanation:
    """A decision, and what led to it.

    Attributes:
        scores: of each signal, from 0 to 1, higher for more likely correct; None where it has none.
        tokens: the answer in pieces; none where the scorer does not read how likely they are.
    """

    decision: Decision
    scores: Mapping[str, float | None] = field(default_factory=dict)
    tokens: Sequence[AnswerToken] = ()


def explain(predictor: Predictor, decision: Decision, answers: FeatureBatch | None) -> Explanation:
    """What led to `decision`. `answers`: the answer with what was read of it; None where it was not read."""
    if answers is None:
        return Explanation(decision)
    scores = {name: float(column[0]) for name, column in predictor.scorer.score_components(answers).items()}
    known = {name: None if math.isnan(score) else score for name, score in scores.items()}
    return Explanation(decision, known, _tokens(predictor.reader.sources, answers))


def _tokens(sources: Sequence[FeatureSource], answers: FeatureBatch) -> list[AnswerToken]:
    """The answer's tokens by the first reading that has their surprise after the whole prompt."""
    for source in sources:
        wanted, ask = source.feature_request, source.operation
        if (
            isinstance(ask, NLL)
            and "answer" in ask.segments
            and (wanted.prompt_kind, wanted.chunks) == ("answered", None)
        ):
            prepared, result = source.prepare(answers.interactions[0]), answers.features[wanted][0]
            if isinstance(prepared, PreparedRequest) and result is not None:
                return _make_answer_tokens(source, prepared, ask, result)
    return []


def _make_answer_tokens(
    source: FeatureSource, prepared: PreparedRequest, ask: NLL, surprise: Tensor
) -> list[AnswerToken]:
    """Args: surprise: (tokens, 2), the result of `ask`."""
    tokenizer = load_tokenizer(find_model(source.params.model, source.settings))
    if not tokenizer.is_fast:  # only these say where in the text a token is
        return []
    pass_ = cut_to_operation(prepared.request.prompt, ask)
    text = next(segment.text for segment in pass_ if segment.name == "answer")
    encoded = encode_prompt(tokenizer, pass_)
    first, end = encoded.spans["answer"]
    begin = first - encoded.span(*ask.segments)[0]
    log_probabilities = (-surprise[begin : begin + end - first, 0]).tolist()
    with TOKENIZER_LOCK:
        found = tokenizer(text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True)
    ends = [stop for _, stop in found["offset_mapping"]]
    if len(ends) != len(log_probabilities):
        return []
    return _merge_tokens(text, ends, log_probabilities)


def _merge_tokens(text: str, ends: Sequence[int], log_probabilities: Sequence[float]) -> list[AnswerToken]:
    """The pieces of `text` up to each of `ends`; tokens that end at the same character are one piece."""
    pieces: list[AnswerToken] = []
    at, total = 0, 0.0
    for number, (end, one) in enumerate(zip(ends, log_probabilities, strict=True)):
        total += one
        is_last = number + 1 == len(ends)
        if is_last or ends[number + 1] > max(end, at):
            stop = len(text) if is_last else max(end, at)
            pieces.append(AnswerToken(text[at:stop], total))
            at, total = stop, 0.0
    return pieces
