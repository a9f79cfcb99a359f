import difflib

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from abstain.config.template import read_template
from abstain.config.yaml_editor import add_missing_keys, update_yaml
from tests.checkout import ROOT, SHIPPED, is_as_shipped

PARAMS = read_template("params.yaml")
KEYS = [f"{section}.{key}" for section, keys in yaml.safe_load(PARAMS).items() for key in keys]


def remove_keys(names: set[str]) -> str:
    """Remove keys from the template, and each section without keys."""
    kept, section = [], ""
    for line in PARAMS.splitlines(keepends=True):
        if line[0].isalpha():
            section = line.partition(":")[0]
            if all(f"{section}.{key}" in names for key in yaml.safe_load(PARAMS)[section]):
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


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_files_equal_template_with_sample_changes(name: str) -> None:
    if not is_as_shipped():
        pytest.skip("`abstain init` has been run here")
    assert (ROOT / name).read_text(encoding="utf-8") == SHIPPED[name]
