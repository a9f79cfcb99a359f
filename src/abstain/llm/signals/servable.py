"""Which scorers can decide in a service, and which scorers their fusions read.

A service reads an answer with its own prompt: with the context (N_c), which gives states and log-probabilities, and
without it (B_c). A scorer that needs another prompt, generated text or another model cannot be served.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from abstain.config.params import Params, ServableKind
from abstain.core.scorer_names import FAMILIARITY, ONE_PASS, PROBE, REGRESSORS, TWO_PASSES, WRITER
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.base import Scorer
from abstain.llm.signals.context_conditions import make_condition_requests
from abstain.llm.signals.feature_plan import get_served_site, should_fit_regressors
from abstain.llm.signals.length import LengthOnly
from abstain.llm.signals.likelihood import LIKELIHOOD_SIGNALS

FUSIONS: Mapping[int, str] = {1: ONE_PASS, 2: TWO_PASSES}
"""Fusion by the largest number of prompts, N_c and B_c, that an answer takes."""
LOG_PROBS = {signal.name: signal for signal in LIKELIHOOD_SIGNALS if signal.name != "joint_log_prob"}

_OTHER_PROMPT = "it reads a prompt of its own, and a service reads an answer under its own prompt alone"
_OTHER_MODEL = "it needs another model than the base model"
_BASELINE = "it is a baseline"
_VANISHING_CONFIDENCES = "its confidences of long answers are all near 0, so that no threshold can part them"
_PERTURBED = (
    "it reads perturbed contexts, whose perturbation serve.max_forward_tokens does not bound: set "
    "perturbation.n_copies to 0"
)


def get_servable_kind(name: str) -> ServableKind:
    """Return the kind of the servable scorer `name`."""
    kinds: dict[str, ServableKind] = {PROBE: "probe", WRITER: "writer", ONE_PASS: "fusion", TWO_PASSES: "fusion"}
    return kinds.get(name, "log_prob" if name in LOG_PROBS else "regressor")


def list_servable_components(params: Params, scorers: Iterable[Scorer]) -> dict[str, tuple[FeatureRequest, ...]]:
    """List the scorers that can be served, with their feature requests.

    Args:
        params: Parameters of the project.
        scorers: Available scorers.

    Returns:
        Name -> feature requests of the probe, of the servable ones of `scorers`, and of the `REGRESSORS` if they can be
        served.
    """
    components = {scorer.name: scorer.requires for scorer in scorers if not _explain(scorer)}
    if should_fit_regressors(params) and not params.perturbation.n_copies:
        components[REGRESSORS] = make_condition_requests(params.llm.layout)
    return {PROBE: (get_served_site(params).make_feature_request(params.llm),), **components}


def list_servable_fusions(components: Mapping[str, Sequence[FeatureRequest]]) -> dict[str, list[str]]:
    """Return the components of each fusion: all that its prompts give. A single component is no fusion.

    Args:
        components: Name -> feature requests of the servable scorers.

    Returns:
        Name of the fusion -> names of its components.
    """
    n_prompts = {
        name: len({(request.prompt_kind, request.chunks) for request in requests})
        for name, requests in components.items()
    }
    names_by_fusion = {
        fusion: [name for name in components if n_prompts[name] <= max_prompts]
        for max_prompts, fusion in FUSIONS.items()
    }
    return {fusion: names for fusion, names in names_by_fusion.items() if len(names) > 1}


def explain_not_servable(params: Params, scorers: Iterable[Scorer]) -> dict[str, str]:
    """Explain which scorers cannot be served.

    Args:
        params: Parameters of the project.
        scorers: Available scorers.

    Returns:
        Name -> reason for each of `scorers`, and for the `REGRESSORS`, that cannot be served.
    """
    reasons = {scorer.name: reason for scorer in scorers if (reason := _explain(scorer))}
    is_perturbed = should_fit_regressors(params) and params.perturbation.n_copies
    return reasons | ({REGRESSORS: _PERTURBED} if is_perturbed else {})


def _explain(scorer: Scorer) -> str:
    if scorer.name in LOG_PROBS or scorer.name == WRITER:
        return ""
    if isinstance(scorer, LengthOnly):
        return _BASELINE
    if scorer in LIKELIHOOD_SIGNALS:
        return _VANISHING_CONFIDENCES
    return _OTHER_PROMPT if scorer.requires or scorer.name == FAMILIARITY else _OTHER_MODEL
