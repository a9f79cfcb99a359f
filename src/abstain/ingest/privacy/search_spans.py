"""The spans of a text in which a recognizer has to search: few texts have any, and no span is long.

A recognizer given a whole text finds less than it could and takes longer than it may. Reasons to cut first:

* Presidio need not even be imported for a text without a span.
* Patterns are greedy: in `3000 4111 1111 1111 1111` and `AT61 1904 3002 3457 3201 1000 euros` they take the wrong
  digits, the checksum fails, and a real number stays.
* People write `ann@example.org.Please`. The last label is cut off until a known domain is left.
* Presidio's patterns are quadratic in the length of an unbroken run. All spans together are found in time linear in the
  length of the text, and their number is limited.

A span is a start with its possible ends, the farthest first: the first end at which something is found counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

SearchSpan = tuple[int, tuple[int, ...]]
FindSpans = Callable[[str], Iterable[SearchSpan]]

WINDOW, OVERLAP = 2_000, 320
"""Characters. The overlap is longer than the longest entity searched for, an e-mail address (254)."""

_AT_SIGN = re.compile(r"@(?=\w[\w-]*+\.\w)")
_DOMAIN = re.compile(r"\w[\w.-]{0,254}")
_LABEL = re.compile(r"[^\W_]+")
_MAX_LOCAL, _MAX_LABELS = 256, 10

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

_TWELVE_DIGITS = re.compile(rf"\d(?:{_SEPARATOR}{{0,3}}\d){{11}}")

_IBAN = re.compile(  # from its digits on: few texts have any, all have letters
    rf"\d\d(?<=[A-Za-z]{{2}}..)(?=((?:{_SEPARATOR}{{0,3}}[A-Za-z0-9]){{11,30}}))"
)
_IBAN_DIGITS = {code: str(int(chr(code), 36)) for code in b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
IBAN_LENGTH_BY_COUNTRY = {
    country: int(length)
    for country, length in re.findall(
        r"(..)(\d\d)",
        "AD24AE23AL28AT20AZ28BA20BE16BG22BH22BR29BY28CH21CR22CY28CZ24DE22DK18DO28EE20EG29ES24FI18FO18FR27GB22GE22GI23"
        "GL18GR27GT28HR21HU28IE22IL23IQ23IS26IT27JO30KW30KZ20LB28LC32LI21LT20LU20LV21LY25MC27MD24ME22MK19MR27MT31MU30"
        "NL18NO15PK24PL28PS29PT25QA29RO24RS22SA24SC31SE24SI19SK24SM27ST25SV28TL23TN24TR26UA29VA22VG24XK20",
    )
}
"""Length of an IBAN, by its country."""

_PHONE = re.compile(r"\+(?=(?:[^\w+]{0,8}\d){6})[^+]{1,64}")
_DIGITS = re.compile(r"\d+")
_MAX_GROUPS = 5

_LAST_SPACE = re.compile(r"\s\S*\Z")


def normalize_identifier(entity: str, piece: str) -> str:
    """Return a span's text as Presidio's recognizer of `entity` expects it.

    Args:
        entity: Name of the entity.
        piece: Text of the span.

    Returns:
        The text without separators for cards and IBANs, in which all of it is one entity or none; else the text itself.
    """
    return _SEPARATORS.sub("", piece) if entity in ("CREDIT_CARD", "IBAN_CODE") else piece


def iter_windows(text: str) -> Iterable[SearchSpan]:
    """Return the whole text as one span; a long one in windows that overlap and are cut at white space."""
    return ((0, (len(text),)),) if len(text) <= WINDOW else _split_windows(text)


def make_hinted_search(pattern: str) -> FindSpans:
    """Make a function that returns `iter_windows` of a text with a match of `pattern`, and no span otherwise."""
    search = re.compile(pattern).search

    def find_spans(text: str) -> Iterable[SearchSpan]:
        return iter_windows(text) if search(text) else ()

    return find_spans


def make_pattern_search(pattern: str) -> FindSpans:
    """Make a function that returns every match of `pattern` as a span."""
    find = re.compile(pattern).finditer

    def find_spans(text: str) -> Iterable[SearchSpan]:
        return ((match.start(), (match.end(),)) for match in find(text))

    return find_spans


def find_email_spans(text: str) -> Iterator[SearchSpan]:
    """Yield the text around each `@`: up to 256 characters before it, a domain with at least one dot after it."""
    for sign in _AT_SIGN.finditer(text):
        index = sign.start()
        if index and not text[index - 1].isspace():
            local = text[max(0, index - _MAX_LOCAL) : index].rsplit(maxsplit=1)[-1].rpartition("@")[2]
            domain = _DOMAIN.match(text, index + 1)
            assert domain is not None
            dot = text.find(".", index)
            ends = [label.end() for label in _LABEL.finditer(text, index + 1, domain.end()) if label.end() > dot]
            yield index - len(local), tuple(reversed(ends[:_MAX_LABELS]))


def find_phone_spans(text: str) -> Iterator[SearchSpan]:
    """Yield a plus sign and six digits or more, with fewer and fewer of the numbers behind it: an amount may follow."""
    for match in _PHONE.finditer(text):
        groups = [group.end() for group in _DIGITS.finditer(text, *match.span())]
        yield match.start(), (match.end(), *reversed(groups[:_MAX_GROUPS]))


def find_card_spans(text: str) -> Iterator[SearchSpan]:
    """Yield digits with a right check digit, grouped as on a card with one separator, or as Presidio reads them."""
    for pattern in _CARDS if _TWELVE_DIGITS.search(text) else ():
        for match in pattern.finditer(text):
            if _is_luhn_valid(_SEPARATORS.sub("", match[0] + match[1])):
                yield match.start(), (match.end(1),)


def find_iban_spans(text: str) -> Iterator[SearchSpan]:
    """Find IBANs: two letters, two digits and what follows up to the country's length, with the right checksum.

    A word or another number may stand right before it: `IBANDE89370400440532013000`.

    Args:
        text: The text to search.

    Yields:
        The spans.
    """
    for match in _IBAN.finditer(text):
        if end := _find_iban_end(match):
            yield match.start() - 2, (end,)


def _find_iban_end(match: re.Match[str]) -> int | None:
    """Return the end of the IBAN whose digits begin with `match`; None if length or checksum (ISO 7064) is wrong."""
    head = match.string[match.start() - 2 : match.end()].upper()
    n_missing = IBAN_LENGTH_BY_COUNTRY.get(head[:2], 99) - len(head)
    account = _SEPARATORS.sub("", match[1])[:n_missing].upper()
    if len(account) < n_missing or int((account + head).translate(_IBAN_DIGITS)) % 97 != 1:
        return None
    positions = [index for index in range(match.start(1), match.end(1)) if match.string[index].isalnum()]
    return positions[n_missing - 1] + 1


def _is_luhn_valid(digits: str) -> bool:
    """Whether the check digit is right: every second digit from the right is doubled."""
    number = digits.encode()
    total = sum(number[::-1][::2]) + sum(number[::-1][1::2].translate(_DOUBLED))
    return (total - len(number) * ord("0")) % 10 == 0


def _split_windows(text: str) -> Iterator[SearchSpan]:
    start = 0
    while len(text) - start > WINDOW:
        end = _find_cut(text, start + WINDOW)
        yield start, (end,)
        start = _find_cut(text, end - OVERLAP)
    yield start, (len(text),)


def _find_cut(text: str, end: int) -> int:
    """Return the last position up to `end` that does not split a word, if one is near; else `end`."""
    space = _LAST_SPACE.search(text, end - OVERLAP, end)
    return space.start() if space else end
