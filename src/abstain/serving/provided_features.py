"""The live scorer's features from what an engine computed for an answer, or the names of those that are missing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from abstain.core.codes import Code
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.base import FeatureBatch, RunsModel, Signal
from abstain.llm.signals.compute_features import ProvidedFeatures
from abstain.llm.signals.likelihood import NLL_WITH_CONTEXT
from abstain.serving.feature_spec import describe_feature_request
from abstain.serving.live_scorer import ExportedProbe, LiveScorer, ScorerComponent, WriterScorer
from abstain.serving.log_probs import AnswerLogProbs
from abstain.serving.request_files import make_interaction_from_texts

WRITER_SCORES_NAME = "the answer, with the scores that its writer gave it"
READING_NAME = "what a model reads in the texts"
PLACEHOLDER_INTERACTION = make_interaction_from_texts("?", "!", [])
"""Represents an answer whose texts are unknown."""


@dataclass(frozen=True)
class MissingFeatures:
    """The provided features do not suffice.

    Attributes:
        names: Names of the features that the scorer needs in addition.
        features: The provided features that it can use.
    """

    names: tuple[str, ...]
    features: ProvidedFeatures


def build_provided_features(
    scorer: LiveScorer, interaction: Interaction | None, states: Tensor | None, log_probs: AnswerLogProbs | None
) -> FeatureBatch | MissingFeatures:
    """Build the scorer's input from what the caller's engine computed.

    Args:
        scorer: The live scorer.
        interaction: Texts of the answer; None if only states or log-probabilities were sent.
        states: Verified hidden states, float32 (tokens, d).
        log_probs: Verified log-probabilities.

    Returns:
        A batch with one answer, or the features that are still missing.

    Raises:
        AbstainError: States and log-probabilities have different numbers of tokens.
    """
    _require_equal_lengths(scorer, states, log_probs)
    components, features = scorer.components.values(), dict[FeatureRequest, Tensor]()
    if log_probs is not None:
        features[NLL_WITH_CONTEXT] = log_probs.to_nll_and_entropy()
    if states is not None:
        probes = [component for component in components if isinstance(component, ExportedProbe)]
        features |= {probe.states_request: states for probe in probes}
    row = interaction or PLACEHOLDER_INTERACTION
    missing: dict[str, FeatureRequest | None] = {}
    for component in components:
        missing |= _find_missing(component, row, features)
        if isinstance(component, RunsModel):
            missing[READING_NAME] = None
        if isinstance(component, WriterScorer) and interaction is None:
            missing[WRITER_SCORES_NAME] = None
    incomplete_requests = set(missing.values())
    usable = {
        request: result
        for request, result in features.items()
        if request in scorer.requires and request not in incomplete_requests
    }
    if missing:
        return MissingFeatures(tuple(missing), usable)
    return FeatureBatch([row], {request: [result] for request, result in usable.items()})


def _find_missing(
    component: ScorerComponent, interaction: Interaction, features: ProvidedFeatures
) -> dict[str, FeatureRequest]:
    """Return the feature requests that `component` needs in addition to `features`, by name."""
    absent = {describe_feature_request(request): request for request in component.requires if request not in features}
    if (
        isinstance(component, ExportedProbe)
        or NLL_WITH_CONTEXT not in component.requires
        or NLL_WITH_CONTEXT not in features
    ):
        return absent
    if not isinstance(component, Signal):  # a regressor reads NLLs and entropies alike
        return absent | {describe_feature_request(NLL_WITH_CONTEXT): NLL_WITH_CONTEXT}
    return absent or dict.fromkeys(
        _find_missing_values(component, interaction, features[NLL_WITH_CONTEXT]), NLL_WITH_CONTEXT
    )


def _find_missing_values(signal: Signal, interaction: Interaction, nlls_and_entropies: Tensor) -> list[str]:
    """Return the values, nan in `nlls_and_entropies`, that `signal` needs: without them its score is nan."""
    eos, entropies = nlls_and_entropies.clone(), nlls_and_entropies.clone()
    eos[:, 1], entropies[-1, 0] = 0.0, 0.0
    needs = {"the log-probability of EOS": eos, "the entropies of the answer's tokens": entropies}
    return [name for name, values in needs.items() if np.isnan(signal.score_row(interaction, [values]))]


def _require_equal_lengths(scorer: LiveScorer, states: Tensor | None, log_probs: AnswerLogProbs | None) -> None:
    if states is None or log_probs is None:
        return
    tokens = len(states) - scorer.llm.includes_eos
    if tokens != len(log_probs.token_log_probs):
        raise AbstainError(
            Code.STATES_MISMATCH,
            f"states of {tokens} tokens and log-probabilities of {len(log_probs.token_log_probs)} were given: both are "
            "to be of the same answer",
        )
