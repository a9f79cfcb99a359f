import ast
import copy

import pytest

from abstain.core.codes import AREAS, Code
from abstain.core.errors import AbstainError, parse_error_line
from abstain_cli.explain import to_markdown
from tests.checkout import ROOT, tracked_files

TABLE = "src/abstain/core/codes.py"


def find_codes(node: ast.AST) -> set[str]:
    return {
        found.attr
        for found in ast.walk(node)
        if isinstance(found, ast.Attribute) and isinstance(found.value, ast.Name | ast.Attribute)
        if ast.unparse(found.value).rpartition(".")[2] == "Code"
    }


def test_codes_table_is_complete() -> None:
    assert len(Code) <= 60
    for code in Code:
        assert code[0] == "A" and code[1] in AREAS and code[2:].isdecimal() and len(code) == 4
        assert code.cause.endswith(".") and code.remedy.endswith(".") and code.cause != code.remedy
    assert len({code.cause for code in Code}) == len(Code)


def test_codes_page_equals_table() -> None:
    page = (ROOT / "docs" / "codes.md").read_text(encoding="utf-8")
    assert page == to_markdown(), "write it again: abstain explain > docs/codes.md"


@pytest.mark.heavy
def test_codes_are_all_used() -> None:
    names = [name for name in tracked_files() if name.startswith(("src/", "tasks/", "flows/")) and name.endswith(".py")]
    trees = (ast.parse((ROOT / name).read_text(encoding="utf-8")) for name in names if name != TABLE)
    assert set().union(*map(find_codes, trees)) == set(Code.__members__)


def test_parse_error_line_restores_code_if_there_is_one() -> None:
    error = AbstainError(Code.NO_ROWS, "data/ is empty: ingest first")
    assert str(error) == "data/ is empty: ingest first"
    for other in (copy.copy(error), parse_error_line(f"error {error.message_with_code}")):
        assert other is not None and (other.code, other.message) == (Code.NO_ROWS, error.message)
    attack = AbstainError(Code.INVALID_ROW, "field '\x1b[2J' is unknown: remove it")
    assert attack.message_with_code == "A103: field '\ufffd[2J' is unknown: remove it"
    for text in ("error: A109 is meant", "error A999: no such code", "DATA109: x", ""):
        assert parse_error_line(text) is None
