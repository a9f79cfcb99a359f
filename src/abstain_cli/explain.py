"""`abstain explain`: what the code of an error means."""

from __future__ import annotations

from typing import Annotated

import typer

from abstain.core import codes
from abstain.core.errors import AbstainError


def explain(
    code: Annotated[str | None, typer.Argument(help="as in A601; none: the page of all codes, as Markdown")] = None,
) -> None:
    """Print cause and remedy of the code of an error, a refused row, a check or an alert."""
    if code is None:
        print(codes.to_markdown(), end="")
        return
    try:
        print(codes.explain(codes.Code(code.upper())))
    except ValueError:
        raise AbstainError(codes.Code.UNKNOWN_NAME, f"no code '{code}': see docs/codes.md") from None
