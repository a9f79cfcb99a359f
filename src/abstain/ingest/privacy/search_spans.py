"""The pieces of a text in which a recognizer has to look: few texts have any, and no piece is long.

A recognizer given a whole text finds less than it could and takes longer than it may. Reasons to cut first:

* Presidio need not even be imported for a text without a piece.
* Patterns are greedy: in `3000 4111 1111 1111 1111` and `AT61 1904 3002 3457 3201 1000 euros` they take the wrong
  digits, the checksum fails, and a real number stays.
* People write `ann@example.org.Please`. The last label is cut off until a known domain is left.
* Presidio's patterns are quadratic in the length of an unbroken run. All pieces together are found in time linear in
  the length of the text, and there are at most so many of them.

A piece is a start with its possible ends, the farthest first: the first end at which something is found counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

SearchSpan = tuple[int, tuple[int, ...]]
FindSpans = Callable[[str], Iterable[SearchSpan]]

WINDOW, OVERLAP = 2_000, 320
"""Characters. The overlap is more than the longest thing looked for, an e-mail address (254)."""

_SIGN = re.compile(r"@(?=\w[\w-]*+\.\w)")
_DOMAIN = re.compile(r"\w[\w.-]{0,254}")
_LABEL = re.compile(r"[^\W_]+")
_LOCAL, _LABELS = 256, 10

_SEPARATOR = r"[ \t\r\n._/,:;|-]"
_SEPARATORS = re.compile(_SEPARATOR)
_CARDS = tuple(
    # A number begins with 2 to 6: four years in a row begin with 1, and of these one in ten has a right check digit.
    re.compile(rf"[2-6](?<![^\W_].)(?=({digits})(?![^\W_]))")
    for digits in (
        r"\d{3}[ -]?\d{3,4}[ -]?\d{3,4}[ -]?\d{3,5}",
        r"\d{3}[ -]?\d{4}[ -]?\d{4}[ -]?\d{4}[ -]?\d{3}",
        rf"\d{{3}}({_SEPARATOR}{{1,3}})\d{{4}}\2\d{{4}}\2\d{{4}}(?:\2\d{{3}})?",
        rf"\d{{3}}({_SEPARATOR}{{1,3}})\d{{6}}\2\d{{4,5}}",
    )
)
_DOUBLED = bytes.maketrans(b"0123456789", b"0246813579")

_TWELVE = re.compile(rf"\d(?:{_SEPARATOR}{{0,3}}\d){{11}}")

_IBAN = re.compile(  # from its digits on: few texts have any, all have letters
    rf"\d\d(?<=[A-Za-z]{{2}}..)(?=((?:{_SEPARATOR}{{0,3}}[A-Za-z0-9]){{11,30}}))"
)
_NUMBERS = {code: str(int(chr(code), 36)) for code in b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
LENGTHS = {
    country: int(length)
    for country, length in re.findall(
        r"(..)(\d\d)",
        "AD24AE23AL28AT20AZ28BA20BE16BG22BH22BR29BY28CH21CR22CY28CZ24DE22DK18DO28EE20EG29ES24FI18FO18FR27GB22GE22GI23"
        "GL18GR27GT28HR21HU28IE22IL23IQ23IS26IT27JO30KW30KZ20LB28LC32LI21LT20LU20LV21LY25MC27MD24ME22MK19MR27MT31MU30"
        "NL18NO15PK24PL28PS29PT25QA29RO24RS22SA24SC31SE24SI19SK24SM27ST25SV28TL23TN24TR26UA29VA22VG24XK20",
    )
}
"""How long an IBAN is, by its country."""

_PHONE = re.compile(r"\+(?=(?:[^\w+]{0,8}\d){6})[^+]{1,64}")
_DIGITS = re.compile(r"\d+")
_GROUPS = 5

_LAST_SPACE = re.compile(r"\s\S*\Z")


def normalize_identifier(entity: str, piece: str) -> str:
    """`piece` as Presidio's recognizer of `entity` expects it; anything else than itself is one entity or none."""
    return _SEPARATORS.sub("", piece) if entity in ("CREDIT_CARD", "IBAN_CODE") else piece


def iter_windows(text: str) -> Iterable[SearchSpan]:
    """The whole text; a long one in windows that overlap and are cut at white space."""
    return ((0, (len(text),)),) if len(text) <= WINDOW else _windows(text)


def make_hinted_search(pattern: str) -> FindSpans:
    """`iter_windows` of a text in which `pattern` is found, none of another."""
    search = re.compile(pattern).search

    def pieces(text: str) -> Iterable[SearchSpan]:
        return iter_windows(text) if search(text) else ()

    return pieces


def matching(pattern: str) -> FindSpans:
    """Every match of `pattern`."""
    find = re.compile(pattern).finditer

    def pieces(text: str) -> Iterable[SearchSpan]:
        return ((match.start(), (match.end(),)) for match in find(text))

    return pieces


def find_email_spans(text: str) -> Iterator[SearchSpan]:
    """The text around an `@`: up to 256 characters before it, a domain with at least one dot after it."""
    for sign in _SIGN.finditer(text):
        at = sign.start()
        if at and not text[at - 1].isspace():
            local = text[max(0, at - _LOCAL) : at].rsplit(maxsplit=1)[-1].rpartition("@")[2]
            domain = _DOMAIN.match(text, at + 1)
            assert domain is not None
            dot = text.find(".", at)
            ends = [label.end() for label in _LABEL.finditer(text, at + 1, domain.end()) if label.end() > dot]
            yield at - len(local), tuple(reversed(ends[:_LABELS]))


def phones(text: str) -> Iterator[SearchSpan]:
    """A plus sign and six digits or more, with fewer and fewer of the numbers behind it: an amount may follow."""
    for match in _PHONE.finditer(text):
        groups = [group.end() for group in _DIGITS.finditer(text, *match.span())]
        yield match.start(), (match.end(), *reversed(groups[:_GROUPS]))


def find_card_spans(text: str) -> Iterator[SearchSpan]:
    """Digits with a right check digit, grouped as on a card with one separator, or as Presidio reads them."""
    for pattern in _CARDS if _TWELVE.search(text) else ():
        for match in pattern.finditer(text):
            if _luhn(_SEPARATORS.sub("", match[0] + match[1])):
                yield match.start(), (match.end(1),)


def find_iban_spans(text: str) -> Iterator[SearchSpan]:
    """Two letters, two digits and what follows, as long as the country has it, with the right checksum.

    A word or another number may stand right before it: `IBANDE89370400440532013000`.
    """
    for match in _IBAN.finditer(text):
        if end := _end_of_iban(match):
            yield match.start() - 2, (end,)


def _end_of_iban(match: re.Match[str]) -> int | None:
    """Where the IBAN ends whose digits begin with `match`; None where its length or checksum (ISO 7064) is wrong."""
    head = match.string[match.start() - 2 : match.end()].upper()
    left = LENGTHS.get(head[:2], 99) - len(head)
    account = _SEPARATORS.sub("", match[1])[:left].upper()
    if len(account) < left or int((account + head).translate(_NUMBERS)) % 97 != 1:
        return None
    places = [at for at in range(match.start(1), match.end(1)) if match.string[at].isalnum()]
    return places[left - 1] + 1


def _luhn(digits: str) -> bool:
    """Whether the check digit is right: every second digit from the right is doubled."""
    number = digits.encode()
    total = sum(number[::-1][::2]) + sum(number[::-1][1::2].translate(_DOUBLED))
    return (total - len(number) * ord("0")) % 10 == 0


def _windows(text: str) -> Iterator[SearchSpan]:
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
