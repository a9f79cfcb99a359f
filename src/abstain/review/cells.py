"""What may stand in a cell of a spreadsheet, and what a person means by it.

A spreadsheet takes a cell that begins with `=` for a formula and runs it, and turns `1-2`, `00123` and `TRUE` into
something else without a word. Such texts are kept from it by an apostrophe in front (`guard`), which is taken off
again (`unguard`); any text comes back as it was.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

LONGEST = 30_000
"""Characters; a cell of Excel holds 32,767."""

YES = {"yes", "y", "true", "t", "1", "x", "✓", "✔", "ja", "j", "wahr", "oui", "vrai", "si", "sí"}
NO = {"no", "n", "false", "f", "0", "✗", "✘", "nein", "falsch", "non", "faux"}

_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
_BOOLEAN = {"true", "false", "wahr", "falsch", "vrai", "faux", "verdadero", "falso", "vero", "waar", "onwaar"}
_NUMBER = re.compile(r"(?=.*\d)[\W\d_]*(?:e|[ap]m?|[^\W\d_]{3,10})?[\W\d_]*|\d{4}-\d\d-\d\dT.*", re.IGNORECASE)
"""Numbers, dates, times, sums of money: digits and signs around one word at most, which may be a month."""


def guard(text: str) -> str:
    """`text` as a spreadsheet leaves it alone."""
    return f"'{text}" if _is_touched(text) else text


def unguard(cell: str) -> str:
    """The text that `guard` made `cell` of, or that a person wrote there."""
    return cell[1:] if cell.startswith("'") and _is_touched(cell[1:]) else cell


def readable(text: str) -> str:
    """`text` without what a spreadsheet cannot hold: control characters, foreign line breaks, more than `LONGEST`."""
    text = re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", "\ufffd", text.replace("\r\n", "\n").replace("\r", "\n"))
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]} [... and {len(text) - LONGEST:,} more characters]"


def as_yes_or_no(cell: str) -> bool | None:
    """What a person means by `cell`; None where it is empty. ValueError where it is neither yes nor no."""
    word = unguard(cell.strip()).strip().casefold()
    if not word:
        return None
    if word in YES or word in NO:
        return word in YES
    raise ValueError(f"'{' '.join(cell.split())[:40]}' is neither yes nor no")


def as_moment(cell: str) -> datetime | None:
    """The moment in `cell`, in UTC where it says no zone; None where it is empty. ValueError where it is none."""
    text = unguard(cell.strip()).strip()
    if not text:
        return None
    if not re.fullmatch(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d.*", text):
        raise ValueError(f"'{text[:40]}' is no moment like 2026-11-21T14:30:00Z")
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _is_touched(text: str) -> bool:
    """Whether a spreadsheet would make something else of `text`; an apostrophe in front of such a text counts, too."""
    if text.startswith("'"):
        return _is_touched(text[1:])
    shown = text.strip()
    runs = shown.startswith(_FORMULA) or text.startswith(("\t", "\r", "\n"))
    return runs or shown.casefold() in _BOOLEAN or bool(_NUMBER.fullmatch(shown[:60]))
