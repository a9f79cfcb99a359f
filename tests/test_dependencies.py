"""A DVC stage depends on all code that it may run: an edit makes the right stages stale, and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml

from abstain.config.params import Params
from tests.closure import SourceTree
from tests.conftest import ROOT

FROM_FACE = re.compile(r"^ *(from abstain import|import abstain\b(?!\.))", re.MULTILINE)
CONFIG = "src/abstain/config/"
"""The one package that is no dependency: DVC records the values that it reads."""
TREE = SourceTree(ROOT, ROOT / "src")
STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]


def covers(dependency: str, file: str) -> bool:
    return file == dependency or file.startswith(f"{dependency}/")


def stale_after_an_edit_of(file: str) -> set[str]:
    return {name for name, stage in STAGES.items() if any(covers(dep, file) for dep in stage["deps"])}


def files_under(*folders: str) -> list[str]:
    files = (file for folder in folders for file in (ROOT / folder).rglob("*") if "__pycache__" not in file.parts)
    return [str(file.relative_to(ROOT)) for file in files if file.is_file()]


@pytest.mark.heavy
@pytest.mark.parametrize("stage", STAGES)
def test_stage_closure_lies_inside_its_dependencies(stage: str) -> None:
    needed = {file for file in TREE.closure(f"abstain.stages.{stage}") if not file.startswith(CONFIG)}
    listed = STAGES[stage]["deps"]
    assert sorted(file for file in needed if not any(covers(dep, file) for dep in listed)) == []


@pytest.mark.heavy
@pytest.mark.parametrize("stage", STAGES)
def test_stage_lists_no_source_that_it_does_not_use(stage: str) -> None:
    used = TREE.closure(f"abstain.stages.{stage}")
    listed = [dep for dep in STAGES[stage]["deps"] if dep.startswith("src/")]
    assert [dep for dep in listed if not any(covers(dep, file) for file in used)] == []


def test_code_imports_nothing_from_the_face_of_the_package() -> None:
    """The closure of a stage does not follow what `abstain/__init__.py` hands on."""
    files = [file for file in files_under("src", "tasks", "flows") if file.endswith(".py")]
    assert files and [file for file in files if re.search(FROM_FACE, (ROOT / file).read_text())] == []


def test_no_stage_depends_on_what_stands_beside_the_product() -> None:
    assert {
        dep for stage in STAGES.values() for dep in stage["deps"] if dep.startswith(("benchmarks", "studies"))
    } == set()


def test_no_dependency_is_an_empty_file() -> None:
    listed = {dep for stage in STAGES.values() for dep in stage["deps"] if (ROOT / dep).is_file()}
    assert [dep for dep in sorted(listed) if (ROOT / dep).stat().st_size == 0] == []  # DVC warns about each, each time


def test_config_imports_no_code_of_ours_but_types() -> None:
    modules = {path.stem for path in (ROOT / CONFIG).glob("*.py")} - {"__init__"}
    used = {file for module in modules for file in TREE.closure(f"abstain.config.{module}")}
    assert {file for file in used if not file.startswith(CONFIG)} == {
        "src/abstain/__init__.py",
        "src/abstain/core/__init__.py",
        "src/abstain/core/codes.py",
        "src/abstain/core/errors.py",
        "src/abstain/core/markdown.py",
        "src/abstain/core/text.py",
        "src/abstain/core/timestamps.py",
    }


def test_config_gives_and_computes_no_parameter() -> None:
    """A parameter's value is what params.yaml says: no default, no method but checks that return what they were given."""
    sections = {field.annotation for field in Params.model_fields.values()} | {Params}
    with_default = [
        f"{one.__name__}.{key}"
        for one in sections
        for key, field in one.model_fields.items()
        if not field.is_required()
    ]
    assert with_default == []
    classes = [
        node for node in ast.parse((ROOT / CONFIG / "params.py").read_text()).body if isinstance(node, ast.ClassDef)
    ]
    methods = [node for one in classes for node in one.body if isinstance(node, ast.FunctionDef)]
    assert methods
    for method in methods:
        assert [ast.unparse(one) for one in method.decorator_list] == ["model_validator(mode='after')"], method.name
        returned = {ast.unparse(node) for node in ast.walk(method) if isinstance(node, ast.Return)}
        assert returned == {"return self"}, method.name


@pytest.mark.parametrize("file", ["core/contracts.py", "stages/shared/artifacts.py"])
def test_edit_of_shared_code_makes_all_stale(file: str) -> None:
    assert stale_after_an_edit_of(f"src/abstain/{file}") == STAGES.keys()


