"""What an engine gave about an answer, as what the live scorer reads; or what it needs besides, by name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from abstain.core.codes import Code
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.base import Answers, Signal
from abstain.llm.signals.compute_features import ProvidedFeatures
from abstain.llm.signals.likelihood import NORMAL
from abstain.serving.feature_spec import describe_feature_request
from abstain.serving.live_scorer import ExportedProbe, LiveScorer, ScorerComponent, WriterScorer
from abstain.serving.log_probs import AnswerLogProbs
from abstain.serving.request_files import make_interaction_from_texts

WRITER = "the answer, with the scores that its writer gave it"
UNKNOWN = make_interaction_from_texts("?", "!", [])
"""Stands for an answer of which no texts are known."""


@dataclass(frozen=True)
class MissingFeatures:
    """What was given does not suffice. `names`: what the scorer needs besides; `results`: what it can use as given."""

    names: tuple[str, ...]
    results: ProvidedFeatures


def build_provided_features(
    scorer: LiveScorer, interaction: Interaction | None, states: Tensor | None, log_probs: AnswerLogProbs | None
) -> Answers | MissingFeatures:
    """One answer with what `scorer` reads of it, from `states` and `log_probs`, as they were checked.

    Raises `AbstainError` where these are not of equally many tokens.
    """
    _compare(scorer, states, log_probs)
    results: dict[FeatureRequest, Tensor] = {}
    if log_probs is not None:
        results[NORMAL] = log_probs.surprise()
    if states is not None:
        results |= {part.reading: states for part in scorer.parts if isinstance(part, ExportedProbe)}
    row = interaction or UNKNOWN
    lacking: dict[str, FeatureRequest | None] = {}
    for part in scorer.parts:
        if not isinstance(part, WriterScorer):
            lacking |= _find_missing(part, row, results)
        elif interaction is None:
            lacking[WRITER] = None
    unfit = set(lacking.values())
    wanted = {one: result for one, result in results.items() if one in scorer.readings and one not in unfit}
    if lacking:
        return MissingFeatures(tuple(lacking), wanted)
    return Answers([row], {one: [result] for one, result in wanted.items()})


def _find_missing(part: ScorerComponent, row: Interaction, results: ProvidedFeatures) -> dict[str, FeatureRequest]:
    """What `part` needs besides `results`, by name, each with the reading that would give it."""
    absent = {describe_feature_request(one): one for one in part.readings if one not in results}
    if isinstance(part, ExportedProbe) or NORMAL not in part.readings or NORMAL not in results:
        return absent
    if not isinstance(part, Signal):  # a regressor reads NLLs and entropies alike
        return absent | {describe_feature_request(NORMAL): NORMAL}
    return absent or dict.fromkeys(_find_missing_values(part, row, results[NORMAL]), NORMAL)


def _find_missing_values(signal: Signal, row: Interaction, surprise: Tensor) -> list[str]:
    """What of `surprise`, where it is nan, `signal` cannot do without: its score is nan without it."""
    eos, entropies = surprise.clone(), surprise.clone()
    eos[:, 1], entropies[-1, 0] = 0.0, 0.0
    needs = {"the log-probability of EOS": eos, "the entropies of the answer's tokens": entropies}
    return [name for name, rest in needs.items() if np.isnan(signal.of_row(row, [rest]))]


def _compare(scorer: LiveScorer, states: Tensor | None, log_probs: AnswerLogProbs | None) -> None:
    if states is None or log_probs is None:
        return
    tokens = len(states) - scorer.llm.includes_eos
    if tokens != len(log_probs.of_tokens):
        raise AbstainError(
            Code.STATES_MISMATCH,
            f"states of {tokens} tokens and log-probabilities of {len(log_probs.of_tokens)} were given: both are to be "
            "of the same answer",
        )
