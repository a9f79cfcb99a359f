"""What the repository promises as a whole: nothing in it points to something that is not there, or hides a dependency."""

import ast
import copy
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import yaml

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.reasons import Reason
from abstain_tasks.server.automations import FLOWS
from tests.checkout import ROOT, SHIPPED, is_as_shipped, tracked_files

STAGE_FOLDER = ROOT / "src" / "abstain" / "stages"
STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
DEPLOYMENTS = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]

# A pattern may not match its own source, which is scanned too.
RUNS_WHAT_IT_READS = r"pickle\.loads?\b|allow_pickl[e]|torch\.load\((?![^)]*weights_only=True)|\bjob[l]ib\b"
HALF_DONE = r"NotImplemented[E]rror|\b(TO[D]O|FIX[M]E)\b"
FUNCTION_WORDS = re.compile(
    "_*(one|at|found|known|asked|told|said|given|own|kept|of|its|theirs|wanted|judged|drawn|taken|made|most|others|why|"
    "apart|beside)_*"
)
"""Words that name nothing: as variables or parameters they leave the reader to find out what there is."""
IRREGULAR = "told|found|kept|given|said|made|taken|drawn|begun|shown|known|held|left|chosen|written|seen|sought"
VERBS = "embed|exceed|feed|need|proceed|seed|shed"
NO_VERB = re.compile(rf"_*(?!({VERBS})$)([a-z]+ed|{IRREGULAR})|_*of(_\w+)?|\w+_of_*")
"""Functions are no lone participles, and do not begin or end with `of`."""
PRODUCT = ("src/", "tasks/", "flows/", "benchmarks/", "studies/")
TEST_NAME_LENGTH = 60
FIELDS_OF_RECORDS = {"studies/nll_perturbation/declared.py: at"}
"""Fields whose names stand in files that are written: the configuration of an experiment."""
ABSOLUTE = r"(?<![\w.~$}])/(home|work|root|tmp)/"


def find_lines(pattern: str, names: list[str]) -> list[str]:
    lines = []
    for name in names:
        content = b"" if (ROOT / name).is_symlink() else (ROOT / name).read_bytes()
        if b"\0" not in content:
            text = enumerate(content.decode().split("\n"), 1)
            lines += [f"{name}:{number}: {line.strip()[:100]}" for number, line in text if re.search(pattern, line)]
    return lines


def test_class_names_are_unique() -> None:
    files = [name for name in tracked_files() if name.startswith(("src/", "tasks/", "flows/")) and name.endswith(".py")]
    names = Counter(name for file in files for name in re.findall(r"(?m)^class (\w+)", (ROOT / file).read_text()))
    assert names and [name for name, count in names.items() if count > 1] == []


def test_package_data_holds_all_files_but_modules() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["abstain"]
    package = ROOT / "src" / "abstain"
    installed = {path.relative_to(ROOT).as_posix() for pattern in declared for path in package.glob(pattern)}
    data = {name for name in tracked_files() if name.startswith("src/abstain/") and not name.endswith(".py")}
    assert data == installed and all(any(package.glob(pattern)) for pattern in declared)


@pytest.mark.heavy
def test_repository_runs_nothing_it_reads_nor_is_half_done() -> None:
    # What a dependency depends on is pinned by its name, whatever that is.
    pins = {"requirements.lock", "requirements-dev.lock", "benchmarks/polygraph/requirements.txt"}
    names = [name for name in tracked_files() if name not in pins]
    assert find_lines(f"{RUNS_WHAT_IT_READS}|{HALF_DONE}", names) == []


def test_repository_names_no_machine_by_a_path() -> None:
    # An image has its own folders, a test says what a bad one is, and a project of one's own has its places.
    elsewhere = {"Dockerfile", "compose.yaml", *SHIPPED}
    names = [name for name in tracked_files() if not name.startswith("tests/") and name not in elsewhere]
    assert find_lines(ABSOLUTE, list(SHIPPED)) == [] or not is_as_shipped()
    assert find_lines(ABSOLUTE, names) == []


def test_stages_are_the_modules_with_a_main() -> None:
    assert {file.parent.name for file in STAGE_FOLDER.glob("*/__main__.py")} == STAGES.keys()
    assert {name: stage["cmd"] for name, stage in STAGES.items()} == {
        name: f"python -m abstain.stages.{name}" for name in STAGES
    }


@pytest.mark.parametrize("name", STAGES)
def test_stage_reads_only_declared_params(name: str) -> None:
    declared = STAGES[name]["params"]
    code = "".join(file.read_text() for file in (STAGE_FOLDER / name).glob("*.py"))
    read = set(re.findall(r"\bparams\.(\w+(?:\.\w+)?)", code))
    assert {key for key in read if key not in declared and key.partition(".")[0] not in declared} == set()


