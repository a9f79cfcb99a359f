"""`abstain explain`: what the code of an error means."""

from __future__ import annotations

from typing import Annotated

import typer

from abstain.core.codes import AREAS, Code
from abstain.core.errors import AbstainError
from abstain.core.markdown import MarkdownText, document, heading, table

INTRODUCTION = """\
Every error, rejected row, warning of the validation, failed promotion check and alert has one of these codes. The
command line prints `error CODE: message`; `abstain explain CODE` prints cause and remedy. The table is in
`src/abstain/core/codes.py`; `abstain explain > docs/codes.md` writes this page."""


def explain(
    code: Annotated[str | None, typer.Argument(help="as in A601; none: the page of all codes, as Markdown")] = None,
) -> None:
    """Print cause and remedy of the code of an error, a rejected row, a check or an alert."""
    if code is None:
        print(to_markdown(), end="")
        return
    try:
        known_code = Code(code.upper())
    except ValueError:
        raise AbstainError(Code.UNKNOWN_NAME, f"no code '{code}': see docs/codes.md") from None
    print(f"{known_code}: {known_code.cause}\nRemedy: {known_code.remedy}")


def to_markdown() -> str:
    """Return the page docs/codes.md."""
    blocks = [heading(1, "Error codes"), INTRODUCTION]
    for digit, area in AREAS.items():
        codes = [code for code in Code if code[1] == digit]
        rows = [(code, MarkdownText(code.cause), MarkdownText(code.remedy)) for code in codes]
        blocks += [heading(2, area), table(("code", "cause", "remedy"), rows, text_columns=("cause", "remedy"))]
    return document(blocks)
