"""The "did you mean" hints for names that are not valid."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, valid: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The name of `valid` that is most similar to `word`; None where no similarity reaches `cutoff`, from 0 to 1."""
    close = difflib.get_close_matches(word, list(valid), n=1, cutoff=cutoff)
    return close[0] if close else None


def did_you_mean(word: str, valid: Iterable[str], names: str = "valid", cutoff: float = 0.6) -> str:
    """The end of a message about an unknown `word`: the nearest valid name, else all of them, which are called
    `names`."""
    valid = list(valid)
    close = nearest(word, valid, cutoff)
    return f"did you mean '{close}'?" if close else f"{names}: {', '.join(valid)}"
