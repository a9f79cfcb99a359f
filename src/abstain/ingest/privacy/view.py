"""Views of a text, in which ASCII patterns find entities that were typed or pasted in other characters.

In a view

* letters, digits and signs with an ASCII form have that form: full-width, circled and raised ones, digits of all
  scripts;
* accents and invisible characters (soft hyphens, zero-width characters) are left out;
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
_CATEGORY_REPLACEMENTS = {"Cf": "", "Mn": "", "Me": "", "Zs": " ", "Pd": "-"}
_LOOKALIKES = {
    "\u3002": ".",  # the full stop of Chinese and Japanese
    **dict.fromkeys("\u2053\u2212\u223c\u30fc", "-"),  # no dashes to Unicode, but between the digits of phone numbers
}


class View(NamedTuple):
    """A view of a text.

    Attributes:
        text: The text of the view.
        starts: For each character of the view, its start in the original text; the last entry is the original text's
            end.
    """

    text: str
    starts: Sequence[int]

    def map_span(self, start: int, end: int) -> tuple[int, int]:
        """Map a span of the view to the original text.

        Args:
            start: First character in the view.
            end: Character after the last one.

        Returns:
            Start and end in the original text, including the characters after the span that the view leaves out.
        """
        stop = end
        while self.starts[stop] == self.starts[end - 1]:  # of several characters for one, not all
            stop += 1
        return self.starts[start], self.starts[stop]


class _AsciiForms(dict[str, str]):
    """The ASCII forms of characters, filled as characters are met."""

    def __missing__(self, character: str) -> str:
        self[character] = form = _to_ascii(character)
        return form


_ASCII_FORMS = _AsciiForms()


def make_views(text: str) -> tuple[View, ...]:
    """Return the view of `text`, and a second one if it has signs that show letters or digits."""
    signs = {} if text.isascii() else {ord(character): "\n" for character in set(text) if _is_sign(character)}
    return (make_view(text), make_view(text.translate(signs))) if signs else (make_view(text),)


def make_view(text: str) -> View:
    """Return the view of `text`, in time linear in its length."""
    if text.isascii() and "%40" not in text and "&#" not in text:
        return View(text, range(len(text) + 1))
    texts: list[str] = []
    starts: list[int] = []
    for part in _PARTS.finditer(text):
        if part["same"]:
            texts.append(part[0])
            starts += range(*part.span())
        else:
            texts.append("@" if part["sign"] else _ASCII_FORMS[part[0]])
            starts += [part.start()] * len(texts[-1])
    return View("".join(texts), [*starts, len(text)])


def _to_ascii(character: str) -> str:
    digit = unicodedata.digit(character, None)
    return str(digit) if digit is not None else "".join(map(_fold_character, unicodedata.normalize("NFKD", character)))


def _fold_character(character: str) -> str:
    category = unicodedata.category(character)
    if character.isascii() or category in ("Lu", "Ll", "Lt"):
        return character
    return _LOOKALIKES.get(character) or _CATEGORY_REPLACEMENTS.get(category, "\n")


def _is_sign(character: str) -> bool:
    """Whether this is no letter or digit, but shows one, or is a frame around one."""
    category = unicodedata.category(character)
    if character.isascii() or category in ("Lu", "Ll", "Lt", "Nd"):
        return False
    return category == "Me" or any(map(str.isalnum, _ASCII_FORMS[character]))
