"""All scorers of one retrain as one table of confidences: a row for each answer, a column for each scorer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd
from torch import Tensor

from abstain.core.scorer_names import BASE_RATE, LENGTH_ONLY, PROBE
from abstain.learning.estimators.fusion import Fusion
from abstain.learning.estimators.onnx_probe import OnnxProbe
from abstain.learning.estimators.probes.base import Probe, predict_confidence

Kind = Literal["probe", "regressor", "signal", "fusion", "baseline"]


@dataclass(frozen=True)
class ScoreTable:
    """The fitted scorers of one retrain.

    The architecture that is exported appears in a table once, as `probe`, with the confidences of the exported file.

    Attributes:
        served: Name of the served scorer.
        exported: The exported probe.
        probes: Architecture -> probe.
        fusions: Name -> fusion.
        base_rate: Share of correct training answers.
        regressors: Names of the signals that are correctness regressors.
    """

    served: str
    exported: OnnxProbe
    probes: Mapping[str, Probe]
    fusions: Mapping[str, Fusion]
    base_rate: float
    regressors: Collection[str] = ()

    @property
    def architecture(self) -> str:
        """The architecture of the exported probe."""
        return self.exported.metadata["architecture"]

    def build_table(self, states: Sequence[Tensor], signals: pd.DataFrame) -> pd.DataFrame:
        """Compute the raw confidences of all scorers.

        Args:
            states: S_in of every answer, each (L + 1, d).
            signals: (rows, signals), the output of the stage `features`.

        Returns:
            float64 (rows, scorers) with the index of `signals`; nan where a scorer has no score.
        """
        probe_scores = {
            name: predict_confidence(probe, states).numpy().astype(float) for name, probe in self.probes.items()
        }
        exported = self.exported.predict(states).astype(float)
        scores = signals.assign(**probe_scores, **{PROBE: exported})
        table = {PROBE: exported} | {name: fusion.score(scores) for name, fusion in self.fusions.items()}
        remaining = scores.drop(columns=[self.architecture, PROBE])
        return pd.DataFrame(table, signals.index).join(remaining).assign(**{BASE_RATE: self.base_rate})

    def describe_kinds(self, names: Sequence[str]) -> dict[str, str]:
        """Return the kinds of scorers; that of the served one is, for example, `served probe`.

        Args:
            names: The scorers.

        Returns:
            Scorer -> kind.
        """
        return {
            name: f"served {self._get_kind(name)}" if name == self.served else self._get_kind(name) for name in names
        }

    def _get_kind(self, name: str) -> Kind:
        if name in self.fusions:
            return "fusion"
        if name in (LENGTH_ONLY, BASE_RATE):
            return "baseline"
        if name in self.regressors:
            return "regressor"
        return "probe" if name == PROBE or name in self.probes else "signal"
