import json
from pathlib import Path
from typing import get_args

import pytest
import torch
from safetensors.torch import save_file

from abstain.config.params import Architecture
from abstain.core.errors import AbstainError
from abstain.learning.estimators.probe_registry import PROBES, load_probe, save_probe
from abstain.learning.estimators.probes.base import predict_logits
from tests.learning.estimators.builders import EVERY_KIND, PARAMS, D, build_probe, ragged


def test_probes_cover_every_architecture() -> None:
    assert set(PROBES) == set(get_args(Architecture))


def test_lstm_no_huber_is_lstm_without_huber_term() -> None:
    assert PROBES["lstm_no_huber"].probe_class is PROBES["lstm"].probe_class
    assert PROBES["lstm_no_huber"].apply_fixed_params(PARAMS) == PARAMS.model_copy(update={"huber_lambda": 0.0})
    assert PROBES["lstm"].apply_fixed_params(PARAMS) == PARAMS


@pytest.mark.parametrize("architecture", [name for name in PROBES if name != "linear"])
def test_probe_spec_describe_has_hyperparameters(architecture: Architecture) -> None:
    description = PROBES[architecture].describe(PARAMS)
    assert description.endswith(f"dropout {PARAMS.dropout:g}, seed {PARAMS.seed}")
    assert (f"{PARAMS.huber_lambda:g} x Huber" in description) == (architecture != "lstm_no_huber")


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


def test_load_probe_missing_file_raises(tmp_path: Path) -> None:
    with pytest.raises(AbstainError, match=r"probe\.safetensors is missing"):
        load_probe(tmp_path / "probe.safetensors")


@pytest.mark.parametrize("damage", ["empty", "garbage", "truncated", "undescribed", "unknown", "of another shape"])
def test_load_probe_damaged_file_raises(damage: str, tmp_path: Path) -> None:
    file = tmp_path / "probe.safetensors"
    probe = build_probe("linear")
    save_probe(probe, file)
    if damage in ("empty", "garbage", "truncated"):
        whole = file.read_bytes()
        file.write_bytes({"empty": b"", "garbage": b"\x00none\xff" * 9, "truncated": whole[: len(whole) // 2]}[damage])
    else:
        described = {
            "undescribed": None,
            "unknown": {"architecture": "perceptron", "d": D},
            "of another shape": {"architecture": "linear", "d": D + 1},
        }[damage]
        save_file(probe.state_dict(), file, {"probe": json.dumps(described)} if described else None)
    with pytest.raises(AbstainError, match=r"probe\.safetensors is no probe"):
        load_probe(file)
