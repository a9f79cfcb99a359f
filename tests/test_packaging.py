"""What is installed, locked and imported: no package of the development, and no slow library before it is needed."""

import ast
import json
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from abstain.sample.shipped import MARK
from tests.checkout import ROOT, copy_checkout, tracked_files
from tests.conftest import Project, new_project

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
RUNTIME: list[str] = PROJECT["project"]["dependencies"]
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
GROUPS: dict[str, list[str]] = PROJECT["dependency-groups"]
OURS = {"abstain", "abstain_cli", "abstain_flows", "abstain_tasks"}
OF_THE_INTEGRATOR = {"langchain_core", "llama_index", "nemoguardrails"}
"""Frameworks into which a gateway's helper is plugged: who calls it has them."""
IN_NO_LOCK = {"gemma"}
"""Extras with terms of their own."""
HEAVY = (
    "dvc great_expectations matplotlib onnxruntime pandas prefect presidio_analyzer scipy sklearn torch transformers"
)
COMMANDS = [f"abstain_cli.{file.stem}" for file in (ROOT / "src" / "abstain_cli").glob("[!_]*.py")]


def names_of(*groups: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(requirement).name) for group in groups for requirement in group}


def imports(tree: ast.AST, *, everywhere: bool) -> Iterator[str]:
    """The top-level names of the modules that a file imports: `everywhere`, or when it is imported itself and does not
    answer their absence."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").partition(".")[0]
        elif everywhere or not is_optional(node):
            yield from imports(node, everywhere=everywhere)


def is_optional(node: ast.AST) -> bool:
    """Whether an import in `node` may be of what is not installed."""
    match node:
        case ast.If():
            return ast.unparse(node.test) == "TYPE_CHECKING"
        case ast.Try():
            return any(handler.type and "ImportError" in ast.unparse(handler.type) for handler in node.handlers)
        case _:
            return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def missing(allowed: set[str], *, everywhere: bool) -> set[str]:
    """`file: module` of each import of the product that no distribution of `allowed` provides."""
    provided = packages_distributions()
    found = set()
    for name in tracked_files():
        if not (name.startswith(("src/", "flows/", "tasks/")) and name.endswith(".py")):
            continue
        for module in imports(ast.parse((ROOT / name).read_text()), everywhere=everywhere):
            if module in sys.stdlib_module_names or module in OURS | OF_THE_INTEGRATOR:
                continue
            if allowed.isdisjoint(canonicalize_name(distribution) for distribution in provided.get(module, ())):
                found.add(f"{name}: {module}")
    return found


def locked(name: str) -> dict[str, set[str]]:
    """The versions in a lock file, by distribution: several where they depend on the Python version."""
    versions: dict[str, set[str]] = {}
    for line in (ROOT / name).read_text().splitlines():
        distribution, _, version = line.partition(" ;")[0].strip().partition("==")
        versions.setdefault(canonicalize_name(distribution), set()).add(version)
    return versions


@pytest.mark.heavy
def test_imports_are_of_a_dependency_or_an_extra() -> None:
    """Those of an extra, and of the development, are not needed to import a module."""
    assert missing(names_of(RUNTIME, *EXTRAS.values()), everywhere=True) == set()
    assert missing(names_of(RUNTIME), everywhere=False) == set()


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("modules", "loaded"),
    [
        ([*COMMANDS, "abstain_tasks.server.__main__", "abstain_tasks.training.plan"], []),
        (["abstain.serving.gate", "abstain.ingest.pipeline.run"], ["onnxruntime", "torch"]),
        (["abstain.stages.validate.__main__", "abstain.stages.train_fusion.__main__"], ["pandas"]),
    ],
    ids=["commands", "gate", "stages"],
)
def test_import_loads_only_what_runs(modules: list[str], loaded: list[str]) -> None:
    code = (
        "import importlib, sys; [importlib.import_module(name) for name in sys.argv[2:]]; "
        "print(*(name for name in sys.argv[1].split() if name in sys.modules))"
    )
    command = [sys.executable, "-c", code, HEAVY, *modules]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == loaded


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("requirements.lock", [RUNTIME]),
        (
            "requirements-dev.lock",
            [RUNTIME, *GROUPS.values(), *(EXTRAS[extra] for extra in EXTRAS.keys() - IN_NO_LOCK)],
        ),
    ],
)
def test_lock_has_a_version_of_each_requirement(name: str, groups: list[list[str]]) -> None:
    versions = locked(name)
    for requirement in map(Requirement, chain.from_iterable(groups)):
        found = versions[canonicalize_name(requirement.name)]
        assert found and all(requirement.specifier.contains(version) for version in found), requirement


def test_runtime_lock_is_the_part_without_dev_packages() -> None:
    runtime, dev = locked("requirements.lock"), locked("requirements-dev.lock")
    assert {name: dev.get(name) for name in runtime} == runtime
    tools = names_of(*GROUPS.values()) - {"gto"}  # of DVC, too
    assert tools.isdisjoint(runtime) and names_of(EXTRAS["s3"], EXTRAS["postgres"]).isdisjoint(runtime)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that holds the project's wheel, and finds its dependencies, but no checkout."""
    folder = tmp_path_factory.mktemp("installed")
    copy_checkout(folder / "source")
    venv, uv = folder / "venv", Path(sys.executable).with_name("uv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    options = ["-q", "--no-deps", "--no-build-isolation"]
    packages = Path(sysconfig.get_path("purelib"))
    site = venv / packages.relative_to(sys.prefix)
    (site / "dependencies.pth").write_text(f"{packages}\n")
    subprocess.run([uv, "pip", "install", *options, "--python", venv, folder / "source"], check=True)
    shutil.rmtree(folder / "source")
    return venv / "bin"


def run_installed(project: Project, programs: Path, *arguments: str) -> str:
    return project.run("env", "--unset=PYTHONPATH", f"PATH={programs}:/usr/bin:/bin", "abstain", *arguments)


@pytest.mark.slow
def test_wheel_starts_a_project_and_holds_nothing_else(installed: Path, tmp_path: Path) -> None:
    (site,) = (installed.parent / "lib").glob("python*/site-packages")
    assert {path.name for path in site.iterdir() if (path / "__init__.py").is_file()} == OURS
    project = new_project(tmp_path)
    run_installed(project, installed, "init")
    assert not (project.root / "params.yaml").read_text().startswith(MARK)


@pytest.mark.slow
@pytest.mark.soak(twin="test_wheel_starts_a_project_and_holds_nothing_else")
def test_wheel_scores_an_answer(installed: Path, trained: tuple[Project, str]) -> None:
    project, _ = trained
    flags = ["--question", "What does the card cost?", "--answer", "Nothing.", "--context", "The card is free."]
    decision = json.loads(run_installed(project, installed, "score", *flags))
    assert decision["decision"] in ("show", "abstain") and decision["version"] == "v1.0.0"
