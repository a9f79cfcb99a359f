from __future__ import annotations

import difflib

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from abstain.config.template import template
from abstain.config.yaml_editor import add_missing, edit, remove
from tests.checkout import ROOT, SHIPPED, is_as_shipped

PARAMS = template("params.yaml")
KEYS = [f"{section}.{key}" for section, keys in yaml.safe_load(PARAMS).items() for key in keys]


def without(names: set[str]) -> str:
    """The template without these keys; a section whose keys are all gone is gone, too."""
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


def test_edit_keeps_every_other_byte() -> None:
    assert edit(PARAMS, {}) == PARAMS
    changed = edit(PARAMS, {"gate": {"seed": 4}, "probe": {"export": "linear"}})
    lines = [line for line in difflib.ndiff(PARAMS.splitlines(), changed.splitlines()) if line[0] == "+"]
    assert [line.split("#")[0].split() for line in lines] == [["+", "export:", "linear"], ["+", "seed:", "4"]]


def test_edit_reaches_an_entry_of_a_list() -> None:
    assert edit("a:\n  - b: 1   # one\n    c: 2\n", {"a": {0: {"c": 3}}}) == "a:\n  - b: 1   # one\n    c: 3\n"


@pytest.mark.heavy
@settings(max_examples=10)
@given(names=st.sets(st.sampled_from(KEYS), max_size=8))
def test_add_missing_restores_keys_comments_and_order(names: set[str]) -> None:
    text, added = add_missing(without(names), PARAMS)
    assert list(filter(None, text.splitlines())) == list(filter(None, PARAMS.splitlines()))
    assert {name for name in names if name not in added} == {name for name in names if name.partition(".")[0] in added}


@pytest.mark.heavy
@settings(max_examples=20)
@given(names=st.sets(st.sampled_from(KEYS), max_size=8), whole=st.sampled_from([None, *yaml.safe_load(PARAMS)]))
def test_remove_leaves_every_other_line(names: set[str], whole: str | None) -> None:
    names |= {key for key in KEYS if whole and key.startswith(f"{whole}.")}
    assert list(filter(None, remove(PARAMS, names).splitlines())) == list(filter(None, without(names).splitlines()))


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("a:\n  # of x\n  x: 1   # one\n  # of y\n  y: 2\n", "a:\n  # of x\n  # of y\n  y: 2\n"),
        ("a:\n  x:\n    - 1\n    # two\n    - 2\n\n# of b\nb: {y: 1}\n", "\n# of b\nb: {y: 1}\n"),
        ("b:\n  y: 1\n\na:\n  x: [1,\n      2]\n", "b:\n  y: 1\n"),
        ("b:\n  y: 1\n\na:\n  x: 1\n\nc:\n  z: 1\n", "b:\n  y: 1\n\nc:\n  z: 1\n"),
        ("a: {x: 1, y: 2}   # both\nb:\n  x: 1\n", "a: {y: 2}         # both\nb:\n  x: 1\n"),
        ("a: {x: 1}\nb: null\nc: 1\n", "b: null\nc: 1\n"),
    ],
)
def test_remove_takes_a_key_in_any_layout(text: str, left: str) -> None:
    assert remove(text, ["a.x"]) == left


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_files_are_the_template_with_the_sample_s_differences(name: str) -> None:
    """Unless this clone has a project of its own."""
    if not is_as_shipped():
        pytest.skip("`abstain init` has been run here")
    assert (ROOT / name).read_text(encoding="utf-8") == SHIPPED[name]
