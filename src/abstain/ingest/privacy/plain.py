"""A second look at a text that is not all ASCII: the same length, as a recognizer of ASCII patterns sees it best.

Recognizers ask for a word boundary around what they find. Writing without spaces has none (`请联系ann@example.org谢谢`,
`ann@example.org으로`), and keyboards of other scripts have their own digits, spaces, hyphens and `@`. In the plain text

* letters and signs that have an ASCII form are that (full-width ones), and so are the digits of every script, its
  spaces and dashes;
* Latin letters stay, since a word with one in it is one word;
* everything else is a line break, which belongs to no entity.

A third look joins what a paste has split without a sign of it (`joined`): soft hyphens, zero-width characters and
accents of their own are not in it, letters of other scripts that look Latin are Latin, digits in circles are digits,
and an at sign is one however it is written.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache


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

_LATIN = dict(
    zip(
        "авекмнорстухіјѕһԁԛԝАВЕКМНОРСТУХІЈЅԌԛԝαβεικνορτυχΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",
        "abekmhopctyxijshdqwABEKMHOPCTYXIJSGqwabeikvoptyxABEZHIKMNOPTYX",
        strict=True,
    )
)
"""Cyrillic and Greek letters -> the Latin ones that they look like."""
_MARKS = "[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
_CLUSTER = re.compile(
    rf"&#(?:0*64|x0*40);|%40|(?P<same>[\x00-$'-\x7f]+(?!{_MARKS}))|.{_MARKS}*",
    re.IGNORECASE | re.DOTALL,
)
_ODD = re.compile(
    "[\u00ad\u00b2\u00b3\u00b9\u0300-\u036f\u0370-\u04ff\u061c\u180b-\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u2070-\u2089\u2460-\u249b\u24ea-\u24ff\u2776-\u2793\u3002\ufe00-\ufe0f\uff61\ufeff\U000e0000-\U000e01ef]"
)


def is_odd(text: str) -> bool:
    """Whether `text` has characters that `joined` shows otherwise than `plain`, or leaves out."""
    return _ODD.search(text) is not None


def may_be_joined(text: str) -> bool:
    """Whether `joined` may differ from `plain`."""
    return "%40" in text or "&#" in text or (not text.isascii() and is_odd(text))


def joined(text: str) -> tuple[str, list[int], list[int]]:
    """The third look, and for each of its characters where in `text` it begins and ends."""
    view: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    for match in _CLUSTER.finditer(text):
        start, end = match.span()
        shown = match["same"] or _joined(match[0])
        view.append(shown)
        starts += range(start, end) if match["same"] else [start] * len(shown)
        ends += range(start + 1, end + 1) if match["same"] else [end] * len(shown)
    return "".join(view), starts, ends


@lru_cache(10_000)
def _joined(cluster: str) -> str:
    if cluster.isascii():
        return "@" if len(cluster) > 1 else cluster
    digit = unicodedata.digit(cluster, None) if len(cluster) == 1 else None
    if digit is not None:
        return str(digit)
    return "".join(map(_shown, unicodedata.normalize("NFKC", cluster)))


def _shown(character: str) -> str:
    if unicodedata.category(character) in ("Cf", "Mn", "Me"):
        return ""
    if character in "\u3002\uff61":  # the full stop of Chinese and Japanese
        return "."
    return _LATIN.get(character) or _plain(character)
