"""Pseudonyms of people, as ingest makes them, and how they are printed."""

from __future__ import annotations

import re

PSEUDONYM = re.compile(r"[ur]-[0-9a-f]{20}")
"""Of a user (`u-`) or a reviewer (`r-`)."""
_PRINTED = 10


def short_name(person: str) -> str:
    """A pseudonym cut to its first ten characters, which a search of data/ finds; any other name as it is."""
    return person[:_PRINTED] if PSEUDONYM.fullmatch(person) else person
