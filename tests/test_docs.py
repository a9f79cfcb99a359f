"""The documentation: what its generated parts and examples hold, what a page may load, and the size of the README.

`make docs` itself refuses broken links and pages without a place in the navigation.
"""

import doctest
import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest
from pydantic import BaseModel
from typer.main import get_command

import abstain
from abstain.config.params import Params
from abstain.config.settings import Settings
from abstain_cli.app import app
from tests.checkout import ROOT, tracked_files

LOADS = (
    "<script defer src=//cdn.example.org/a.js></script>",
    '<link rel="stylesheet" href="https://fonts.example.org/css">',
    '<link href="https://fonts.example.org" rel="preconnect">',
    '<img alt="badge" src="https://img.example.org/badge.svg">',
    "<style>@import 'https://fonts.example.org/css';</style>",
    "<style>@font-face{src:url(https://fonts.example.org/a.woff2)}</style>",
    '<pre class="mermaid"><code>flowchart LR</code></pre>',
)
LOCAL = (
    '<a href="https://example.org">a page</a>',
    '<script src="../assets/bundle.js"></script>',
    "<p>the address https://example.org/a.js</p>",
)


MODULES = [
    name.removeprefix("src/").removesuffix(".py").replace("/", ".")
    for name in tracked_files()
    if name.startswith("src/") and name.endswith(".py") and "\n        >>> " in (ROOT / name).read_text()
]
"""Those with examples."""


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    """The module as mkdocs loads it: its folder is on the path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs" / "generate"))
        return importlib.import_module("hooks")


def rows_of(part: str) -> dict[str, str]:
    """The rows of the tables of a generated part, by the code in their first cell."""
    return {row[1]: row[0] for row in re.finditer(r"^\| `([^`]+)` \|.*$", part, re.MULTILINE)}


def test_parameters_every_key_has_value_and_type(hooks: ModuleType) -> None:
    sections = hooks.GENERATED["parameters"]().split("\n## ")
    found = {section.split("\n")[0].removeprefix("## "): rows_of(section) for section in sections}
    assert list(found) == list(Params.model_fields)
    for name, field in Params.model_fields.items():
        assert isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        assert list(found[name]) == list(field.annotation.model_fields)
    assert found["threshold"]["target"].startswith("| `target` | `0.1` | number, above 0, below 1 | maximum error rate")
    assert "`precision`, `error_rate`" in found["threshold"]["metric"]
    assert "time with a zone, or `null`" in found["split"]["holdout_from"]


def test_settings_every_variable_has_a_row(hooks: ModuleType) -> None:
    found = rows_of(hooks.GENERATED["settings"]())
    assert len(found) == len(Settings.model_fields) and "ABSTAIN_FEATURES" in found
    assert "integer, at least 1 | `2048`" in found["ABSTAIN_BATCH_TOKENS"]


def test_commands_every_command_has_its_options(hooks: ModuleType) -> None:
    part = hooks.GENERATED["commands"]()
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        for word, each in getattr(command, "commands", {"": command}).items():
            section = part.split(f"## abstain {name} {word}".rstrip() + "\n")[1].split("\n## ")[0]
            for parameter in each.params:
                assert parameter.param_type_name == "argument" or f"`{parameter.opts[0]}" in section


def test_generated_parts_are_those_that_pages_name(hooks: ModuleType) -> None:
    pages = [file.read_text() for file in (ROOT / "docs").rglob("*.md")]
    assert sorted(name for page in pages for name in hooks.MARK.findall(page)) == sorted(hooks.GENERATED)


def test_remote_loads_of_another_host_are_found(hooks: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("".join(LOCAL))
    for number, load in enumerate(LOADS):
        (tmp_path / f"b{number}.html").write_text(f"{LOCAL[0]}\n{load}")
    found = [load.partition(":")[0] for load in hooks.remote_loads(tmp_path)]
    assert found == [f"b{number}.html" for number in range(len(LOADS))]


@pytest.mark.parametrize("module", MODULES)
def test_examples_give_the_output_that_they_show(module: str) -> None:
    outcome = doctest.testmod(importlib.import_module(module))
    assert outcome.attempted and not outcome.failed


def test_public_names_are_documented() -> None:
    page = (ROOT / "docs" / "reference" / "api" / "public.md").read_text()
    assert set(re.findall(r"`(\w+)`", page.partition("| --- |")[2])) >= set(abstain.__all__)


def test_readme_is_short_and_airy() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120 and max(map(len, lines)) <= 120
    assert sum(not line for line in lines) >= len(lines) / 4
