"""A second look at a text that is not all ASCII: the same length, as a recognizer of ASCII patterns sees it best.

Recognizers ask for a word boundary around what they find. Writing without spaces has none (`请联系ann@example.org谢谢`,
`ann@example.org으로`), and keyboards of other scripts have their own digits, spaces, hyphens and `@`. In the plain text

* letters and signs that have an ASCII form are that (full-width ones), and so are the digits of every script, its
  spaces and dashes;
* Latin letters stay, since a word with one in it is one word;
* everything else is a line break, which belongs to no entity.
"""

from __future__ import annotations

import unicodedata


class _Plain(dict[int, str]):
    """For `str.translate`: filled as characters are met."""

    def __missing__(self, code: int) -> str:
        self[code] = plain = _plain(chr(code))
        return plain


def plain(text: str) -> str:
    """`text`, character by character, as described above; ASCII text is itself."""
    return text if text.isascii() else text.translate(_TABLE)


def _plain(character: str) -> str:
    if character.isascii():
        return character
    category = unicodedata.category(character)
    if category == "Nd":
        return str(unicodedata.decimal(character))
    if category in ("Zs", "Pd"):
        return " " if category == "Zs" else "-"
    is_letter = category[0] == "L"
    compatible = unicodedata.normalize("NFKC", character)
    if len(compatible) == 1 and compatible.isascii() and compatible.isalpha() == is_letter and category[0] != "N":
        return compatible
    is_latin = is_letter and unicodedata.name(character, "").startswith("LATIN")
    return character if is_latin else "\n"


_TABLE = _Plain()
