"""What the repository promises as a whole: nothing in it points to something that is not there, or hides a dependency."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from abstain_tasks.server.automations import FLOWS
from tests.checkout import ROOT, SHIPPED, is_as_shipped, tracked_files

STAGE_FOLDER = ROOT / "src" / "abstain" / "stages"

# A pattern may not match its own source, which is scanned too.
NOWHERE = {
    r"pickle\.loads?\b": "it runs what it reads",
    r"allow_pickl[e]": "it runs what it reads",
    r"torch\.load\((?![^)]*weights_only=True)": "it runs what it reads, but with weights_only=True",
    r"\bjob[l]ib\b": "it runs what it reads",
    r"NotImplemented[E]rror": "half done",
    r"\b(TO[D]O|FIX[M]E)\b": "half done",
}
ABSOLUTE = r"(?<![\w.~$}])/(home|work|root|tmp)/"


def is_file(name: str) -> bool:
    return not (ROOT / name).is_symlink()


def matches(pattern: str, names: list[str]) -> list[str]:
    found = []
    for name in filter(is_file, names):
        content = (ROOT / name).read_bytes()
        if b"\0" in content:
            continue
        for number, line in enumerate(content.decode().split("\n"), 1):
            if re.search(pattern, line):
                found.append(f"{name}:{number}: {line.strip()[:100]}")
    return found


def dvc_file() -> dict:
    return yaml.safe_load((ROOT / "dvc.yaml").read_text())


def stages() -> dict[str, dict]:
    return dvc_file()["stages"]


def params() -> dict[str, dict]:
    return yaml.safe_load(SHIPPED["params.yaml"])


def paths_of(entries: list) -> list[str]:
    """An entry is a path, or a path with options."""
    return [entry if isinstance(entry, str) else next(iter(entry)) for entry in entries]


def test_class_name_stands_for_one_thing() -> None:
    found: dict[str, list[str]] = {}
    for name in tracked_files():
        if name.startswith(("src/", "tasks/", "flows/")) and name.endswith(".py"):
            for node in ast.parse((ROOT / name).read_text()).body:
                if isinstance(node, ast.ClassDef):
                    found.setdefault(node.name, []).append(name)
    assert {name: where for name, where in found.items() if len(where) > 1} == {}


def test_package_data_has_every_file_that_is_no_module() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["abstain"]
    package = ROOT / "src" / "abstain"
    installed = {path.relative_to(ROOT).as_posix() for pattern in declared for path in package.glob(pattern)}
    data = {name for name in tracked_files() if name.startswith("src/abstain/") and not name.endswith(".py")}
    assert data == installed and all(any(package.glob(pattern)) for pattern in declared)


def test_only_one_module_connects_to_file_systems() -> None:
    sources = [name for name in tracked_files() if name.startswith(("src/", "tasks/")) and name.endswith(".py")]
    assert {line.partition(":")[0] for line in matches(r"^\s*(import|from) (fsspec|s3fs)\b", sources)} == {
        "src/abstain/core/filesystem.py"
    }


def test_the_top_level_is_what_a_reader_expects() -> None:
    top = {name.partition("/")[0] for name in tracked_files()}
    expected = "flows tasks src docs tests data.dvc dvc.yaml params.yaml prefect.yaml Dockerfile README.md LICENSE"
    assert set(expected.split()) <= top


@pytest.mark.parametrize("pattern", NOWHERE)
def test_is_nowhere_in_the_repository(pattern: str) -> None:
    # What a dependency depends on is pinned by its name, whatever that is.
    pins = {"requirements.lock", "requirements-dev.lock", "benchmarks/polygraph/requirements.txt"}
    names = [name for name in tracked_files() if name not in pins]
    assert matches(pattern, names) == [], NOWHERE[pattern]


def test_the_patterns_find_what_they_are_for(tmp_path: Path) -> None:
    bad = ["pickle" + ".load(file)", "torch" + ".load(file)", "import job" + "lib", "raise NotImplemented" + "Error"]
    for line in [*bad, "# TO" + "DO", "# FIX" + "ME: x", "np.load(file, allow_" + "pickle=True)"]:
        assert any(re.search(pattern, line) for pattern in NOWHERE), line
    assert not any(re.search(pattern, "torch" + ".load(file, weights_only=True)") for pattern in NOWHERE)
    assert re.search(ABSOLUTE, '"/ho' + 'me/ann/data"')
    assert not re.search(ABSOLUTE, "https://example.org/home/page")


def test_no_machine_is_named_by_an_absolute_path() -> None:
    # An image has its own folders, a test says what a bad one is, and a project of one's own has its places.
    elsewhere = {"Dockerfile", "compose.yaml", *SHIPPED}
    names = [name for name in tracked_files() if not name.startswith("tests/") and name not in elsewhere]
    assert matches(ABSOLUTE, list(SHIPPED)) == [] or not is_as_shipped()
    assert matches(ABSOLUTE, names) == []


def test_every_stage_is_a_module_and_every_module_a_stage() -> None:
    modules = {file.parent.name for file in STAGE_FOLDER.glob("*/__main__.py")}
    assert modules == stages().keys()
    for name, stage in stages().items():
        assert stage["cmd"] == f"python -m abstain.stages.{name}"


def test_every_dependency_is_tracked_or_made_by_a_stage() -> None:
    made = {
        path for stage in stages().values() for kind in ("outs", "metrics") for path in paths_of(stage.get(kind, []))
    }
    names = tracked_files()
    for name, stage in stages().items():
        for path in stage["deps"]:
            known = (
                path in made or path.startswith("data/") or any(f == path or f.startswith(f"{path}/") for f in names)
            )
            assert known, f"{name}: {path}"


def test_a_stage_reads_only_parameters_that_it_depends_on() -> None:
    for name, stage in stages().items():
        declared = stage["params"]
        for read in re.findall(
            r"\bparams\.(\w+(?:\.\w+)?)", "".join(file.read_text() for file in (STAGE_FOLDER / name).glob("*.py"))
        ):
            assert read in declared or read.partition(".")[0] in declared, f"{name} reads {read}"


@pytest.mark.heavy
def test_every_parameter_has_a_reader() -> None:
    named = [name for stage in stages().values() for name in stage["params"]]
    for name in named:
        section, _, key = name.partition(".")
        assert section in params() and (not key or key in params()[section]), name
    outside = {  # of the DAG
        "promotion": ("src/abstain/release/*.py",),
        "privacy": ("src/abstain/ingest/privacy/*.py",),
        "shadow": ("src/abstain/release/*.py",),
        "retention": ("tasks/data/retention/*.py",),
        "monitoring": ("src/abstain/monitoring/*.py", "flows/*.py", "tasks/**/*.py"),
    }
    for section, keys in params().items():
        readers = "".join(file.read_text() for pattern in outside.get(section, ()) for file in ROOT.glob(pattern))
        for key in keys:
            read = section in outside and re.search(rf"\.{key}\b", readers)
            assert section in named or f"{section}.{key}" in named or read, f"{section}.{key}"


def soaked(file: Path) -> tuple[set[str], set[str], set[str]]:
    """The tests of a file that CI runs, those that only `make soak` runs, and the twins that these name."""
    tree = ast.parse(file.read_text())
    module = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    tests = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    in_ci, in_soak, twins = set(), set(), set()
    for test in tests:
        marks = [
            node for value in (*module, *test.decorator_list) for node in ast.walk(value) if isinstance(node, ast.Call)
        ]
        named = [
            ast.literal_eval(mark.keywords[0].value) for mark in marks if ast.unparse(mark.func) == "pytest.mark.soak"
        ]
        (in_soak if named else in_ci).add(test.name)
        twins |= set(named)
    return in_ci, in_soak, twins


@pytest.mark.heavy
def test_every_soak_test_has_a_short_twin_in_ci() -> None:
    found = [soaked(file) for file in (ROOT / "tests").rglob("test_*.py")]
    in_ci, in_soak, twins = (set().union(*parts) for parts in zip(*found, strict=True))
    assert in_soak and twins
    assert twins <= in_ci


def test_the_image_copies_what_is_there() -> None:
    copies = re.findall(r"^COPY (.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    ours = [copy for copy in copies if "--from=" not in copy]
    assert ours
    for copy in ours:
        *sources, _target = [word for word in copy.split() if not word.startswith("--")]
        for source in sources:
            assert (ROOT / source).exists(), copy


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", *(str(file.relative_to(ROOT)) for file in (ROOT / "docs").rglob("*.md"))]
)
def test_what_the_documents_point_to_is_there(name: str) -> None:
    text = (ROOT / name).read_text()
    links = [link for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) if "://" not in link]
    for link in links:
        assert ((ROOT / name).parent / link).exists(), link
    for path in re.findall(r"`((?:src|flows|tasks|tests|docs)/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path


def test_every_flow_with_a_schedule_is_watched() -> None:
    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    scheduled = {one["entrypoint"].partition(":")[2] for one in deployments if one.get("schedules")}
    assert set(FLOWS) == scheduled, "a failed or lost run of it would be noticed by nobody"


@pytest.mark.heavy
def test_every_deployment_is_a_flow_that_imports(tmp_path: Path) -> None:
    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    entrypoints = [deployment["entrypoint"] for deployment in deployments]
    assert entrypoints
    # In a process of its own: Prefect makes a folder where it is imported, and is slow to.
    load = "import sys; from prefect.flows import load_flow_from_entrypoint as load; [load(e) for e in sys.argv[1:]]"
    done = subprocess.run(
        [sys.executable, "-c", load, *entrypoints],
        cwd=ROOT,
        env=os.environ | {"PREFECT_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
