"""Texts that people and other programs wrote: how they are shown, and what in them is meant.

Foreign text must not control a terminal: escape sequences move the cursor, rewrite lines, or fill the clipboard.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Sequence

from abstain.core.markdown import UNPRINTABLE

PSEUDONYM = re.compile(r"[ur]-[0-9a-f]{20}")
"""The pseudonym of a user (`u-`) or a reviewer (`r-`), as ingest makes it."""
WITHHELD_TEXT = "I could not find an answer that I am sure enough of. Please ask a colleague who knows the subject."
"""What stands in the place of an answer that is withheld, unless a service says it in its own words."""
_PRINTED = 10
_LINE_BREAK = re.compile("\r\n?")


def visible(text: str) -> str:
    """Return `text` with its lines and tabs, and U+FFFD for each other character that cannot be printed."""
    return UNPRINTABLE.sub("\ufffd", _LINE_BREAK.sub("\n", text))


def short_name(person: str) -> str:
    """Cut a pseudonym to its first ten characters, which a search of data/ finds; return any other name as it is."""
    return person[:_PRINTED] if PSEUDONYM.fullmatch(person) else person


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


def is_refusal(answer: str, beginnings: Sequence[str]) -> bool:
    """Whether `answer` is a fixed refusal ("I don't know what ...", "[Unanswerable ...]"; `labels.refusals`).

    It is recognised by its beginning, because assistants refuse by templates, whose ends often vary; case, white space
    and the form of apostrophes do not matter. `beginnings` are texts and not regular expressions, in which the bracket
    of "[Unanswerable" would mean something else, in silence.
    """
    return _plain(answer).startswith(tuple(map(_plain, beginnings)))


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().replace("\u2019", "'").split())
