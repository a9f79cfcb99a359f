"""Registry of the probe architectures, and their files. To add one, write its module and register it here.

A file is in the safetensors format. Its header contains the architecture and shape, which is all that loading needs.
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
from abstain.learning.estimators.probes.mlp import MLPProbe
from abstain.learning.estimators.probes.pca import PCAProbe


@dataclass(frozen=True)
class ProbeSpec:
    """A probe class, and the hyperparameters that it does not take from `params.yaml`.

    Attributes:
        probe_class: The class.
        fixed_params: Parameter name -> fixed value.
    """

    probe_class: type[Probe]
    fixed_params: Mapping[str, float] = field(default_factory=dict)

    def apply_fixed_params(self, params: ProbeParams) -> ProbeParams:
        """Replace the fixed parameters.

        Args:
            params: Parameters from `params.yaml`.

        Returns:
            A copy with the fixed values.
        """
        return params.model_copy(update=dict(self.fixed_params))

    def describe(self, params: ProbeParams) -> str:
        """Describe the probe in one line, for the model card.

        Args:
            params: Parameters from `params.yaml`.

        Returns:
            The description.
        """
        return self.probe_class.describe(self.apply_fixed_params(params))


PROBES: Mapping[Architecture, ProbeSpec] = {
    "lstm": ProbeSpec(LSTMProbe),
    "lstm_no_huber": ProbeSpec(LSTMProbe, {"huber_lambda": 0.0}),  # Huang et al.'s "no calib." row
    "linear": ProbeSpec(LinearProbe, {"huber_lambda": 0.0}),  # a logistic regression has no such term
    "mlp": ProbeSpec(MLPProbe),
    "attention": ProbeSpec(AttentionProbe),
    "pca": ProbeSpec(PCAProbe),
}
HEADER = "probe"


def save_probe(probe: Probe, file: Path) -> None:
    """Write the weights, architecture and shape of a probe; equal probes give equal bytes.

    Args:
        probe: The fitted probe.
        file: Path of the new file.
    """
    header = {"architecture": probe.architecture, **probe.hyperparameters}
    # One entry: safetensors writes several in no fixed order.
    write_atomically(file, save(probe.state_dict(), {HEADER: json.dumps(header, sort_keys=True)}))


def load_probe(file: Path) -> Probe:
    """Load a probe in evaluation mode.

    Args:
        file: A file of `save_probe`.

    Returns:
        The probe.

    Raises:
        AbstainError: The file is missing, or is no probe of this version.
    """
    hint = "run `abstain retrain`"
    try:
        with safe_open(file, "pt") as reader:
            header = json.loads(reader.metadata()[HEADER])
            weights = {name: reader.get_tensor(name) for name in reader.keys()}  # noqa: SIM118
        architecture = header.pop("architecture")
        probe = PROBES[architecture].probe_class(**header)
        probe.load_state_dict(weights)
    except FileNotFoundError:
        raise AbstainError(Code.BAD_ARTIFACT, f"{file} is missing: {hint}") from None
    except (SafetensorError, TypeError, KeyError, ValueError, RuntimeError, OSError):
        raise AbstainError(Code.VERSION_MISMATCH, f"{file} is no probe of this version: {hint}") from None
    probe.architecture = architecture
    return probe.eval()
