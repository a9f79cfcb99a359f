"""Names say what a thing is: no function words as variables, verbs for functions, short names of tests.

What breaks a rule today is listed, or counted, below. Both may only shrink.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.checkout import ROOT, tracked_files

FUNCTION_WORDS = re.compile(
    "_*(one|at|found|known|asked|told|said|given|own|kept|of|its|theirs|wanted|judged|drawn|taken|made|most|others|why|"
    "apart|beside)_*"
)
"""Words that name nothing: as variables or parameters they leave the reader to find out what there is."""
IRREGULAR = "told|found|kept|given|said|made|taken|drawn|begun|shown|known|held|left|chosen|written|seen|sought"
VERBS = "embed|exceed|feed|need|proceed|seed|shed"
PARTICIPLE = re.compile(rf"_*(?!({VERBS})$)([a-z]+ed|{IRREGULAR})")
PRODUCT = ("src/", "tasks/", "flows/", "benchmarks/", "studies/")
TEST_NAME_LENGTH = 60

FIELDS_OF_RECORDS = {"studies/declared.py: at"}
"""Fields whose names stand in files that are written: the configuration of an experiment."""
LONG_TEST_NAMES = 535


def trees(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    for name in tracked_files():
        if name.startswith(folders) and name.endswith(".py"):
            yield name, ast.parse((ROOT / name).read_text())


def variables(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def functions(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.name


def is_no_verb(name: str) -> bool:
    """Whether a function's name is a lone participle, or begins or ends with `of`."""
    words = name.strip("_").split("_")
    return "of" in (words[0], words[-1]) or PARTICIPLE.fullmatch(name) is not None


def test_variables_are_nouns() -> None:
    words = {
        f"{file}: {name}"
        for file, tree in trees(*PRODUCT)
        for _, name in variables(tree)
        if FUNCTION_WORDS.fullmatch(name)
    }
    assert words == FIELDS_OF_RECORDS


def test_functions_are_verbs() -> None:
    names = [f"{file}: {name}" for file, tree in trees(*PRODUCT) for _, name in functions(tree) if is_no_verb(name)]
    assert names == []


def test_test_names_are_short() -> None:
    names = [
        f"{file}:{line}: {name}"
        for file, tree in trees("tests/")
        for line, name in functions(tree)
        if name.startswith("test_") and len(name) > TEST_NAME_LENGTH
    ]
    assert len(names) <= LONG_TEST_NAMES, "\n".join(names)


def test_rules_see_what_breaks_them() -> None:
    tree = ast.parse("def judged(one):\n    for at in one:\n        found = at\n\ndef find_value(rows): ...\n")
    assert [name for _, name in variables(tree) if FUNCTION_WORDS.fullmatch(name)] == ["one", "at", "found"]
    assert [name for _, name in functions(tree) if is_no_verb(name)] == ["judged"]
    assert all(map(is_no_verb, ("of_rows", "tag_of", "_checked", "told"))) and not is_no_verb("apply_levels")
