from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor

from abstain.errors import AbstainError
from abstain.models.onnx_probe import OnnxProbe, parity, stamp
from abstain.models.probe import Probe, confidence, pad

from .builders import write_mean_probe

D = 16
METADATA = {"model": "tiny", "threshold": repr(0.1 + 0.2), "layout": "rag-chatml-v1", "größe": "ä\n<&>"}

EXPORT = """
import sys
from pathlib import Path
from abstain.models.onnx_probe import export_probe
from tests.models.test_onnx_probe import METADATA, trained_probe
export_probe(trained_probe(), Path(sys.argv[1]), METADATA)
"""


def trained_probe(seed: int = 0) -> Probe:
    """Random weights, large enough for confidences far from a half."""
    torch.manual_seed(seed)
    probe = Probe(D, 8, 0.3)
    probe.standardise_by([5 + 3 * torch.randn(40, D)])
    with torch.no_grad():
        probe.head.weight.mul_(8)
    return probe.eval()


def ragged(*lengths: int, seed: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [5 + 3 * torch.randn(length, D, generator=generator) for length in lengths]


@pytest.fixture
def light(tmp_path: Path) -> Path:
    return write_mean_probe(tmp_path / "light.onnx", D, METADATA)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same probe exported twice, each time the first export of a process, in folders of different names."""
    files = [tmp_path_factory.mktemp(name) / "probe.onnx" for name in ("one", "another-folder")]
    root = Path(__file__).parents[2]
    running = [
        subprocess.Popen([sys.executable, "-c", EXPORT, str(file)], cwd=root, stderr=subprocess.PIPE, text=True)
        for file in files
    ]
    for process in running:
        _, problems = process.communicate(timeout=300)
        assert process.returncode == 0, problems
    return files[0], files[1]


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [(1,), (2,), (113,), (5, 3), (1, 1, 1), (7, 1, 64, 33), tuple(range(1, 40))])
def test_onnx_gives_torchs_confidences_on_any_batch_and_time(
    exported: tuple[Path, Path], lengths: tuple[int, ...]
) -> None:
    probe, rows = trained_probe(), ragged(*lengths)
    with torch.inference_mode():
        expected = confidence(probe(*pad(rows))).numpy()
    served = OnnxProbe(exported[0]).confidence(rows)
    assert served.shape == (len(lengths),)
    assert np.abs(served - expected).max() <= 1e-4
    if len(lengths) > 30:
        assert np.ptp(served) > 0.3


@pytest.mark.slow
def test_parity_is_small_for_the_exported_probe_and_large_for_another(exported: tuple[Path, Path]) -> None:
    served = OnnxProbe(exported[0])
    assert parity(trained_probe(), served) <= 1e-4
    assert parity(trained_probe(seed=1), served) > 0.1


@pytest.mark.slow
def test_the_same_probe_is_the_same_bytes_from_any_process(exported: tuple[Path, Path]) -> None:
    one, other = (file.read_bytes() for file in exported)
    assert one == other
    assert str(Path(__file__).parents[2]).encode() not in one


@pytest.mark.slow
def test_metadata_and_width_make_the_round_trip(exported: tuple[Path, Path]) -> None:
    served = OnnxProbe(exported[0])
    assert served.metadata == METADATA
    assert served.width == D
    assert float(served.metadata["threshold"]) == 0.1 + 0.2


@pytest.mark.slow
def test_a_stamp_adds_metadata_and_keeps_the_graph(exported: tuple[Path, Path], tmp_path: Path) -> None:
    stamped = tmp_path / "release" / "probe.onnx"
    stamp(exported[0], stamped, {"version": "v1.2.0", "model": "other"})
    assert OnnxProbe(stamped).metadata == {**METADATA, "version": "v1.2.0", "model": "other"}
    graphs = [onnx.load(file).graph.SerializeToString(deterministic=True) for file in (exported[0], stamped)]
    assert graphs[0] == graphs[1]
    rows = ragged(3, 50, 8)
    assert np.array_equal(OnnxProbe(exported[0]).confidence(rows), OnnxProbe(stamped).confidence(rows))
    again = tmp_path / "again.onnx"
    stamp(exported[0], again, {"model": "other", "version": "v1.2.0"})
    assert again.read_bytes() == stamped.read_bytes()


@pytest.mark.slow
def test_many_rows_are_scored_as_each_alone(exported: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    served, rows = OnnxProbe(exported[0]), ragged(*(n % 9 + 1 for n in range(20)))
    alone = np.concatenate([served.confidence([row]) for row in rows])
    monkeypatch.setattr("abstain.models.onnx_probe.BATCH", 6)
    np.testing.assert_allclose(served.confidence(rows), alone, atol=1e-6)


def test_a_served_file_says_its_metadata_and_width(light: Path) -> None:
    served = OnnxProbe(light)
    assert (served.metadata, served.width) == (METADATA, D)
    rows = ragged(4)
    np.testing.assert_allclose(served.confidence(rows), rows[0].mean().sigmoid().numpy(), atol=1e-6)


def test_no_rows_no_confidences(light: Path) -> None:
    assert OnnxProbe(light).confidence([]).shape == (0,)


def test_stamping_the_same_file_in_place_leaves_no_scratch(light: Path) -> None:
    stamp(light, light, {"version": "v1.0.0"})
    assert OnnxProbe(light).metadata["version"] == "v1.0.0"
    assert [path.name for path in light.parent.iterdir()] == ["light.onnx"]


class Silent:
    """A served probe whose runtime has lost its numbers."""

    def confidence(self, rows: list[Tensor]) -> np.ndarray:
        return np.full(len(rows), np.nan, np.float32)


def test_parity_with_nan_is_nan_not_nothing() -> None:
    assert np.isnan(parity(trained_probe(), Silent()))  # type: ignore[arg-type]


@pytest.mark.parametrize("damage", ["absent", "empty", "garbage", "truncated"])
def test_an_unreadable_file_is_named_with_a_remedy(light: Path, damage: str) -> None:
    whole = light.read_bytes()
    light.unlink()
    if damage != "absent":
        light.write_bytes({"empty": b"", "garbage": b"\x00no onnx\xff", "truncated": whole[: len(whole) // 2]}[damage])
    with pytest.raises(AbstainError, match=r"light.onnx is no readable ONNX probe \(\w+\): fetch it again"):
        OnnxProbe(light)
