"""The scorers that need no training on states, by name: the valid names of `scorers.enabled`."""

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
from abstain.llm.engine.requests import get_tracked_tokens
from abstain.llm.signals import likelihood
from abstain.llm.signals.base import Scorer, ScorerUnavailable
from abstain.llm.signals.entailment import make_entailment_scorer
from abstain.llm.signals.extractive_qa import make_extractive_scorer
from abstain.llm.signals.familiarity import make_familiarity_scorer
from abstain.llm.signals.length import LengthOnly
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
    factories = _make_scorer_factories(params, settings)
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


def _make_scorer_factories(params: Params, settings: Settings) -> dict[str, Callable[[], Scorer]]:
    tokenizer = load_tokenizer(find_model(params.llm.model, settings))
    signals = (*likelihood.LIKELIHOOD_SIGNALS, *make_yes_no_signals(tokenizer), make_verbalized_signal(tokenizer))

    def check_signal(scorer: Scorer) -> Scorer:
        for request in scorer.requires:
            try:
                request.render(params.llm.layout, "", [], "")
            except AbstainError as error:  # no follow-up question exists for this layout
                raise ScorerUnavailable(error.code, error.message) from None
            for token in get_tracked_tokens(request.operation):
                if len(tokenizer.encode(token, add_special_tokens=False)) != 1:
                    raise ScorerUnavailable(
                        Code.MODEL_UNSUITABLE, f"{params.llm.model} has no token of its own for {token!r}"
                    )
        return scorer

    return {
        **{signal.name: partial(check_signal, signal) for signal in signals},
        "entailment": partial(make_entailment_scorer, params.scorers.entailment_model, settings),
        "extractive_qa": partial(make_extractive_scorer, params.scorers.extractive_qa_model, settings),
        FAMILIARITY: partial(make_familiarity_scorer, params.llm, settings),
        WRITER: partial(WriterScores, params.labels.refusals),
    }
