"""The pieces of a text in which a recognizer has to look: few texts have any, and no piece is long.

A recognizer given a whole text finds less than it could and takes longer than it may. Four reasons to cut first:

* Text without an `@` or a long number costs next to nothing, and Presidio need not even be imported.
* Patterns are greedy: in `3000 4111 1111 1111 1111` and `AT61 1904 3002 3457 3201 1000 euros` they take the wrong
  digits, the checksum fails, and a real number stays. Here every possible beginning and end is tried.
* People write `ann@example.org.Please`. The last label is cut off until a known domain is left.
* Presidio's patterns are quadratic in the length of an unbroken run, and one that runs out of time finds nothing.
* A paste has its own separators (`4111.1111.1111.1111`, `DE89/3704/...`, `ann @ example.org`): a recognizer is given
  the piece as it expects it (`canonical`).

A piece is a start with its possible ends, the farthest first: the first end at which something is found counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from abstain.ingest.privacy.plain import is_odd

Piece = tuple[int, tuple[int, ...]]
Pieces = Callable[[str], Iterable[Piece]]

WINDOW, OVERLAP = 2_000, 320
"""Characters. The overlap is more than the longest thing looked for, an e-mail address (254)."""

SIGNS = "@\ufe6b\uff20+\u207a\u208a\ufb29\ufe62\uff0b"
"""At signs and plus signs of every width: every e-mail address or international phone number has one."""

ESCAPED_SIGN = re.compile(r"&#(?:0*64|x0*40);|%40", re.IGNORECASE)
"""An at sign as HTML and addresses of pages write it."""

_NUMBER = re.compile(
    r"\d(?:\d(?<=[^\W\d_]{2}\d{2})|(?:[\W_]?\d){8}"  # an IBAN's beginning; nine digits
    r"|\d\d(?:\d([\W_]{1,3})\d{4,6}\1\d{4}|([\W_]{1,3})\d\d\2\d{4})"  # groups of a card; of social security
    r"|\d([\W_]{1,3})\d\d(?:\3\d\d){5})"  # a card in pairs
)

_LEFT_OF_AT = re.compile(r"""(?:[^\s@"]+|"[^"@\n]{1,64}"|[\w.+-]+[ \t]{1,2})\Z""")
_DOMAIN = re.compile(r"[ \t]{0,2}(\w[\w.-]{0,254})")
_LABEL = re.compile(r"[^\W_]+")

_SEPARATOR = r"[ \t\r\n._/,:;|-]"
_SEPARATORS = re.compile(_SEPARATOR)
_DIGITS = re.compile(r"\d{3,}(?:[ -]\d{3,})*")
_GROUP = re.compile(r"\d+")
_CARD = range(13, 20)
_PRINTED = re.compile(  # one separator within a number: fours, 4-6-5 and 4-6-4, pairs, single digits
    rf"[2-6](?<![^\W_].)(?=(\d{{3}}({_SEPARATOR}{{1,3}})\d{{4}}\2\d{{4}}\2(?:\d{{4}}\2\d{{3}}|\d{{4}}|\d)"
    rf"|\d{{3}}({_SEPARATOR}{{1,3}})\d{{6}}\3\d{{4,5}}|\d({_SEPARATOR}{{1,3}})\d\d(?:\4\d\d){{5,7}}(?:\4\d)?"
    rf"|({_SEPARATOR}{{1,3}})\d(?:\5\d){{11,17}})(?!\d))"
)
_DOUBLED = [0, 2, 4, 6, 8, 1, 3, 5, 7, 9]

_IBAN = re.compile(rf"(?<![A-Za-z0-9])(?=([A-Za-z]{{2}}[0-9]{{2}}(?:{_SEPARATOR}{{0,3}}[A-Za-z0-9]){{11,30}}))")
_SSN = re.compile(rf"\d(?<![^\W_].)\d\d({_SEPARATOR}{{0,3}})\d{{2}}\1\d{{4}}(?![^\W_])")
_SHORTEST_IBAN = 15

_LAST_SPACE = re.compile(r"\s\S*\Z")


def may_hold_any(text: str) -> bool:
    """Whether `text` can hold any of the entities that have pieces of their own: seldom true, decided in microseconds.

    It can with a sign, with nine digits not far apart (numbers of social security have nine, of cards more), or with
    two digits after two letters (an IBAN's beginning). In a text with odd characters, any nine digits will do.
    """
    signs = SIGNS if not text.isascii() else "@+"
    if any(sign in text for sign in signs) or _NUMBER.search(text) is not None:
        return True
    if "%40" in text or "&#" in text:
        return ESCAPED_SIGN.search(text) is not None
    return not text.isascii() and is_odd(text) and sum(map(str.isdigit, text)) >= 9


def canonical(entity: str, piece: str) -> str:
    """`piece` as Presidio's recognizer of `entity` expects it; anything else than itself is one entity or none."""
    match entity:
        case "CREDIT_CARD" | "IBAN_CODE":
            return _SEPARATORS.sub("", piece)
        case "US_SSN":
            return f"{piece[:3]}-{_SEPARATORS.sub('', piece[3:-4])}-{piece[-4:]}" if len(piece) > 9 else piece
        case "EMAIL_ADDRESS" if piece.startswith('"') or "@ " in piece or " @" in piece or "\t" in piece:
            local, _, domain = piece.partition("@")
            return f"{re.sub(r'[^A-Za-z0-9.+-]', '', local)}@{domain.strip()}"
        case _:
            return piece


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
    """The text around an `@`: up to 256 characters before it, a domain with at least one dot after it.

    Up to two spaces may be on either side of the sign.
    """
    at = text.find("@")
    while at >= 0:
        domain = _DOMAIN.match(text, at + 1)
        dot = text.find(".", domain.start(1), domain.end()) if domain else -1
        local = _LEFT_OF_AT.search(text, max(0, at - 256), at) if dot > 0 else None
        if domain and local and (domain.start(1) == at + 1 or text[local.end() - 1] in " \t"):
            ends = [label.end() for label in _LABEL.finditer(text, at + 1, domain.end())]
            ends = [end for end in reversed(ends) if end > dot]
            if ends:
                yield local.start(), tuple(ends)
        at = text.find("@", at + 1)


def cards(text: str) -> Iterator[Piece]:
    """Groups of digits that together are as many as a card number has, with the right check digit.

    They are of three digits and more, a space or hyphen between them, or as cards print them, with one separator.
    """
    for run in _DIGITS.finditer(text):
        if run.end() - run.start() < _CARD.start:
            continue
        groups = [group.span() for group in _GROUP.finditer(text, *run.span())]
        if run.start() > 0 and text[run.start() - 1].isalnum():
            groups = groups[1:]
        if run.end() < len(text) and text[run.end()].isalnum():
            groups = groups[:-1]
        for first, (start, _) in enumerate(groups):
            digits, ends = "", []
            for begin, end in groups[first:]:
                digits += text[begin:end]
                if len(digits) >= _CARD.stop:
                    break
                # UATP's begin with 1 and have 15 digits; four years in a row, which Presidio takes for one, have 16.
                if len(digits) in _CARD and (digits[0] != "1" or len(digits) == 15) and _luhn(digits):
                    ends.append(end)
            if ends:
                yield start, tuple(reversed(ends))
    for printed in _PRINTED.finditer(text):
        is_above = (printed[2] or printed[3]) in (" ", "-")
        if not is_above and _luhn(_SEPARATORS.sub("", printed[0] + printed[1])):
            yield printed.start(), (printed.end(1),)


def ssns(text: str) -> Iterator[Piece]:
    """Three, two and four digits with one separator."""
    for match in _SSN.finditer(text):
        yield match.start(), (match.end(),)


def _luhn(digits: str) -> bool:
    """Whether the check digit is right: every second digit from the right is doubled."""
    numbers = [int(digit) for digit in reversed(digits)]
    return (sum(numbers[::2]) + sum(_DOUBLED[number] for number in numbers[1::2])) % 10 == 0


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
            if _SEPARATORS.match(text, at):
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
