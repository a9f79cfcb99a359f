"""The scorers that need no training on states, by name: what `scorers.enabled` may list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from abstain.config.params import Params
from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.scorer_names import FAMILIARITY, WRITER
from abstain.llm.engine.loading import find_model, load_tokenizer
from abstain.llm.engine.requests import Generate, NextTokenProbs, Operation
from abstain.llm.signals import likelihood
from abstain.llm.signals.base import Scorer, ScorerUnavailable
from abstain.llm.signals.entailment import entailment_scorer
from abstain.llm.signals.extractive_qa import extractive_scorer
from abstain.llm.signals.familiarity import familiarity_scorer
from abstain.llm.signals.length import LengthOnly
from abstain.llm.signals.verbalized import verbalized_signal
from abstain.llm.signals.writer import WriterScores
from abstain.llm.signals.yes_no import yes_no_signals


@dataclass(frozen=True)
class AvailableScorers:
    """The available scorers of `scorers.enabled`, and `LengthOnly`, the baseline of every probe; for the others, by
    name, why they are unavailable."""

    scorers: tuple[Scorer, ...]
    unavailable: Mapping[str, str] = field(default_factory=dict)


def build_scorers(params: Params, settings: Settings) -> AvailableScorers:
    """Make the scorers of `params.scorers.enabled`. Raises `AbstainError` for an unknown name, listing all names."""
    makers = _scorer_factories(params, settings)
    unknown = [name for name in params.scorers.enabled if name not in makers]
    if unknown:
        raise AbstainError(
            Code.UNKNOWN_NAME, f"scorers.enabled: no scorer '{unknown[0]}': there are {', '.join(makers)}"
        )
    scorers: list[Scorer] = []
    skipped: dict[str, str] = {}
    for name in dict.fromkeys(params.scorers.enabled):
        try:
            scorers.append(makers[name]())
        except ScorerUnavailable as why:
            skipped[name] = why.message_with_code
    return AvailableScorers((*scorers, LengthOnly()), skipped)


def _scorer_factories(params: Params, settings: Settings) -> dict[str, Callable[[], Scorer]]:
    tokenizer = load_tokenizer(find_model(params.llm.model, settings))
    signals = (*likelihood.LIKELIHOOD_SIGNALS, *yes_no_signals(tokenizer), verbalized_signal(tokenizer))

    def signal(one: Scorer) -> Scorer:
        for reading in one.requires:
            try:
                reading.render(params.llm.layout, "", [], "")
            except AbstainError as error:  # no follow-up question exists for this layout
                raise ScorerUnavailable(error.code, error.message) from None
            for token in _required_tokens(reading.operation):
                if len(tokenizer.encode(token, add_special_tokens=False)) != 1:
                    raise ScorerUnavailable(
                        Code.MODEL_UNSUITABLE, f"{params.llm.model} has no token of its own for {token!r}"
                    )
        return one

    return {
        **{one.name: partial(signal, one) for one in signals},
        "entailment": partial(entailment_scorer, params.scorers.entailment_model, settings),
        "extractive_qa": partial(extractive_scorer, params.scorers.extractive_qa_model, settings),
        FAMILIARITY: partial(familiarity_scorer, params.llm, settings),
        WRITER: partial(WriterScores, params.labels.refusals),
    }


def _required_tokens(ask: Operation) -> tuple[str, ...]:
    """The tokens whose probabilities `operation` wants, each of which the base model must have."""
    return ask.tokens if isinstance(ask, NextTokenProbs) else ask.tracked_tokens if isinstance(ask, Generate) else ()
