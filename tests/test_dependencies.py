"""A DVC stage depends on all code that it may run: an edit makes the right stages stale, and no other."""

import ast
import re
from functools import cache
from pathlib import Path

import grimp
import pytest
import yaml

from abstain.config.params import Params
from tests.checkout import ROOT

FACE = "abstain"
"""The package itself hands names on to others; no code here asks it for one."""
FROM_FACE = re.compile(r"^ *(from abstain import|import abstain\b(?!\.))", re.MULTILINE)
BY_NAME = re.compile(r"\b(import_module|__import__|run_module|load_module|entry_points)\b")
CONFIG = "src/abstain/config/"
"""The one package that is no dependency: DVC records the values that it reads."""
STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]


@cache
def read_graph() -> grimp.ImportGraph:
    return grimp.build_graph("abstain", cache_dir=None)


def find_closure(module: str) -> set[str]:
    """Find the files that `python -m module` may run, wherever an import stands, and the data in their packages."""
    graph, modules, waiting = read_graph(), set(), {module, f"{module}.__main__"} & read_graph().modules
    while waiting:
        name = waiting.pop()
        modules.add(name)
        imported = graph.find_modules_directly_imported_by(name) if name != FACE else set()
        waiting |= ({name.rpartition(".")[0]} | imported) - modules - {""}
    paths = {ROOT / "src" / name.replace(".", "/") for name in modules}
    packages = {path for path in paths if path.is_dir()}
    files = {path / "__init__.py" if path in packages else path.with_suffix(".py") for path in paths}
    data = {file for path in packages for file in find_data(path)}
    return {str(file.relative_to(ROOT)) for file in files | data}


def find_data(package: Path) -> set[Path]:
    """Find the files of a package that are no code, also in its folders that are no packages."""
    folders = [path for path in package.iterdir() if path.is_dir() and not (path / "__init__.py").exists()]
    files = [*package.iterdir(), *(file for folder in folders for file in folder.rglob("*"))]
    return {file for file in files if file.is_file() and file.suffix not in (".py", ".pyc")}


def covers(dependency: str, file: str) -> bool:
    return file == dependency or file.startswith(f"{dependency}/")


def find_stale_stages(file: str) -> set[str]:
    return {name for name, stage in STAGES.items() if any(covers(dep, file) for dep in stage["deps"])}


def list_files(*folders: str) -> list[str]:
    files = (file for folder in folders for file in (ROOT / folder).rglob("*") if "__pycache__" not in file.parts)
    return [str(file.relative_to(ROOT)) for file in files if file.is_file()]


def find_sources(*folders: str, pattern: re.Pattern[str]) -> list[str]:
    files = [file for file in list_files(*folders) if file.endswith(".py")]
    assert files
    return [file for file in files if pattern.search((ROOT / file).read_text())]


@pytest.mark.parametrize("stage", STAGES)
def test_stage_dependencies_are_its_closure(stage: str) -> None:
    used = {file for file in find_closure(f"abstain.stages.{stage}") if not file.startswith(CONFIG)}
    listed = STAGES[stage]["deps"]
    code = [dep for dep in listed if dep.startswith("src/")]
    assert sorted(file for file in used if not any(covers(dep, file) for dep in listed)) == []
    assert [dep for dep in code if not any(covers(dep, file) for file in used)] == []
    assert all((ROOT / dep).is_dir() or dep.endswith("/__init__.py") for dep in code)
    assert len([dep for dep in code if (ROOT / dep).is_dir()]) <= 8


def test_code_imports_only_what_the_closure_sees() -> None:
    """It follows neither what `abstain/__init__.py` hands on nor what is imported by name."""
    assert find_sources("src", "tasks", "flows", pattern=FROM_FACE) == []
    assert find_sources("src/abstain", pattern=BY_NAME) == ["src/abstain/__init__.py"]


def test_stages_depend_on_no_benchmark_and_no_empty_file() -> None:
    listed = {dep for stage in STAGES.values() for dep in stage["deps"]}
    assert not any(dep.startswith(("benchmarks", "studies")) for dep in listed)
    files = [ROOT / dep for dep in listed if (ROOT / dep).is_file()]
    assert [file for file in files if file.stat().st_size == 0] == []  # DVC warns about each, each time


def test_config_imports_only_types() -> None:
    modules = {path.stem for path in (ROOT / CONFIG).glob("*.py")} - {"__init__"}
    used = {file for module in modules for file in find_closure(f"abstain.config.{module}")}
    core = {f"core/{name}.py" for name in ("__init__", "codes", "errors", "markdown", "text", "timestamps")}
    assert {file for file in used if not file.startswith(CONFIG)} == {
        f"src/abstain/{name}" for name in (*core, "__init__.py")
    }


def test_params_have_no_default_and_no_method_but_checks() -> None:
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


@pytest.mark.parametrize(
    ("folder", "unaffected"),
    [("src/abstain/learning", {"validate", "dataset", "features"}), ("src/abstain/reports", STAGES.keys() - {"report"})]
    + [(folder, STAGES.keys()) for folder in ("src/abstain_cli", "flows", "tasks", "docs")]
    + [
        (f"src/abstain/{name}", STAGES.keys())
        for name in ["config", "ingest", "release", "review", "sample", "serving"]
    ],
)
def test_edit_leaves_other_stages_fresh(folder: str, unaffected: set[str]) -> None:
    files = list_files(folder)
    assert files and {file: stale for file in files if (stale := find_stale_stages(file) & unaffected)} == {}
