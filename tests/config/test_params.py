import difflib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from abstain.config.params import load_params
from abstain.config.settings import Settings, load_settings
from abstain.config.template import read_template
from abstain.config.yaml_editor import add_missing_keys, update_yaml
from abstain.core.errors import AbstainError
from abstain.learning.estimators.correctness_targets import METRICS
from tests import checkout
from tests.checkout import ROOT, is_as_shipped

TARGETS = ("label", *METRICS)
SHIPPED: dict[str, dict[str, Any]] = yaml.safe_load(checkout.SHIPPED["params.yaml"])


def write(folder: Path, text: str) -> Path:
    file = folder / "params.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def write_changed(folder: Path, section: str, **values: Any) -> Path:
    return write(folder, yaml.safe_dump({**SHIPPED, section: {**SHIPPED.get(section, {}), **values}}))


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
        ("perturbation", {"selection": "entropy", "n_copies": 3}, "copies by entropy are all alike: set n_copies to 1"),
        ("regressors", {"kinds": ["linear", "linear"]}, "kinds: linear is there twice: name it once"),
        (
            "regressors",
            {"targets": ["label", "bleu"]},
            f"regressors.targets.1: .*{', '.join(map(repr, TARGETS[:-1]))} or {TARGETS[-1]!r}.*$",
        ),
    ],
)
def test_load_params_invalid_section_has_a_remedy(tmp_path: Path, section: str, values: dict, problem: str) -> None:
    with pytest.raises(AbstainError, match=problem):
        load_params(write_changed(tmp_path, section, **values))


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
        ("probe", "huber_delta", 0),
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
    [
        *(("labels", "thumb_weight", 0), ("probe", "huber_lambda", 0), ("probe", "dropout", 0)),
        *(("promotion", "max_ece", 1), ("regressors", "targets", TARGETS), ("perturbation", "n_copies", 3)),
    ],
)
def test_load_params_closed_ends_are_valid(tmp_path: Path, section: str, key: str, value: object) -> None:
    file = write_changed(tmp_path, section, **{key: list(value) if isinstance(value, tuple) else value})
    assert getattr(getattr(load_params(file), section), key) == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "params.yaml is missing: run this in the root of the project$"),
        ("llm: {model: [\n", "params.yaml is not valid YAML: "),
        *((text, "Input should be a valid dictionary") for text in ("", "- a list\n", "llm: 3\n")),
    ],
)
def test_load_params_unreadable_file_raises_one_line(tmp_path: Path, text: str | None, problem: str) -> None:
    with pytest.raises(AbstainError, match=rf"^.*{problem}.*\Z"):
        load_params(tmp_path / "params.yaml" if text is None else write(tmp_path, text))
    with pytest.raises(AbstainError, match=f"{tmp_path} cannot be read: "):
        load_params(tmp_path)


PARAMS = read_template("params.yaml")
SECTIONS = yaml.safe_load(PARAMS)
KEYS = [f"{section}.{key}" for section, keys in SECTIONS.items() for key in keys]


def remove_keys(names: set[str]) -> str:
    """Remove keys from the template, and each section without keys."""
    kept, section = [], ""
    for line in PARAMS.splitlines(keepends=True):
        if line[0].isalpha():
            section = line.partition(":")[0]
            if all(f"{section}.{key}" in names for key in SECTIONS[section]):
                continue
        if line.startswith("  ") and f"{section}.{line.strip().partition(':')[0]}" in names:
            continue
        kept.append(line)
    return "".join(kept)


def test_update_yaml_keeps_other_bytes() -> None:
    assert update_yaml(PARAMS, {}) == PARAMS
    changed = update_yaml(PARAMS, {"promotion": {"seed": 4}, "probe": {"export": "linear"}})
    lines = [line for line in difflib.ndiff(PARAMS.splitlines(), changed.splitlines()) if line[0] == "+"]
    assert [line.split("#")[0].split() for line in lines] == [["+", "export:", "linear"], ["+", "seed:", "4"]]


def test_update_yaml_edits_list_entry() -> None:
    assert update_yaml("a:\n  - b: 1   # one\n    c: 2\n", {"a": {0: {"c": 3}}}) == "a:\n  - b: 1   # one\n    c: 3\n"


@pytest.mark.heavy
@settings(max_examples=10)
@given(names=st.sets(st.sampled_from(KEYS), max_size=8))
def test_add_missing_keys_restores_template_order(names: set[str]) -> None:
    text, added = add_missing_keys(remove_keys(names), PARAMS)
    assert list(filter(None, text.splitlines())) == list(filter(None, PARAMS.splitlines()))
    assert {name for name in names if name not in added} == {name for name in names if name.partition(".")[0] in added}


@pytest.mark.parametrize("name", checkout.SHIPPED)
def test_shipped_files_equal_template_with_sample_changes(name: str) -> None:
    if not is_as_shipped():
        pytest.skip("`abstain init` has been run here")
    assert (ROOT / name).read_text(encoding="utf-8") == checkout.SHIPPED[name]


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in Settings.model_fields:
        monkeypatch.delenv(f"ABSTAIN_{name.upper()}", raising=False)
    for name in ("ABSTAIN_FEATURES", "ABSTAIN_ORIGIN"):
        monkeypatch.delenv(name, raising=False)


def test_load_settings_bare_environment_gives_defaults(tmp_path: Path) -> None:
    settings = load_settings()
    assert (settings.device, settings.dtype, settings.batch_tokens, settings.origin) == ("auto", "auto", 2048, None)
    assert (settings.runner, settings.workers, settings.dask_scheduler) == ("local", 1, None)
    assert settings.models == tmp_path / ".abstain" / "models"
    assert settings.features == str(tmp_path / ".abstain" / "features")
    assert list(tmp_path.iterdir()) == []


def test_load_settings_reads_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    values = {"HOME": str(tmp_path / "h"), "DEVICE": "cuda:1", "DTYPE": "bfloat16", "BATCH_TOKENS": "512"}
    for name, value in values.items():
        monkeypatch.setenv(f"ABSTAIN_{name}", value)
    settings = load_settings()
    assert (settings.device, settings.dtype, settings.batch_tokens) == ("cuda:1", "bfloat16", 512)
    for value, features in {"": str(tmp_path / "h/features"), "f": str(tmp_path / "f"), "/mnt/f": "/mnt/f"}.items():
        monkeypatch.setenv("ABSTAIN_FEATURES", value)
        assert load_settings().features == features
    monkeypatch.setenv("ABSTAIN_FEATURES", "s3://b/prefix")
    assert load_settings().features == "s3://b/prefix"
    assert Settings(features_url="memory://f").features == "memory://f"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("BATCH_TOKENS", value) for value in ("0", "many")),
        *(("DTYPE", value) for value in ("float16", "")),
        *(("RUNNER", "ray"), ("WORKERS", "0")),
    ],
)
def test_load_settings_invalid_value_names_variable(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"ABSTAIN_{name}", value)
    with pytest.raises(AbstainError, match=rf"^environment variable ABSTAIN_{name}: .*\Z"):
        load_settings()
