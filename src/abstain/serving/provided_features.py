"""What an engine gave about an answer, as what the live scorer reads; or what it needs besides, by name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from abstain.core.codes import Code
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.base import FeatureBatch, Signal
from abstain.llm.signals.compute_features import ProvidedFeatures
from abstain.llm.signals.likelihood import NLL_WITH_CONTEXT
from abstain.serving.feature_spec import describe_feature_request
from abstain.serving.live_scorer import ExportedProbe, LiveScorer, ScorerComponent, WriterScorer
from abstain.serving.log_probs import AnswerLogProbs
from abstain.serving.request_files import make_interaction_from_texts

WRITER_SCORES_NAME = "the answer, with the scores that its writer gave it"
PLACEHOLDER_INTERACTION = make_interaction_from_texts("?", "!", [])
"""Stands for an answer of which no texts are known."""


@dataclass(frozen=True)
class MissingFeatures:
    """What was given does not suffice. `names`: what the scorer needs besides; `results`: what it can use as given."""

    names: tuple[str, ...]
    results: ProvidedFeatures


def build_provided_features(
    scorer: LiveScorer, interaction: Interaction | None, states: Tensor | None, log_probs: AnswerLogProbs | None
) -> FeatureBatch | MissingFeatures:
    """One answer with what `scorer` reads of it, from `states` and `log_probs`, as they were checked.

    Raises `AbstainError` where these are not of equally many tokens.
    """
    _compare(scorer, states, log_probs)
    results: dict[FeatureRequest, Tensor] = {}
    if log_probs is not None:
        results[NLL_WITH_CONTEXT] = log_probs.to_nll_and_entropy()
    if states is not None:
        results |= {part.states_request: states for part in scorer.components if isinstance(part, ExportedProbe)}
    row = interaction or PLACEHOLDER_INTERACTION
    lacking: dict[str, FeatureRequest | None] = {}
    for part in scorer.components:
        if not isinstance(part, WriterScorer):
            lacking |= _find_missing(part, row, results)
        elif interaction is None:
            lacking[WRITER_SCORES_NAME] = None
    unfit = set(lacking.values())
    wanted = {one: result for one, result in results.items() if one in scorer.requires and one not in unfit}
    if lacking:
        return MissingFeatures(tuple(lacking), wanted)
    return FeatureBatch([row], {one: [result] for one, result in wanted.items()})


def _find_missing(part: ScorerComponent, row: Interaction, results: ProvidedFeatures) -> dict[str, FeatureRequest]:
    """What `part` needs besides `results`, by name, each with the reading that would give it."""
    absent = {describe_feature_request(one): one for one in part.readings if one not in results}
    if isinstance(part, ExportedProbe) or NLL_WITH_CONTEXT not in part.readings or NLL_WITH_CONTEXT not in results:
        return absent
    if not isinstance(part, Signal):  # a regressor reads NLLs and entropies alike
        return absent | {describe_feature_request(NLL_WITH_CONTEXT): NLL_WITH_CONTEXT}
    return absent or dict.fromkeys(_find_missing_values(part, row, results[NLL_WITH_CONTEXT]), NLL_WITH_CONTEXT)


def _find_missing_values(signal: Signal, row: Interaction, surprise: Tensor) -> list[str]:
    """What of `to_nll_and_entropy`, where it is nan, `signal` cannot do without: its score is nan without it."""
    eos, entropies = surprise.clone(), surprise.clone()
    eos[:, 1], entropies[-1, 0] = 0.0, 0.0
    needs = {"the log-probability of EOS": eos, "the entropies of the answer's tokens": entropies}
    return [name for name, rest in needs.items() if np.isnan(signal.score_row(row, [rest]))]


def _compare(scorer: LiveScorer, states: Tensor | None, log_probs: AnswerLogProbs | None) -> None:
    if states is None or log_probs is None:
        return
    tokens = len(states) - scorer.llm.includes_eos
    if tokens != len(log_probs.token_log_probs):
        raise AbstainError(
            Code.STATES_MISMATCH,
            f"states of {tokens} tokens and log-probabilities of {len(log_probs.token_log_probs)} were given: both are to be "
            "of the same answer",
        )
