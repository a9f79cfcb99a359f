"""Names say what a thing is: no function words as variables, verbs for functions, short names of tests."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.checkout import ROOT, tracked_files

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
FIELDS_OF_RECORDS = {"studies/declared.py: at"}
"""Fields whose names stand in files that are written: the configuration of an experiment."""


def iter_nodes(*folders: str) -> Iterator[tuple[str, ast.AST]]:
    for name in tracked_files():
        if name.startswith(folders) and name.endswith(".py"):
            yield from ((name, node) for node in ast.walk(ast.parse((ROOT / name).read_text())))


def get_variable(node: ast.AST) -> str:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    return node.arg if isinstance(node, ast.arg) else ""


def get_function(node: ast.AST) -> str:
    return node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else ""


@pytest.mark.heavy
def test_names_say_what_things_are() -> None:
    """Variables are nouns, functions begin with verbs."""
    nodes = list(iter_nodes(*PRODUCT))
    variables = {f"{file}: {name}" for file, node in nodes if FUNCTION_WORDS.fullmatch(name := get_variable(node))}
    functions = [f"{file}: {name}" for file, node in nodes if NO_VERB.fullmatch(name := get_function(node))]
    assert variables == FIELDS_OF_RECORDS and functions == []


def test_test_names_are_short() -> None:
    files = [name for name in tracked_files() if name.startswith("tests/") and name.endswith(".py")]
    names = [
        name for file in files for name in re.findall(r"(?m)^ *(?:async )?def (test_\w+)", (ROOT / file).read_text())
    ]
    assert names and [name for name in names if len(name) > TEST_NAME_LENGTH] == []
