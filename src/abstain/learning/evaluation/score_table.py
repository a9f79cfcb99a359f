"""All scorers of one retrain, fitted, as one table of confidences: a row an answer, a column a scorer."""

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
    """The name of the served scorer, the exported probe, the zoo by architecture, the fusions by name, the training
    answers' share of correct ones, and which of the signals are regressors of correctness.

    The zoo's probe that is exported stands in a table once, as `probe`, with the confidences of the exported file.
    """

    served: str
    exported: OnnxProbe
    zoo: Mapping[str, Probe]
    fusions: Mapping[str, Fusion]
    base_rate: float
    regressors: Collection[str] = ()

    @property
    def architecture(self) -> str:
        """That of the zoo's probe that is exported."""
        return self.exported.metadata["architecture"]

    def table(self, states: Sequence[Tensor], signals: pd.DataFrame) -> pd.DataFrame:
        """Raw confidences, float64 (rows, scorers), nan where a scorer has no score, with the index of `signals`.

        Args:
            states: S_in of every answer. signals: (rows, signals), as the stage `features` writes them.
        """
        zoo = {name: predict_confidence(probe, states).numpy().astype(float) for name, probe in self.zoo.items()}
        exported = self.exported.confidence(states).astype(float)
        scores = signals.assign(**zoo, **{PROBE: exported})
        table = {PROBE: exported} | {name: fusion.score(scores) for name, fusion in self.fusions.items()}
        others = scores.drop(columns=[self.architecture, PROBE])
        return pd.DataFrame(table, signals.index).join(others).assign(**{BASE_RATE: self.base_rate})

    def kinds(self, names: Sequence[str]) -> dict[str, str]:
        """The kind of each scorer of a table; that of the served one is, e.g., `served probe`."""
        return {name: f"served {self._kind(name)}" if name == self.served else self._kind(name) for name in names}

    def _kind(self, name: str) -> Kind:
        if name in self.fusions:
            return "fusion"
        if name in (LENGTH_ONLY, BASE_RATE):
            return "baseline"
        if name in self.regressors:
            return "regressor"
        return "probe" if name == PROBE or name in self.zoo else "signal"
