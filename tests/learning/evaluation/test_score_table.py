import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from abstain.config.params import Architecture
from abstain.learning.estimators.fusion import Fusion
from abstain.learning.estimators.onnx_probe import OnnxProbe
from abstain.learning.estimators.probes.base import predict_confidence
from abstain.learning.evaluation.score_table import ScoreTable
from tests.learning.estimators.builders import D, build_probe, write_mean_probe
from tests.tolerance import assert_near

PROBE_NAMES: tuple[Architecture, ...] = ("linear", "lstm")
FUSED = ("linear", "entropy", "lstm")
KINDS = {
    "probe": "served probe",
    "fusion": "fusion",
    "entropy": "signal",
    "length_only": "baseline",
    "lstm": "probe",
    "base_rate": "baseline",
}


@pytest.fixture(scope="module")
def scorers(tmp_path_factory: pytest.TempPathFactory) -> ScoreTable:
    """The exported file is another probe than the linear one of the table, so that they differ."""
    file = write_mean_probe(tmp_path_factory.mktemp("probe") / "probe.onnx", D, {"architecture": "linear"})
    fusion = Fusion(FUSED, (0.0,) * 3, (1.0,) * 3, (0.5, 1.0, -0.25), (0.0, 2.0, 0.0), intercept=0.1, strength=1.0)
    probes = {name: build_probe(name, seed) for seed, name in enumerate(PROBE_NAMES)}
    return ScoreTable("probe", OnnxProbe(file), probes, {"fusion": fusion}, base_rate=0.6)


def make_inputs(rows: int) -> tuple[list[Tensor], pd.DataFrame]:
    generator = torch.Generator().manual_seed(3)
    states = [torch.randn(1 + i % 3, D, generator=generator) for i in range(rows)]
    signals = {"entropy": np.linspace(0.1, 0.9, rows), "length_only": 0.5}
    return states, pd.DataFrame(signals, pd.Index([10 * i for i in range(rows)]))


def test_build_table_exported_probe_has_scores_of_its_file(scorers: ScoreTable) -> None:
    states, signals = make_inputs(7)
    table = scorers.build_table(states, signals)
    assert list(table) == list(KINDS)
    assert table.index.equals(signals.index) and set(table.dtypes) == {np.dtype(float)}
    np.testing.assert_allclose(table["probe"], [1 / (1 + np.exp(-float(row.mean()))) for row in states], rtol=1e-6)
    assert_near(table["lstm"], predict_confidence(scorers.probes["lstm"], states))
    pd.testing.assert_frame_equal(table[list(signals)], signals)
    assert (table["base_rate"] == 0.6).all()
    nothing = scorers.build_table(*make_inputs(0))
    assert nothing.shape == (0, 6) and list(nothing) == list(KINDS)
    assert scorers.architecture == "linear" and scorers.describe_kinds(list(table)) == KINDS


def test_build_table_fusion_combines_fitted_probes(scorers: ScoreTable) -> None:
    """Not the file: it learnt from out-of-fold confidences of that architecture."""
    states, signals = make_inputs(7)
    linear, lstm = (predict_confidence(scorers.probes[name], states).numpy().astype(float) for name in PROBE_NAMES)
    odds = [np.log(p / (1 - p)) for p in (linear, signals["entropy"].to_numpy(), lstm)]
    z = 0.1 + 0.5 * odds[0] + 1.0 * odds[1] - 0.25 * odds[2]
    np.testing.assert_allclose(scorers.build_table(states, signals)["fusion"], 1 / (1 + np.exp(-z)))


def test_build_table_missing_score_changes_no_other_scorer(scorers: ScoreTable) -> None:
    states, signals = make_inputs(7)
    whole = scorers.build_table(states, signals)
    signals.iloc[2, 0] = np.nan
    table = scorers.build_table(states, signals)
    assert table.isna().sum().to_dict() == dict.fromkeys(table, 0) | {"entropy": 1}
    others = [name for name in table if name not in ("entropy", "fusion")]
    pd.testing.assert_frame_equal(table[others], whole[others])
    assert np.isclose(table["fusion"], whole["fusion"]).tolist() == [i != 2 for i in range(7)]
