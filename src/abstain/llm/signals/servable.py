"""Which scorers can decide in a service, and what the fusions of them read.

A service reads an answer under its own prompt: with the context (N_c), which gives states and log-probabilities, and
without it (B_c). A scorer that needs another prompt, generated text or another model cannot be served.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from abstain.config.params import Params, ServableKind
from abstain.core.scorer_names import FAMILIARITY, ONE_PASS, PROBE, REGRESSORS, TWO_PASSES, WRITER
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.base import Scorer
from abstain.llm.signals.context_conditions import make_baseline_requests, make_normal_requests
from abstain.llm.signals.feature_plan import get_served_site, wants_regressors
from abstain.llm.signals.length import LengthOnly
from abstain.llm.signals.likelihood import LIKELIHOOD_SIGNALS

FUSIONS: Mapping[int, str] = {1: ONE_PASS, 2: TWO_PASSES}
"""By the most passes, N_c and B_c, that an answer takes."""
LOG_PROBS = {one.name: one for one in LIKELIHOOD_SIGNALS if one.name != "joint_log_prob"}

_OTHER_PROMPT = "it reads a prompt of its own, and a service reads an answer under its own prompt alone"
_OTHER_MODEL = "it needs another model than the base model"
_BASELINE = "it is a baseline"
_VANISHING_CONFIDENCES = "its confidences of long answers are all near 0, so that no threshold can part them"
_PERTURBED = (
    "it reads perturbed contexts, whose perturbation serve.max_tokens does not bound: set perturbation.copies 0"
)


def get_servable_kind(name: str) -> ServableKind:
    """The kind of a scorer that can be served."""
    known: dict[str, ServableKind] = {PROBE: "probe", WRITER: "writer", ONE_PASS: "fusion", TWO_PASSES: "fusion"}
    return known.get(name, "log_prob" if name in LOG_PROBS else "regressor")


def list_servable_components(params: Params, scorers: Iterable[Scorer]) -> dict[str, tuple[FeatureRequest, ...]]:
    """The feature requests of the probe, of `scorers` that can be served, and of the `REGRESSORS`, if they can be."""
    parts = {one.name: one.requires for one in scorers if not _reason(one)}
    if wants_regressors(params) and not params.perturbation.copies:
        parts[REGRESSORS] = (
            *make_normal_requests(params.llm.layout).values(),
            *make_baseline_requests(params.llm.layout).values(),
        )
    return {PROBE: (get_served_site(params).make_feature_request(params.llm),), **parts}


def list_servable_fusions(parts: Mapping[str, Sequence[FeatureRequest]]) -> dict[str, list[str]]:
    """The parts of each fusion: all that an answer's passes give. One part alone is none."""
    passes = {name: len({(one.prompt_kind, one.chunks) for one in readings}) for name, readings in parts.items()}
    found = {of: [name for name in parts if passes[name] <= most] for most, of in FUSIONS.items()}
    return {of: of_fusion for of, of_fusion in found.items() if len(of_fusion) > 1}


def explain_not_servable(params: Params, scorers: Iterable[Scorer]) -> dict[str, str]:
    """Why those of `scorers`, and the `REGRESSORS`, that cannot be served cannot."""
    reasons = {one.name: why for one in scorers if (why := _reason(one))}
    return reasons | ({REGRESSORS: _PERTURBED} if wants_regressors(params) and params.perturbation.copies else {})


def _reason(scorer: Scorer) -> str:
    if scorer.name in LOG_PROBS or scorer.name == WRITER:
        return ""
    if isinstance(scorer, LengthOnly):
        return _BASELINE
    if scorer in LIKELIHOOD_SIGNALS:
        return _VANISHING_CONFIDENCES
    return _OTHER_PROMPT if scorer.requires or scorer.name == FAMILIARITY else _OTHER_MODEL
