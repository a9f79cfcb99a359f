"""The pieces of a text in which a recognizer has to look: few texts have any, and no piece is long.

A recognizer given a whole text finds less than it could and takes longer than it may. Four reasons to cut first:

* Text without an `@` or a long number costs next to nothing, and Presidio need not even be imported.
* Patterns are greedy: in `3000 4111 1111 1111 1111` and `AT61 1904 3002 3457 3201 1000 euros` they take the wrong
  digits, the checksum fails, and a real number stays. Here every possible beginning and end is tried.
* People write `ann@example.org.Please`. The last label is cut off until a known domain is left.
* Presidio's patterns are quadratic in the length of an unbroken run, and one that runs out of time finds nothing.

A piece is a start with its possible ends, the farthest first: the first end at which something is found counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

Piece = tuple[int, tuple[int, ...]]
Pieces = Callable[[str], Iterable[Piece]]

WINDOW, OVERLAP = 2_000, 320
"""Characters. The overlap is more than the longest thing looked for, an e-mail address (254)."""

SIGNS = "@\ufe6b\uff20+\u207a\u208a\ufb29\ufe62\uff0b"
"""At signs and plus signs of every width: every e-mail address or international phone number has one."""

_NUMBER = re.compile(r"\d(?:\d(?<=[^\W\d_]{2}\d{2})|(?:\W?\d){8})")

_LEFT_OF_AT = re.compile(r"[^\s@]+\Z")
_DOMAIN = re.compile(r"\w[\w.-]{0,254}")
_LABEL = re.compile(r"[^\W_]+")

_DIGITS = re.compile(r"\d{3,}(?:[ -]\d{3,})*")
_GROUP = re.compile(r"\d+")
_CARD = range(13, 20)

_IBAN = re.compile(r"(?<![A-Za-z0-9])(?=([A-Za-z]{2}[0-9]{2}(?:[ -]?[A-Za-z0-9]){11,30}))")
_SHORTEST_IBAN = 15

_LAST_SPACE = re.compile(r"\s\S*\Z")


def may_hold_any(text: str) -> bool:
    """Whether `text` can hold any of the entities that have pieces of their own: seldom true, decided in microseconds.

    It can with a sign, with nine digits not far apart (numbers of social security have nine, of cards more), or with
    two digits after two letters (an IBAN's beginning).
    """
    signs = SIGNS if not text.isascii() else "@+"
    return any(sign in text for sign in signs) or _NUMBER.search(text) is not None


def windows(text: str) -> Iterable[Piece]:
    """The whole text; a long one in windows that overlap and are cut at white space."""
    return ((0, (len(text),)),) if len(text) <= WINDOW else _windows(text)


def hinted(pattern: str) -> Pieces:
    """`windows` of a text in which `pattern` is found, none of another."""
    search = re.compile(pattern).search

    def pieces(text: str) -> Iterable[Piece]:
        return windows(text) if search(text) else ()

    return pieces


def emails(text: str) -> Iterator[Piece]:
    """What stands around an `@`: up to 256 characters before it, a domain with at least one dot after it."""
    at = text.find("@")
    while at >= 0:
        domain = _DOMAIN.match(text, at + 1)
        dot = text.find(".", at, domain.end()) if domain else -1
        local = _LEFT_OF_AT.search(text, max(0, at - 256), at) if dot > 0 else None
        if domain and local:
            ends = [label.end() for label in _LABEL.finditer(text, at + 1, domain.end())]
            ends = [end for end in reversed(ends) if end > dot]
            if ends:
                yield local.start(), tuple(ends)
        at = text.find("@", at + 1)


def cards(text: str) -> Iterator[Piece]:
    """Groups of three digits and more, a space or hyphen between them, together as many digits as a card number."""
    for run in _DIGITS.finditer(text):
        groups = [group.span() for group in _GROUP.finditer(text, *run.span())]
        if run.start() > 0 and _in_word(text[run.start() - 1]):
            groups = groups[1:]
        if run.end() < len(text) and _in_word(text[run.end()]):
            groups = groups[:-1]
        for first, (start, _) in enumerate(groups):
            digits, ends = 0, []
            for at in range(first, len(groups)):
                digits += groups[at][1] - groups[at][0]
                if digits >= _CARD.stop:
                    break
                if digits in _CARD:
                    ends.append(groups[at][1])
            if ends:
                yield start, tuple(reversed(ends))


def ibans(text: str) -> Iterator[Piece]:
    """Two letters, two digits and what follows, up to where 15 to 34 characters have the right checksum.

    Presidio checks checksum and country's format again; running it on every possible end would take much longer.
    """
    for match in _IBAN.finditer(text):
        begin = match.start(1)
        # ISO 7064, modulo 97: letters are numbers from 10 on, and the first four characters come last.
        head = int("".join(str(int(character, 36)) for character in text[begin : begin + 4]))
        ends, length, rest = [], 4, 0
        for at in range(begin + 4, match.end(1)):
            if text[at] in " -":
                continue
            value = int(text[at], 36)
            rest = (rest * (10 if value < 10 else 100) + value) % 97
            length += 1
            if length >= _SHORTEST_IBAN and (rest * 1_000_000 + head) % 97 == 1:
                ends.append(at + 1)
        if ends:
            yield begin, tuple(reversed(ends))


def _windows(text: str) -> Iterator[Piece]:
    start = 0
    while len(text) - start > WINDOW:
        end = _cut(text, start + WINDOW)
        yield start, (end,)
        start = _cut(text, end - OVERLAP)
    yield start, (len(text),)


def _cut(text: str, at: int) -> int:
    """The last place at or before `at` that does not split a word, if one is near."""
    space = _LAST_SPACE.search(text, at - OVERLAP, at)
    return space.start() if space else at


def _in_word(character: str) -> bool:
    return character.isalnum() or character == "_"