def test_edit_of_learning_makes_no_earlier_stage_stale() -> None:
    files = files_under("src/abstain/learning")
    assert len(files) > 20
    assert not {stage for file in files for stage in stale_after_an_edit_of(file)} & {"validate", "dataset", "features"}


@pytest.mark.parametrize("stage", STAGES)
def test_stage_depends_on_folders_and_their_doors(stage: str) -> None:
    code = [dep for dep in STAGES[stage]["deps"] if dep.startswith("src/")]
    assert all((ROOT / dep).is_dir() or dep.endswith("/__init__.py") for dep in code)
    assert len([dep for dep in code if (ROOT / dep).is_dir()]) <= 8


def test_edit_of_document_parsing_makes_validate_stale() -> None:
    assert stale_after_an_edit_of("src/abstain/knowledge/documents/reader.py") == {"validate"}
    assert stale_after_an_edit_of("src/abstain/knowledge/documents/html_tables.py") == {"validate"}


def test_edit_of_a_prompt_layout_makes_its_readers_stale() -> None:
    readers = {"features", "nll_features", "export_onnx", "ablate", "evaluate"}
    assert stale_after_an_edit_of("src/abstain/llm/engine/layouts/rag-chatml-v1.yaml") == readers


def test_edit_outside_the_dag_makes_nothing_stale() -> None:
    package = "config ingest release review sample serving study"
    outside = files_under(
        "src/abstain_cli", "flows", "tasks", "docs", *(f"src/abstain/{name}" for name in package.split())
    )
    assert len(outside) > 100
    assert {file: stale for file in outside if (stale := stale_after_an_edit_of(file))} == {}
    assert stale_after_an_edit_of("requirements.lock") == set()


def test_edit_of_the_report_makes_only_report_stale() -> None:
    files = files_under("src/abstain/reports")
    assert "src/abstain/reports/page.html" in files
    assert {file: stale_after_an_edit_of(file) for file in files} == {file: {"report"} for file in files}


PACKAGE = {
    "__init__.py": "",
    "leaf.py": "",
    "chain.py": "def run():\n    from app import leaf",
    "words.yaml": "",
    "pack/__init__.py": "import app.leaf",
    "pack/part.py": "",
    "pack/page.html": "",
    "pack/rows/row.html": "",
}
PACK = {"pack/__init__.py", "leaf.py"}


@pytest.mark.parametrize(
    ("main", "expected"),
    [
        ("import json, other.thing\nfrom pathlib import Path", set()),
        ("import app.leaf", {"leaf.py"}),
        ("from app import leaf as x", {"leaf.py"}),
        ("from app.leaf import x", {"leaf.py"}),
        ("from . import leaf", {"leaf.py"}),
        ("from .leaf import x", {"leaf.py"}),
        ("def run():\n    if True:\n        from app.leaf import x", {"leaf.py"}),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import app.leaf", {"leaf.py"}),
        ("import app.chain", {"chain.py", "leaf.py"}),
        ("from app.pack import part", {*PACK, "pack/part.py"}),
        ("import app.pack.part", {*PACK, "pack/part.py"}),
        ("import importlib\nimportlib.import_module('app.leaf')", {"leaf.py"}),
        ("from importlib import import_module\nimport_module('.pack', 'app')", PACK),
        ("run = 'app.leaf:start'", {"leaf.py"}),
        ("command = ['python', '-m', 'app.leaf']", {"leaf.py"}),
        ("from pathlib import Path\nhere = Path(__file__).parent", {"words.yaml"}),
        ("from importlib import resources\nresources.files(__package__)", {"words.yaml"}),
        (
            "from importlib.resources import files\nfiles('app.pack')",
            {*PACK, "words.yaml", "pack/page.html", "pack/rows/row.html"},
        ),
    ],
)
def test_closure_holds_what_a_module_may_run_or_read(tmp_path: Path, main: str, expected: set[str]) -> None:
    for name, text in {**PACKAGE, "main.py": main}.items():
        file = tmp_path / "src" / "app" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    found = SourceTree(tmp_path, tmp_path / "src").closure("app.main")
    assert found == {f"src/app/{name}" for name in ("__init__.py", "main.py", *expected)}


@pytest.mark.parametrize("call", ["import_module(f'app.{x}')", "importlib.import_module(x)", "__import__(x)"])
def test_closure_refuses_an_import_it_cannot_follow(tmp_path: Path, call: str) -> None:
    (tmp_path / "main.py").write_text(call)
    with pytest.raises(ValueError, match=r"main\.py:1: imports a name that is made at run time"):
        SourceTree(tmp_path, tmp_path).closure("main")
