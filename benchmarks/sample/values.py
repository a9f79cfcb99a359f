"""Values with a unit: formatting them for the handbook, and parsing them from free text.

Both directions are here, so that `quantities(value.text) == [value]` holds for every value of the handbook.

Normal forms: `euros` and `percent` as they are; `days` (weeks are 7, 24 hours are 1); `months` (years are
12); `clock` in minutes after midnight; `date` as yyyymmdd, without a year as mmdd; `number` has no unit.
Working days are read as days: the handbook does not distinguish them. Money in a foreign currency is `foreign`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NUMBER_WORDS = {
    "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
    "ten": 10, "eleven": 11, "twelve": 12, "fourteen": 14, "fifteen": 15, "eighteen": 18, "twenty": 20,
    "thirty": 30, "sixty": 60, "ninety": 90,
}  # fmt: skip
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip

_N = r"(?P<n>\d{1,3}(?:[, ]\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\b(?:" + "|".join(_NUMBER_WORDS) + r")\b)"
_MONTH = r"(?P<month>" + "|".join(f"{m[:3]}(?:{m[3:]})?" if m != "May" else "(?-i:May)" for m in MONTHS) + r")\b\.?"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_UNITS = {
    "euros": ("euros", 1.0), "euro": ("euros", 1.0), "eur": ("euros", 1.0),
    "dollars": ("foreign", 1.0), "dollar": ("foreign", 1.0), "usd": ("foreign", 1.0),
    "pounds": ("foreign", 1.0), "gbp": ("foreign", 1.0),
    "%": ("percent", 1.0), "percent": ("percent", 1.0), "per cent": ("percent", 1.0), "pct": ("percent", 1.0),
    "hour": ("days", 1 / 24), "day": ("days", 1.0), "week": ("days", 7.0),
    "month": ("months", 1.0), "year": ("months", 12.0),
}  # fmt: skip

_UNIT_NAMES = r"%|(?:euros?|eur|dollars?|usd|pounds?|gbp|per ?cent|pct|hour|day|week|month|year)(?=s?\b)"

_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        ("date", r"\b(?P<year>\d{4})-(?P<mm>\d\d)-(?P<day>\d\d)\b"),
        ("date", rf"\b{_DAY}(?: of)? {_MONTH}(?:,? (?P<year>\d{{4}}))?"),
        ("date", rf"\b{_MONTH} {_DAY}\b(?:,? (?P<year>\d{{4}})\b)?"),
        ("clock", r"\b(?P<h>\d{1,2}):(?P<min>\d\d)(?: ?(?P<half>[ap])\.?m\b\.?)?"),
        ("clock", r"\b(?P<h>\d{1,2}) ?(?P<half>[ap])\.?m\b\.?"),
        ("money", rf"(?P<sign>[€$£]|\bEUR) ?{_N}"),
        ("money", rf"{_N} ?(?P<sign>[€$£])"),
        ("unit", rf"{_N}[ -]?(?:working |business |calendar )?(?P<unit>{_UNIT_NAMES})"),
        ("number", _N),
    )
)  # fmt: skip

_FILLER = re.compile(r"^(?:(?:in|by|at|on|with|a|an|the|any|ms|mr)\b\s*)+")
_FREE = re.compile(
    r"\bfree of charge\b|\bfor free\b|\bis free\b(?! of)|\bno (?:annual )?(?:fee|charge)s?\b", re.IGNORECASE
)


@dataclass(frozen=True, order=True)
class Value:
    """A number in the normal form of its `unit`, or (unit `words`) a phrase in lower case without its article."""

    unit: str
    amount: float
    words: str = ""


def quantities(text: str) -> list[Value]:
    """Return every value that `text` states, in order; "free" and "no charge" state 0 euros."""
    values_by_place: list[tuple[int, Value]] = []
    rest = text.replace("\u202f", " ").replace("\xa0", " ")
    for kind, pattern in _PATTERNS:
        for match in pattern.finditer(rest):
            value = _read(kind, match)
            if value is not None:
                values_by_place.append((match.start(), value))
        rest = pattern.sub(lambda match: "\x00" * len(match.group()), rest)
    for match in _FREE.finditer(rest):
        values_by_place.append((match.start(), Value("euros", 0.0)))
    return [value for _, value in sorted(values_by_place, key=lambda pair: pair[0])]


def agree(expected: Value, stated: Value) -> bool:
    """Whether `stated` equals `expected`; a number without a unit, or a date without its year, is accepted."""
    if expected.unit == "date" == stated.unit:
        return stated.amount in (expected.amount, expected.amount % 10_000)
    return abs(expected.amount - stated.amount) < 1e-6 and stated.unit in (expected.unit, "number")


def _read(kind: str, match: re.Match[str]) -> Value | None:
    group = match.groupdict()
    if kind == "date":
        month = int(group["mm"]) if group.get("mm") else _month(group["month"])
        return Value("date", float(int(group["year"] or 0) * 10_000 + month * 100 + int(group["day"])))
    if kind == "clock":
        hours, half = int(group["h"]), (group["half"] or "").lower()
        hours = hours % 12 + (12 if half == "p" else 0) if half else hours
        return Value("clock", float(hours * 60 + int(group.get("min") or 0)))
    amount = _number(group["n"])
    if kind == "money":
        return Value("euros" if group["sign"].upper() in ("€", "EUR") else "foreign", amount)
    if kind == "unit":
        unit, factor = _UNITS[group["unit"].lower().replace("percent", "%").replace("per cent", "%")]
        return Value(unit, amount * factor)
    return None if group["n"].lower() == "one" else Value("number", amount)  # "one" is mostly no number


def _month(name: str) -> int:
    return next(number for number, month in enumerate(MONTHS, 1) if month[:3] == name[:3].capitalize())


def _number(text: str) -> float:
    lowered = text.lower()
    return float(_NUMBER_WORDS[lowered] if lowered in _NUMBER_WORDS else re.sub("[, ]", "", lowered))


def write(unit: str, amount: float) -> str:
    """Return the handbook's text for `amount` of `unit`: "1,500 euros", "2.5%", "14 days", "18 years", "16:30"."""
    number = f"{amount:,.2f}".rstrip("0").rstrip(".") if unit != "euros" or amount % 1 == 0 else f"{amount:,.2f}"
    match unit:
        case "percent":
            return f"{number}%"
        case "clock":
            return f"{int(amount // 60)}:{int(amount % 60):02d}"
        case "date":
            year, rest = divmod(int(amount), 10_000)
            return f"{rest % 100} {MONTHS[rest // 100 - 1]} {year}"
        case "number":
            return number
        case _:
            return f"{number} {unit.removesuffix('s') if amount == 1 else unit}"


def phrase(text: str) -> Value:
    """Return words as a value: lower case, without the article, pronoun or preposition that an answer may change."""
    return Value("words", 0.0, _FILLER.sub("", text.lower()))


def says(text: str, value: Value) -> bool:
    """Whether `text` states `value`, a number or words."""
    if value.unit == "words":
        return re.search(rf"\b{re.escape(value.words)}s?\b", text.lower().replace("e-mail", "email")) is not None
    return any(agree(value, stated) for stated in quantities(text))
