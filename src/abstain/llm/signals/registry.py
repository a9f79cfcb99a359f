"""The scorers that need no training on states, by name: the valid names of `scorers.enabled`.

A retrain makes those that are enabled, a service those that its version uses; what they learnt is in the bundle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from abstain.config.params import LLMParams, Params
from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.scorer_names import (
    CROSS_ENCODER,
    ENTAILMENT,
    EXTRACTIVE_QA,
    FAMILIARITY,
    TEXT_SIMILARITY,
    VERBALIZED,
    WITH_MODEL,
    WRITER,
    YES_SCORES,
)
from abstain.llm.engine.loading import find_model, load_tokenizer
from abstain.llm.engine.requests import get_tracked_tokens
from abstain.llm.signals.base import Scorer, ScorerUnavailable, Signal
from abstain.llm.signals.cross_encoder import make_cross_encoder
from abstain.llm.signals.entailment import make_entailment_scorer
from abstain.llm.signals.extractive_qa import make_extractive_scorer
from abstain.llm.signals.familiarity import make_familiarity_scorer
from abstain.llm.signals.length import LengthOnly
from abstain.llm.signals.likelihood import LIKELIHOOD_SIGNALS
from abstain.llm.signals.overlap import OVERLAP_SIGNAL
from abstain.llm.signals.text_similarity import make_text_similarity
from abstain.llm.signals.verbalized import make_verbalized_signal
from abstain.llm.signals.writer import WriterScores
from abstain.llm.signals.yes_no import make_yes_no_signals


@dataclass(frozen=True)
class AvailableScorers:
    """Scorers that can be fitted and compared.

    Attributes:
        scorers: The available scorers of `scorers.enabled`, and `LengthOnly`, the baseline of every probe.
        unavailable: Name -> reason of each other enabled scorer.
    """

    scorers: tuple[Scorer, ...]
    unavailable: Mapping[str, str] = field(default_factory=dict)


def build_scorers(params: Params, settings: Settings) -> AvailableScorers:
    """Make the scorers of `scorers.enabled`.

    Args:
        params: Parameters of the project.
        settings: Settings of this machine.

    Returns:
        The available scorers, and the reasons for the others.

    Raises:
        AbstainError: A name is unknown; the message lists all names.
    """
    models = {name: getattr(params.scorers, f"{name}_model") for name in WITH_MODEL}
    factories = _make_scorer_factories(params.llm, models, settings)
    factories[CROSS_ENCODER] = partial(make_cross_encoder, settings)
    factories[WRITER] = partial(WriterScores, params.labels.refusals)
    unknown = [name for name in params.scorers.enabled if name not in factories]
    if unknown:
        raise AbstainError(
            Code.UNKNOWN_NAME, f"scorers.enabled: no scorer '{unknown[0]}': there are {', '.join(factories)}"
        )
    scorers: list[Scorer] = []
    unavailable: dict[str, str] = {}
    for name in dict.fromkeys(params.scorers.enabled):
        try:
            scorers.append(factories[name]())
        except ScorerUnavailable as error:
            unavailable[name] = error.message_with_code
    return AvailableScorers((*scorers, LengthOnly()), unavailable)


def make_scorer(name: str, llm: LLMParams, models: Mapping[str, str | None], settings: Settings) -> Scorer:
    """Make a scorer that learns nothing.

    Args:
        name: Name of the scorer.
        llm: Base model and prompt layout.
        models: The models beside the base model, by scorer.
        settings: Settings of this machine.

    Returns:
        The scorer.

    Raises:
        ScorerUnavailable: It needs a model or a package that this machine lacks.
        KeyError: There is no such scorer.
    """
    return _make_scorer_factories(llm, models, settings)[name]()


def _make_scorer_factories(
    llm: LLMParams, models: Mapping[str, str | None], settings: Settings
) -> dict[str, Callable[[], Scorer]]:
    @cache
    def load() -> Any:
        return load_tokenizer(find_model(llm.model, settings))

    def check_layout(signal: Signal) -> Signal:
        for request in signal.requires:
            try:
                request.render(llm.layout, "", [], "")
            except AbstainError as error:  # no follow-up question exists for this layout
                raise ScorerUnavailable(error.code, error.message) from None
        return signal

    def make_asking_signal(name: str) -> Signal:
        signals = (*make_yes_no_signals(load()), make_verbalized_signal(load()))
        (signal,) = (signal for signal in signals if signal.name == name)
        tokens = [token for request in signal.requires for token in get_tracked_tokens(request.operation)]
        for token in tokens:
            if len(load().encode(token, add_special_tokens=False)) != 1:
                raise ScorerUnavailable(Code.MODEL_UNSUITABLE, f"{llm.model} has no token of its own for {token!r}")
        return check_layout(signal)

    return {
        **{signal.name: partial(check_layout, signal) for signal in (*LIKELIHOOD_SIGNALS, OVERLAP_SIGNAL)},
        **{name: partial(make_asking_signal, name) for name in (*YES_SCORES, VERBALIZED)},
        ENTAILMENT: partial(make_entailment_scorer, models.get(ENTAILMENT), settings),
        EXTRACTIVE_QA: partial(make_extractive_scorer, models.get(EXTRACTIVE_QA), settings),
        FAMILIARITY: partial(make_familiarity_scorer, llm, settings),
        TEXT_SIMILARITY: partial(make_text_similarity, settings),
    }
