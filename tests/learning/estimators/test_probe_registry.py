import json
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import save_file

from abstain.config.params import Architecture
from abstain.core.errors import AbstainError
from abstain.learning.estimators.probe_registry import PROBES, load_probe, save_probe
from abstain.learning.estimators.probes.base import predict_logits
from tests.learning.estimators.builders import EVERY_KIND, PARAMS, D, build_probe, ragged


def test_probes_cover_every_architecture_lstm_without_huber() -> None:
    assert set(PROBES) == set(get_args(Architecture))
    assert PROBES["lstm_no_huber"].probe_class is PROBES["lstm"].probe_class
    assert PROBES["lstm_no_huber"].apply_fixed_params(PARAMS) == PARAMS.model_copy(update={"huber_lambda": 0.0})
    assert PROBES["lstm"].apply_fixed_params(PARAMS) == PARAMS


@pytest.mark.parametrize("architecture", EVERY_KIND)
def test_save_probe_round_trip(architecture: Architecture, tmp_path: Path) -> None:
    probe, rows = build_probe(architecture), ragged(3, 8, 1)
    save_probe(probe, tmp_path / "probe.safetensors")
    loaded = load_probe(tmp_path / "probe.safetensors")
    assert type(loaded) is type(probe)
    assert (loaded.architecture, loaded.width, loaded.training) == (architecture, D, False)
    assert loaded.hyperparameters == probe.hyperparameters
    assert torch.equal(predict_logits(loaded, rows), predict_logits(probe, rows))
    save_probe(loaded, tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "probe.safetensors").read_bytes()


UNKNOWN, OTHER_SHAPE = (
    {"probe": json.dumps({"architecture": name, "d": d})} for name, d in (("perceptron", D), ("linear", D + 1))
)


@pytest.mark.parametrize("damage", [b"", b"\x00none\xff" * 9, "truncated", None, UNKNOWN, OTHER_SHAPE])
def test_load_probe_missing_or_damaged_file_raises(damage: Any, tmp_path: Path) -> None:
    file, probe = tmp_path / "probe.safetensors", build_probe("linear")
    with pytest.raises(AbstainError, match=r"probe\.safetensors is missing"):
        load_probe(file)
    save_probe(probe, file)
    if damage is None or isinstance(damage, dict):
        save_file(probe.state_dict(), file, damage)
    else:
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2] if damage == "truncated" else damage)
    with pytest.raises(AbstainError, match=r"probe\.safetensors is no probe"):
        load_probe(file)
