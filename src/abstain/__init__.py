"""Abstain: should this RAG answer be shown, or withheld?

`Gate` decides in process, `HttpGate` asks a server; both give a `Decision`. A method that is compared is a `Scorer`, a
formula over what the base model reads a `Signal`. What is imported from here is public, and keeps to semantic
versioning; every other module is internal and may change in any release. Each name is imported where it is first used:
`import abstain` is light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from abstain.config.params import Params, load_params
    from abstain.core.codes import Code
    from abstain.core.contracts import Context, Interaction, Review, Thumb
    from abstain.core.errors import AbstainError
    from abstain.learning.metrics import weighted_metrics as metrics
    from abstain.learning.metrics.bootstrap import Estimate, bootstrap, paired_difference
    from abstain.learning.thresholds.guarantee import Guarantee
    from abstain.learning.thresholds.outcomes import ControlledThreshold, InfeasibleThreshold
    from abstain.learning.thresholds.risk_control import ReviewedAnswers, control_risk
    from abstain.llm.engine.requests import NLL, Generate, HiddenStates, NextTokenProbs
    from abstain.llm.features.feature_request import FeatureRequest
    from abstain.llm.signals.base import FeatureBatch, Scorer, Signal
    from abstain.monitoring.live_guarantee import ReviewBatch, check_live_guarantee
    from abstain.release.registry import load_registry
    from abstain.serving.decision import Decision
    from abstain.serving.gate import Gate
    from abstain.serving.gateways.callbacks import AnswerWithheld, langchain_callback, llamaindex_callback
    from abstain.serving.gateways.client import GateLike, HttpGate
    from abstain.serving.gateways.nemo import abstain_action

__version__ = "0.1.0"
__all__ = [
    "NLL",
    "AbstainError",
    "AnswerWithheld",
    "Code",
    "Context",
    "ControlledThreshold",
    "Decision",
    "Estimate",
    "FeatureBatch",
    "FeatureRequest",
    "Gate",
    "GateLike",
    "Generate",
    "Guarantee",
    "HiddenStates",
    "HttpGate",
    "InfeasibleThreshold",
    "Interaction",
    "NextTokenProbs",
    "Params",
    "Review",
    "ReviewBatch",
    "ReviewedAnswers",
    "Scorer",
    "Signal",
    "Thumb",
    "abstain_action",
    "bootstrap",
    "check_live_guarantee",
    "control_risk",
    "langchain_callback",
    "llamaindex_callback",
    "load_params",
    "load_registry",
    "metrics",
    "paired_difference",
]
_NAMES_BY_MODULE = {
    "abstain.config.params": ("Params", "load_params"),
    "abstain.core.codes": ("Code",),
    "abstain.core.contracts": ("Context", "Interaction", "Review", "Thumb"),
    "abstain.core.errors": ("AbstainError",),
    "abstain.learning.metrics.bootstrap": ("Estimate", "bootstrap", "paired_difference"),
    "abstain.learning.thresholds.guarantee": ("Guarantee",),
    "abstain.learning.thresholds.outcomes": ("ControlledThreshold", "InfeasibleThreshold"),
    "abstain.learning.thresholds.risk_control": ("ReviewedAnswers", "control_risk"),
    "abstain.llm.engine.requests": ("NLL", "Generate", "HiddenStates", "NextTokenProbs"),
    "abstain.llm.features.feature_request": ("FeatureRequest",),
    "abstain.llm.signals.base": ("FeatureBatch", "Scorer", "Signal"),
    "abstain.monitoring.live_guarantee": ("ReviewBatch", "check_live_guarantee"),
    "abstain.release.registry": ("load_registry",),
    "abstain.serving.decision": ("Decision",),
    "abstain.serving.gate": ("Gate",),
    "abstain.serving.gateways.callbacks": ("AnswerWithheld", "langchain_callback", "llamaindex_callback"),
    "abstain.serving.gateways.client": ("GateLike", "HttpGate"),
    "abstain.serving.gateways.nemo": ("abstain_action",),
}


def __getattr__(name: str) -> Any:
    if name == "metrics":
        return import_module("abstain.learning.metrics.weighted_metrics")
    for module, names in _NAMES_BY_MODULE.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
