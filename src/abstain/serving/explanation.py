"""Explanations of decisions: the score of each component, and the log-probability of each token of the answer."""

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
    """A piece of the answer with its log-probability.

    Attributes:
        text: The piece.
        log_probability: Log-probability in nats, given all text before it. If several tokens make one character, it is
            their sum.
    """

    text: str
    log_probability: float


@dataclass(frozen=True)
class Explanation:
    """A decision and its explanation.

    Attributes:
        decision: The decision.
        scores: Score in [0, 1] by component, higher for more likely correct; None if it has none.
        tokens: The answer in pieces; empty if the scorer does not read token probabilities.
    """

    decision: Decision
    scores: Mapping[str, float | None] = field(default_factory=dict)
    tokens: Sequence[AnswerToken] = ()


def explain(predictor: Predictor, decision: Decision, batch: FeatureBatch | None) -> Explanation:
    """Explain a decision.

    Args:
        predictor: Predictor that decided.
        decision: Its decision.
        batch: The answer with its features; None if it was not read.

    Returns:
        The decision with component scores and token log-probabilities, as far as there are any.
    """
    if batch is None:
        return Explanation(decision)
    values = {name: float(column[0]) for name, column in predictor.scorer.score_components(batch).items()}
    scores = {name: None if math.isnan(value) else value for name, value in values.items()}
    return Explanation(decision, scores, _explain_tokens(predictor.reader.sources, batch))


def _explain_tokens(sources: Sequence[FeatureSource], batch: FeatureBatch) -> list[AnswerToken]:
    """Return the answer's tokens from the first source that has their NLLs after the whole prompt."""
    for source in sources:
        request, operation = source.feature_request, source.operation
        if (
            isinstance(operation, NLL)
            and "answer" in operation.segments
            and (request.prompt_kind, request.chunks) == ("answered", None)
        ):
            prepared, result = source.prepare(batch.interactions[0]), batch.features[request][0]
            if isinstance(prepared, PreparedRequest) and result is not None:
                return _make_answer_tokens(source, prepared, operation, result)
    return []


def _make_answer_tokens(
    source: FeatureSource, prepared: PreparedRequest, operation: NLL, nlls_and_entropies: Tensor
) -> list[AnswerToken]:
    """Return the answer in pieces; `nlls_and_entropies` is (tokens, 2), the result of `operation`."""
    tokenizer = load_tokenizer(find_model(source.params.model, source.settings))
    if not tokenizer.is_fast:  # only these say where in the text a token is
        return []
    prompt = cut_to_operation(prepared.request.prompt, operation)
    text = next(segment.text for segment in prompt if segment.name == "answer")
    encoded = encode_prompt(tokenizer, prompt)
    first, end = encoded.spans["answer"]
    offset = first - encoded.span(*operation.segments)[0]
    log_probabilities = (-nlls_and_entropies[offset : offset + end - first, 0]).tolist()
    with TOKENIZER_LOCK:
        encoding = tokenizer(text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True)
    ends = [stop for _, stop in encoding["offset_mapping"]]
    if len(ends) != len(log_probabilities):
        return []
    return _merge_tokens(text, ends, log_probabilities)


def _merge_tokens(text: str, ends: Sequence[int], log_probabilities: Sequence[float]) -> list[AnswerToken]:
    """Cut `text` at each of `ends`; tokens that end at the same character are one piece."""
    pieces: list[AnswerToken] = []
    start, total = 0, 0.0
    for index, (end, log_probability) in enumerate(zip(ends, log_probabilities, strict=True)):
        total += log_probability
        is_last = index + 1 == len(ends)
        if is_last or ends[index + 1] > max(end, start):
            stop = len(text) if is_last else max(end, start)
            pieces.append(AnswerToken(text[start:stop], total))
            start, total = stop, 0.0
    return pieces
