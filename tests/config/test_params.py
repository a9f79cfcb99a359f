from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from abstain.config.params import CorrectnessTarget, load_params
from abstain.core.errors import AbstainError
from abstain.learning.estimators.correctness_targets import METRICS
from tests import checkout

SHIPPED: dict[str, dict[str, Any]] = yaml.safe_load(checkout.SHIPPED["params.yaml"])


def write(folder: Path, text: str) -> Path:
    file = folder / "params.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def write_changed(folder: Path, section: str, **values: Any) -> Path:
    return write(folder, yaml.safe_dump({**SHIPPED, section: {**SHIPPED[section], **values}}))


def test_load_params_shipped_file_is_read_whole(tmp_path: Path) -> None:
    params = load_params(write(tmp_path, checkout.SHIPPED["params.yaml"]))
    read = params.model_dump(mode="json", exclude={"split": {"holdout_frozen_at"}})
    frozen_at = SHIPPED["split"]["holdout_frozen_at"]
    assert {**read, "split": {**read["split"], "holdout_frozen_at": frozen_at}} == SHIPPED
    assert params.split.holdout_frozen_at.utcoffset().total_seconds() == 0


@pytest.mark.parametrize(
    ("section", "values", "problem"),
    [
        ("probe", {"seeds": 1}, r"unknown key 'probe.seeds': did you mean 'seed'\?$"),
        ("calibration", {"zzz": 1}, "unknown key 'calibration.zzz': valid: method$"),
        ("promotions", {}, r"unknown key 'promotions': did you mean 'promotion'\?$"),
    ],
)
def test_load_params_unknown_key_suggests_nearest(
    tmp_path: Path, section: str, values: dict[str, Any], problem: str
) -> None:
    with pytest.raises(AbstainError, match=problem):
        load_params(write(tmp_path, yaml.safe_dump({**SHIPPED, section: {**SHIPPED.get(section, {}), **values}})))


def test_load_params_missing_keys_are_named(tmp_path: Path) -> None:
    less = {name: value for name, value in SHIPPED["promotion"].items() if name not in ("erasure_margin", "max_ece")}
    rest = {name: keys for name, keys in SHIPPED.items() if name != "audits"}
    message = "params.yaml lacks audits.enabled, promotion.erasure_margin, promotion.max_ece, .* run `abstain init --upgrade`$"
    with pytest.raises(AbstainError, match=message):
        load_params(write(tmp_path, yaml.safe_dump({**rest, "promotion": less})))


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        *(("llm", "layer", value) for value in (0, 1.5)),
        ("llm", "site", "attention"),
        ("validation", "max_failed_fraction", 1.1),
        *(("labels", "correct_if", value) for value in ([], ["correct", "kind"])),
        ("labels", "thumb_weight", -0.1),
        ("split", "validation", 0),
        ("split", "holdout", 1),
        ("split", "holdout_frozen_at", "2026-10-15T00:00:00"),
        ("probe", "dropout", 1),
        ("probe", "huber_lambda", -1),
        ("probe", "patience", 0),
        ("threshold", "target", 1),
        ("threshold", "min_shown", 0),
        ("promotion", "bootstrap_confidence", 0),
    ],
)
def test_load_params_value_out_of_range_names_key(tmp_path: Path, section: str, key: str, value: object) -> None:
    with pytest.raises(AbstainError, match=f"params.yaml: {section}.{key}"):
        load_params(write_changed(tmp_path, section, **{key: value}))


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [("labels", "thumb_weight", 0), ("probe", "huber_lambda", 0), ("probe", "dropout", 0), ("promotion", "max_ece", 1)],
)
def test_load_params_closed_ends_are_valid(tmp_path: Path, section: str, key: str, value: float) -> None:
    assert getattr(getattr(load_params(write_changed(tmp_path, section, **{key: value})), section), key) == value


def test_load_params_unknown_target_or_repeated_kind_raises(tmp_path: Path) -> None:
    assert get_args(CorrectnessTarget) == ("label", *METRICS)
    with pytest.raises(AbstainError, match=r"regressors.targets.1: .*'label', 'cosine'.*$"):
        load_params(write_changed(tmp_path, "regressors", targets=["label", "bleu"]))
    with pytest.raises(AbstainError, match="regressors: .*kinds: linear is there twice: name it once"):
        load_params(write_changed(tmp_path, "regressors", kinds=["linear", "linear"]))


def test_load_params_equal_copies_raise(tmp_path: Path) -> None:
    assert (
        load_params(write_changed(tmp_path, "perturbation", selection="random", n_copies=3)).perturbation.n_copies == 3
    )
    with pytest.raises(AbstainError, match="perturbation: .*copies by entropy are all alike: set n_copies to 1"):
        load_params(write_changed(tmp_path, "perturbation", selection="entropy", n_copies=3))


def test_load_params_missing_file_raises(tmp_path: Path) -> None:
    with pytest.raises(AbstainError, match=r"params.yaml is missing: run this in the root of the project$"):
        load_params(tmp_path / "params.yaml")


def test_load_params_unreadable_file_raises_one_line(tmp_path: Path) -> None:
    with pytest.raises(AbstainError, match=f"{tmp_path} cannot be read: "):
        load_params(tmp_path)
    with pytest.raises(AbstainError, match=r"params.yaml is not valid YAML: ") as caught:
        load_params(write(tmp_path, "llm: {model: [\n"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "- a list\n", "llm: 3\n"])
def test_load_params_no_mapping_raises(tmp_path: Path, text: str) -> None:
    with pytest.raises(AbstainError, match="Input should be a valid dictionary"):
        load_params(write(tmp_path, text))