@pytest.mark.heavy
def test_every_parameter_has_a_reader() -> None:
    params = yaml.safe_load(SHIPPED["params.yaml"])
    keys = {f"{section}.{key}" for section in params for key in params[section]}
    declared = {name for stage in STAGES.values() for name in stage["params"]}
    assert declared <= keys | params.keys()
    outside = {  # of the DAG
        "promotion": "src/abstain/release",
        "privacy": "src/abstain/ingest/privacy",
        "shadow": "src/abstain/release",
        "retention": "tasks/data/retention",
        "monitoring": "src/abstain/monitoring flows tasks",
    }
    code = {
        section: "".join(file.read_text() for folder in folders.split() for file in (ROOT / folder).rglob("*.py"))
        for section, folders in outside.items()
    }
    for section, _, key in (name.partition(".") for name in keys - declared):
        assert section in declared or re.search(rf"\.{key}\b", code.get(section, "")), f"{section}.{key}"


@pytest.mark.heavy
def test_soak_tests_name_a_short_twin_in_ci() -> None:
    in_ci, twins = set(), set()
    for text in (file.read_text() for file in (ROOT / "tests").rglob("test_*.py")):
        named = re.findall(r'mark\.soak\((?:twin=)?"(?:[^"]*::)?(\w+)"\)', text)
        assert len(named) == len(re.findall(r"mark\.soak\b", text))
        twins |= set(named)
        module_mark = re.search(r"^pytestmark = .*?\n\n", text, re.MULTILINE | re.DOTALL)
        if not (module_mark and "soak" in module_mark[0]):
            decorated = re.findall(r"^((?:@.*\n)*)def (test_\w+)", text, re.MULTILINE)
            in_ci |= {name for marks, name in decorated if "soak" not in marks}
    assert twins and twins <= in_ci


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", *(str(file.relative_to(ROOT)) for file in (ROOT / "docs").rglob("*.md"))]
)
def test_documents_point_to_what_is_there(name: str) -> None:
    text = (ROOT / name).read_text()
    links = [link for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) if "://" not in link]
    assert [link for link in links if not ((ROOT / name).parent / link).exists()] == []
    paths = re.findall(r"`((?:src|flows|tasks|tests|docs)/[\w./-]+)`", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_flows_with_a_schedule_are_watched() -> None:
    scheduled = {one["entrypoint"].partition(":")[2] for one in DEPLOYMENTS if one.get("schedules")}
    assert set(FLOWS) == scheduled, "a failed or lost run of it would be noticed by nobody"


@pytest.mark.heavy
def test_deployments_are_flows_that_import(tmp_path: Path) -> None:
    # In a process of its own: Prefect makes a folder where it is imported, and is slow to.
    load = "import sys; from prefect.flows import load_flow_from_entrypoint as load; [load(e) for e in sys.argv[1:]]"
    entrypoints = [deployment["entrypoint"] for deployment in DEPLOYMENTS]
    environment = os.environ | {"PREFECT_HOME": str(tmp_path)}
    assert entrypoints
    subprocess.run([sys.executable, "-c", load, *entrypoints], cwd=ROOT, env=environment, check=True)


@pytest.mark.heavy
def test_names_say_what_things_are() -> None:
    """Variables are nouns, functions begin with verbs."""
    found = set()
    for file in (name for name in tracked_files() if name.startswith(PRODUCT) and name.endswith(".py")):
        for node in ast.walk(ast.parse((ROOT / file).read_text())):
            match node:
                case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) if FUNCTION_WORDS.fullmatch(name):
                    found.add(f"{file}: {name}")
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if NO_VERB.fullmatch(name):
                    found.add(f"{file}: {name}()")
    assert found == FIELDS_OF_RECORDS


def test_test_names_are_short() -> None:
    files = [name for name in tracked_files() if name.startswith("tests/") and name.endswith(".py")]
    names = [
        name for file in files for name in re.findall(r"(?m)^ *(?:async )?def (test_\w+)", (ROOT / file).read_text())
    ]
    assert names and [name for name in names if len(name) > TEST_NAME_LENGTH] == []


def test_product_cannot_read_a_message_nor_raise_lines() -> None:
    messages = (AbstainError(Code.USAGE, "x: y").message, Reason(Code.USAGE, "field", message="x: y").message)
    for read in ("message.startswith('x')", "'x' in message", "message.partition(':')"):
        of_product, of_test = (compile(read, str(ROOT / name / "reader.py"), "eval") for name in ("src", "tests"))
        for message in messages:
            assert eval(of_test, {"message": message})
            with pytest.raises(AssertionError, match=r"reader\.py reads the message"):
                eval(of_product, {"message": message})
    assert messages[0] == "x: y" and type(copy.copy(messages[0])) is str
    lines = compile("AbstainError(Code.USAGE, 'x:\\ny')", str(ROOT / "src" / "reader.py"), "eval")
    with pytest.raises(AssertionError, match=r"reader\.py raises an error of lines"):
        eval(lines, {"AbstainError": AbstainError, "Code": Code})
