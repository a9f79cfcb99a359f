"""Views of a text, in which patterns of ASCII find what people, keyboards and pastes have written otherwise.

In a view

* letters, digits and signs with an ASCII form are that: full-width, circled and raised ones, digits of all scripts;
* accents are left out, and what cannot be seen: soft hyphens, zero-width characters;
* spaces and dashes are those of ASCII, and so is an at sign that is written `&#64;` or `%40`;
* letters of scripts without capitals, which may be written without spaces (`请联系ann@example.org谢谢`), and all other
  signs are line breaks, which belong to no entity.

A sign that shows letters or digits (`①`, `²`, `™`) is part of a word or stands beside one: `ann@example.org①`. A text
with such signs has a second view, in which they are line breaks.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

_PARTS = re.compile(r"(?P<sign>&#(?:0*64|x0*40);|%40)|(?P<same>[\x00-\x24\x27-\x7f]+)|.", re.IGNORECASE | re.DOTALL)
_OTHERS = {"Cf": "", "Mn": "", "Me": "", "Zs": " ", "Pd": "-"}
_ALIKE = {
    "\u3002": ".",  # the full stop of Chinese and Japanese
    **dict.fromkeys("\u2053\u2212\u223c\u30fc", "-"),  # no dashes to Unicode, but between the digits of phone numbers
}


class View(NamedTuple):
    """A view, and where in the original text each of its characters begins; the last entry is that text's end."""

    text: str
    starts: Sequence[int]

    def place(self, start: int, end: int) -> tuple[int, int]:
        """Return where in the original text `text[start:end]` stands, together with what follows and is left out."""
        stop = end
        while self.starts[stop] == self.starts[end - 1]:  # of several characters for one, not all
            stop += 1
        return self.starts[start], self.starts[stop]


class _Shown(dict[str, str]):
    """Filled as characters are met."""

    def __missing__(self, character: str) -> str:
        self[character] = shown = _shown(character)
        return shown


_SHOWN = _Shown()


def views_of(text: str) -> tuple[View, ...]:
    """Return the view of `text`, and the second one where it has signs that show letters or digits."""
    signs = {} if text.isascii() else {ord(character): "\n" for character in set(text) if _is_sign(character)}
    return (view_of(text), view_of(text.translate(signs))) if signs else (view_of(text),)


def view_of(text: str) -> View:
    """Return the view of `text`, in time linear in its length."""
    if text.isascii() and "%40" not in text and "&#" not in text:
        return View(text, range(len(text) + 1))
    shown: list[str] = []
    starts: list[int] = []
    for part in _PARTS.finditer(text):
        if part["same"]:
            shown.append(part[0])
            starts += range(*part.span())
        else:
            shown.append("@" if part["sign"] else _SHOWN[part[0]])
            starts += [part.start()] * len(shown[-1])
    return View("".join(shown), [*starts, len(text)])


def _shown(character: str) -> str:
    digit = unicodedata.digit(character, None)
    return str(digit) if digit is not None else "".join(map(_plain, unicodedata.normalize("NFKD", character)))


def _plain(character: str) -> str:
    category = unicodedata.category(character)
    if character.isascii() or category in ("Lu", "Ll", "Lt"):
        return character
    return _ALIKE.get(character) or _OTHERS.get(category, "\n")


def _is_sign(character: str) -> bool:
    """Whether this is no letter or digit, but shows one, or is a frame around one."""
    category = unicodedata.category(character)
    if character.isascii() or category in ("Lu", "Ll", "Lt", "Nd"):
        return False
    return category == "Me" or any(map(str.isalnum, _SHOWN[character]))
