"""Fixed refusals ("I don't know what ...", "[Unanswerable ...]"): a kind of answer of their own (`labels.refusals`).

A refusal is recognised by its beginning, because assistants refuse by templates, whose ends often vary. Beginnings are
texts and not regular expressions, in which the bracket of "[Unanswerable" would mean something else, in silence.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence


def is_refusal(answer: str, beginnings: Sequence[str]) -> bool:
    """Whether `answer` begins with one of `beginnings`; case, white space and the form of apostrophes do not matter."""
    return _plain(answer).startswith(tuple(map(_plain, beginnings)))


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().replace("\u2019", "'").split())
