"""All scorers of one retrain, fitted, as one table of confidences: a row an answer, a column a scorer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd
from torch import Tensor

from abstain.learning.estimators.fusion import Fusion
from abstain.learning.estimators.onnx_probe import OnnxProbe
from abstain.learning.estimators.probes.base import Probe, predict_confidence

SERVED, FUSION, LENGTH_ONLY, BASE_RATE = "probe", "fusion", "length_only", "base_rate"
Kind = Literal["served probe", "probe", "regressor", "signal", "fusion", "baseline"]


@dataclass(frozen=True)
class ScoreTable:
    """The served file, the zoo by architecture, the fusion, the training answers' share of correct ones, and which of
    the signals are regressors of correctness.

    The zoo's probe that is served stands in a table once, as `probe`, with the confidences of the served file.
    """

    served: OnnxProbe
    zoo: Mapping[str, Probe]
    fusion: Fusion
    base_rate: float
    regressors: Collection[str] = ()

    @property
    def architecture(self) -> str:
        """That of the zoo's probe that is served."""
        return self.served.metadata["architecture"]

    def table(self, states: Sequence[Tensor], signals: pd.DataFrame) -> pd.DataFrame:
        """Raw confidences, float64 (rows, scorers), nan where a scorer has no score, with the index of `signals`.

        Args:
            states: S_in of every answer. signals: (rows, signals), as the stage `features` writes them.
        """
        probes = {name: predict_confidence(probe, states).numpy().astype(float) for name, probe in self.zoo.items()}
        scores = signals.assign(**probes)
        table = {SERVED: self.served.confidence(states).astype(float), FUSION: self.fusion.score(scores)}
        others = scores.drop(columns=self.architecture)
        return pd.DataFrame(table, signals.index).join(others).assign(**{BASE_RATE: self.base_rate})

    def kinds(self, names: Sequence[str]) -> dict[str, Kind]:
        """The kind of each scorer of a table."""
        return {name: self._kind(name) for name in names}

    def _kind(self, name: str) -> Kind:
        if name == SERVED:
            return "served probe"
        if name == FUSION:
            return "fusion"
        if name in (LENGTH_ONLY, BASE_RATE):
            return "baseline"
        if name in self.regressors:
            return "regressor"
        return "probe" if name in self.zoo else "signal"
