import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from abstain.config.params import Architecture
from abstain.core.errors import AbstainError
from abstain.learning.estimators.onnx_probe import OnnxProbe, copy_with_metadata, export_probe, measure_parity
from abstain.learning.estimators.probes.base import Probe, logits_to_confidence
from abstain.learning.estimators.training_rows import pad
from tests.conftest import ROOT
from tests.learning.estimators.builders import EVERY_KIND, D, build_probe, ragged, weights, write_mean_probe
from tests.tolerance import assert_near

METADATA = {"model": "tiny", "threshold": repr(0.1 + 0.2), "layout": "rag-chatml-v1", "größe": "ä\n<&>"}

every_kind = pytest.mark.parametrize("architecture", EVERY_KIND)


@pytest.fixture
def light(tmp_path: Path) -> Path:
    return write_mean_probe(tmp_path / "light.onnx", D, METADATA)


def export(probe: Probe, file: Path) -> OnnxProbe:
    export_probe(probe, file, METADATA)
    return OnnxProbe(file)


@every_kind
def test_onnx_probe_matches_torch_for_any_length(architecture: Architecture, tmp_path: Path) -> None:
    probe = build_probe(architecture)
    before = weights(probe)
    served = export(probe, tmp_path / "probe.onnx")
    assert torch.equal(weights(probe), before)
    assert (served.metadata, served.width) == ({**METADATA, "architecture": architecture}, D)
    for lengths in [(1,), (2,), (300,), (5, 3), (1, 1, 1), (7, 1, 300, 33), tuple(range(1, 40))]:
        rows = ragged(*lengths)
        with torch.inference_mode():
            expected = logits_to_confidence(probe(*pad(rows))).numpy()
        given = served.predict(rows)
        assert (given.shape, given.dtype) == ((len(lengths),), np.float32)
        assert np.abs(given - expected).max() <= 1e-5
        if len(lengths) > 30:
            assert np.ptp(given) > 0.3
    assert measure_parity(probe, served) <= 1e-5
    assert measure_parity(build_probe(architecture, seed=1), served) > 0.1


def test_copy_with_metadata_keeps_the_graph(light: Path, tmp_path: Path) -> None:
    stamped, again = tmp_path / "release" / "probe.onnx", tmp_path / "again.onnx"
    copy_with_metadata(light, stamped, {"version": "v1.2.0", "model": "other"})
    assert OnnxProbe(stamped).metadata == {**METADATA, "version": "v1.2.0", "model": "other"}
    graphs = [onnx.load(file).graph.SerializeToString(deterministic=True) for file in (light, stamped)]
    assert graphs[0] == graphs[1]
    rows = ragged(3, 50, 8)
    assert np.array_equal(OnnxProbe(light).predict(rows), OnnxProbe(stamped).predict(rows))
    copy_with_metadata(light, again, {"model": "other", "version": "v1.2.0"})
    assert again.read_bytes() == stamped.read_bytes()
    copy_with_metadata(stamped, stamped, {"version": "v1.0.0"})
    assert OnnxProbe(stamped).metadata["version"] == "v1.0.0"
    assert [path.name for path in stamped.parent.iterdir()] == ["probe.onnx"], "no scratch file is left"


@every_kind
def test_export_probe_is_reproducible_and_batch_invariant(architecture: Architecture, tmp_path: Path) -> None:
    one, other = tmp_path / "one.onnx", tmp_path / "other.onnx"
    served, rows = export(build_probe(architecture), one), ragged(*(n % 9 + 1 for n in range(20)))
    export(build_probe(architecture), other)
    assert one.read_bytes() == other.read_bytes()
    assert str(ROOT).encode() not in one.read_bytes()
    alone = np.concatenate([served.predict([row]) for row in rows])
    assert_near(served.predict(iter(rows)), alone)
    assert_near(served.predict(rows[::-1]), alone[::-1])


def test_onnx_probe_reads_metadata_and_non_contiguous_states(light: Path) -> None:
    served = OnnxProbe(light)
    assert (served.metadata, served.width) == (METADATA, D)
    (row,) = ragged(12)
    part = torch.cat([row, row + 1], 1)[::2, :D]
    assert not part.is_contiguous()
    np.testing.assert_allclose(served.predict([row, part]), [row.mean().sigmoid(), part.mean().sigmoid()], atol=1e-6)
    assert served.predict([]).shape == (0,)


def test_measure_parity_nan_stays_nan(light: Path) -> None:
    probe = build_probe("linear")
    with torch.no_grad():
        probe.head.bias.fill_(np.nan)
    assert np.isnan(measure_parity(probe, OnnxProbe(light)))


@pytest.mark.parametrize("content", [None, b"", b"\x00no onnx\xff", "truncated"])
def test_onnx_probe_unreadable_file_raises(light: Path, content: Any) -> None:
    whole = light.read_bytes()
    light.unlink()
    if content is not None:
        light.write_bytes(whole[: len(whole) // 2] if content == "truncated" else content)
    with pytest.raises(AbstainError, match=r"light\.onnx"):
        OnnxProbe(light)


@pytest.mark.parametrize(
    ("inputs", "shapes"),
    [
        ({"states": ["batch", "time", D], "lengths": ["batch"]}, "states (batch, time, 16), lengths (batch)"),
        ({"states": ["batch", "time", D]}, "states (batch, time, 16)"),
        ({"features": ["rows", 3]}, "features (rows, 3)"),
    ],
)
def test_onnx_probe_other_inputs_raise(tmp_path: Path, inputs: dict[str, list[str | int]], shapes: str) -> None:
    """A probe of an earlier version, which read padded batches, and other models."""
    file = write_mean_probe(tmp_path / "other.onnx", D, {}, inputs)
    with pytest.raises(AbstainError, match=rf"other\.onnx.* {re.escape(shapes)}"):
        OnnxProbe(file)
