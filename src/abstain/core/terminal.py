"""Foreign text on a terminal: what users, documents and other programs wrote must not control it."""

from __future__ import annotations

import re

from abstain.core.markdown import UNPRINTABLE

_LINE_BREAK = re.compile("\r\n?")


def visible(text: str) -> str:
    """Return `text` with its lines and tabs, and U+FFFD for each other character that cannot be printed.

    Escape sequences move the cursor, rewrite earlier lines, or fill the clipboard.
    """
    return UNPRINTABLE.sub("\ufffd", _LINE_BREAK.sub("\n", text))
