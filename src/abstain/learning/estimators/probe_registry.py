"""The model zoo: probes by name, and their files. To add one, write its module and register it here.

A file is safetensors; its header states architecture and shape, so nothing else is needed to load the weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from abstain.config.params import Architecture, ProbeParams
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from abstain.learning.estimators.probes.attention import AttentionProbe
from abstain.learning.estimators.probes.base import Probe
from abstain.learning.estimators.probes.linear import LinearProbe
from abstain.learning.estimators.probes.lstm import LSTMProbe
from abstain.learning.estimators.probes.pca import PCAProbe


@dataclass(frozen=True)
class ProbeSpec:
    """A kind of probe, and the parameters that it does not take from `params.yaml`."""

    kind: type[Probe]
    fixed: Mapping[str, float] = field(default_factory=dict)

    def params(self, params: ProbeParams) -> ProbeParams:
        return params.model_copy(update=dict(self.fixed))

    def description(self, params: ProbeParams) -> str:
        return self.kind.description(self.params(params))


PROBES: Mapping[Architecture, ProbeSpec] = {
    "lstm": ProbeSpec(LSTMProbe),
    "lstm_no_huber": ProbeSpec(LSTMProbe, {"huber_lambda": 0.0}),  # the paper's "no calib." row
    "linear": ProbeSpec(LinearProbe, {"huber_lambda": 0.0}),  # a logistic regression has no such term
    "attention": ProbeSpec(AttentionProbe),
    "pca": ProbeSpec(PCAProbe),
}
HEADER = "probe"


def save_probe(probe: Probe, file: Path) -> None:
    """Write weights, architecture and shape of `probe`; equal probes are equal bytes."""
    described = {"architecture": probe.architecture, **probe.hyperparameters}
    # One entry: safetensors writes several in no fixed order.
    write_atomically(file, save(probe.state_dict(), {HEADER: json.dumps(described, sort_keys=True)}))


def load_probe(file: Path) -> Probe:
    """The probe of `file`, in evaluation mode. Raises `AbstainError` for a file that is missing or is no probe."""
    again = "run `abstain retrain`"
    try:
        with safe_open(file, "pt") as opened:
            described = json.loads(opened.metadata()[HEADER])
            weights = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        architecture = described.pop("architecture")
        probe = PROBES[architecture].kind(**described)
        probe.load_state_dict(weights)
    except FileNotFoundError:
        raise AbstainError(Code.BAD_ARTIFACT, f"{file} is missing: {again}") from None
    except (SafetensorError, TypeError, KeyError, ValueError, RuntimeError, OSError):
        raise AbstainError(Code.VERSION_MISMATCH, f"{file} is no probe of this version: {again}") from None
    probe.architecture = architecture
    return probe.eval()
