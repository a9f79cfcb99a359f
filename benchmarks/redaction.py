"""How many identifiers redaction finds, by kind and by how they are written: `python -m benchmarks.redaction`.

Notes:

* Each cell is of `--each` made-up identifiers, right to their check digits, from a seed. Behind each stands a space, a
  comma, the next sentence, an amount, or nothing. One counts as found if nothing of it is left; a number behind it that
  is taken with it does not matter.
* False positives are of lists of years, amounts and prices with eight separators, and of the answers of the sample,
  which name nobody.
* The parameters are those that `abstain init` writes.
"""

from __future__ import annotations

import argparse
import json
import random
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path

from abstain.config.params import load_params
from abstain.ingest.privacy.redaction import Redactor

ROOT = Path(__file__).resolve().parents[1]
PARAMS = ROOT / "src/abstain/config/template/params.yaml"
IBAN_LENGTHS = {"AT": 20, "BE": 16, "CH": 21, "DE": 22, "DK": 18, "ES": 24, "FR": 27, "NO": 15, "PL": 28}
KINDS = ("EMAIL_ADDRESS", "CREDIT_CARD", "IBAN_CODE", "US_SSN", "PHONE_NUMBER")
BEHIND = (" ", ", thanks", ". Please", ".Please", " 1000 Euro", "")

INVISIBLE = "\u00ad\u200b\u200c\u200d\u2060\ufeff\u200e\u202c"
WIDE = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}
CIRCLED = str.maketrans("0123456789", "\u24ea\u2460\u2461\u2462\u2463\u2464\u2465\u2466\u2467\u2468")
RAISED = str.maketrans("0123456789", "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")
LOOKALIKES = str.maketrans(
    "aceopxyABEHKMOPT",
    "\u0430\u0441\u0435\u043e\u0440\u0445\u0443\u0410\u0412\u0395\u041d\u039a\u039c\u041e\u0420\u0422",
)
SEPARATORS = (".", "/", "_", ",", "\n", "\r\n", " - ", ", ", "\u2013", ":", "|")

Write = Callable[[str, random.Random], str]


def add_check_digit(number: str) -> str:
    """Return `number` with the check digit of cards: every second digit from the right is doubled."""
    total = sum(sum(divmod(int(d) * (2 if i % 2 == 0 else 1), 10)) for i, d in enumerate(reversed(number)))
    return number + str(-total % 10)


def make_iban(country: str, account: str) -> str:
    """Return the IBAN of `account`, with its checksum."""
    check = 98 - int("".join(str(int(c, 36)) for c in f"{account}{country}00")) % 97
    return f"{country}{check:02}{account}"


def split_groups(text: str, separator: str, size: int = 4) -> str:
    """Return `text` in groups of `size`; unchanged without a separator."""
    return separator.join(text[start : start + size] for start in range(0, len(text), size)) if separator else text


def make_identifier(kind: str, rng: random.Random) -> str:
    """Return a made-up identifier as people write it."""

    def digits(count: int) -> str:
        return "".join(rng.choices("0123456789", k=count))

    match kind:
        case "EMAIL_ADDRESS":
            local, name = ("".join(rng.choices("abceioprstuxy", k=rng.randint(4, 9))) for _ in range(2))
            return f"{local}@{name}.{rng.choice(['com', 'org', 'de', 'co.uk', 'fr'])}"
        case "CREDIT_CARD":
            return split_groups(add_check_digit(rng.choice("45") + "1" + digits(13)), rng.choice(["", " ", "-"]))
        case "IBAN_CODE":
            country = rng.choice(sorted(IBAN_LENGTHS))
            return split_groups(make_iban(country, digits(IBAN_LENGTHS[country] - 4)), rng.choice(["", " "]))
        case "US_SSN":
            return f"{rng.randint(100, 665)}-{rng.randint(10, 99)}-{rng.randint(1000, 9999)}"
        case _:
            return f"+49 {rng.choice(['170', '30', '89'])} {rng.randint(2_000_000, 9_999_999)}"


def _make_translation(table: dict[int, int]) -> Write:
    return lambda text, rng: text.translate(table)


def _insert_invisible(text: str, rng: random.Random) -> str:
    for _ in range(rng.randint(1, 3)):
        position = rng.randrange(1, len(text))
        text = text[:position] + rng.choice(INVISIBLE) + text[position:]
    return text


def _add_accent(text: str, rng: random.Random) -> str:
    position = rng.choice([position for position, character in enumerate(text) if character.isalpha()])
    return unicodedata.normalize("NFD", f"{text[: position + 1]}\u0301{text[position + 1 :]}")


def _change_separators(text: str, rng: random.Random) -> str:
    if "-" in text[3:4]:  # of social security
        return text.replace("-", rng.choice(SEPARATORS))
    return split_groups(text.replace(" ", "").replace("-", ""), rng.choice(SEPARATORS))


def _make_replacement(old: str, *replacements: str) -> Write:
    return lambda text, rng: text.replace(old, rng.choice(replacements))


FORMS: dict[str, tuple[Write, tuple[str, ...]]] = {
    "as written": (lambda text, rng: text, KINDS),
    "invisible characters": (_insert_invisible, KINDS),
    "full-width": (_make_translation(WIDE), KINDS),
    "circled digits": (_make_translation(CIRCLED), KINDS[1:]),
    "raised digits": (_make_translation(RAISED), KINDS[1:]),
    "dots of Chinese and Japanese": (_make_replacement(".", "\u3002", "\uff0e", "\uff61", "\u2024"), KINDS[:1]),
    "accents of their own (NFD)": (_add_accent, KINDS[:1]),
    "`&#64;`, `%40`": (_make_replacement("@", "&#64;", "&#064;", "&#x40;", "%40"), KINDS[:1]),
    "` @ `": (_make_replacement("@", " @ "), KINDS[:1]),
    "Cyrillic and Greek look-alikes": (_make_translation(LOOKALIKES), ("EMAIL_ADDRESS", "IBAN_CODE")),
    "quoted local part": (lambda text, rng: f'"{text[0]} {text.replace("@", chr(34) + "@")[1:]}', KINDS[:1]),
    "other separators": (_change_separators, KINDS[1:4]),
    "in pairs": (lambda text, rng: split_groups("".join(filter(str.isdigit, text)), " ", 2), KINDS[1:2]),
}
"""How identifiers are written, and the kinds that can be written so."""


def measure_recall(redactor: Redactor, form: str, kind: str, n_identifiers: int) -> float:
    """Return the share of `n_identifiers` identifiers of `kind`, written in `form`, of which nothing is left."""
    rng, write = random.Random(f"{form} {kind}"), FORMS[form][0]
    n_found = 0
    for number in range(n_identifiers):
        behind = BEHIND[number % len(BEHIND)]
        redacted, _ = redactor.redact(f"Mine is {write(make_identifier(kind, rng), rng)}{behind}")
        rest = redacted.removeprefix(f"Mine is <{kind}>")
        n_found += rest != redacted and behind.endswith(rest)
    return n_found / n_identifiers


def make_number_lists(count: int) -> list[str]:
    """Return lists of years, amounts and prices, `count` of each with each of eight separators."""
    rng = random.Random(2)
    makes: tuple[Callable[[], str], ...] = (
        lambda: str(rng.randint(1900, 2030)),
        lambda: f"{rng.randint(1_000, 99_999_999):,}",
        lambda: f"{rng.uniform(0, 1000):.2f}",
    )
    separators = (" ", ", ", "\n", "\t", "/", ".", " - ", "|")
    return [
        separator.join(make() for _ in range(6)) for separator in separators for _ in range(count) for make in makes
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of recall and the false positives."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--each", type=int, default=60, help="identifiers of each kind in each form")
    parser.add_argument("--numbers", type=int, default=500, help="lists of numbers of each sort with each separator")
    options = parser.parse_args(arguments)
    redactor = Redactor(load_params(PARAMS).privacy)
    print(f"| form | {' | '.join(KINDS)} |")
    print(f"| --- |{' --: |' * len(KINDS)}")
    for form, (_, kinds) in FORMS.items():
        cells = [f"{measure_recall(redactor, form, kind, options.each):.2f}" if kind in kinds else "" for kind in KINDS]
        print(f"| {form} | {' | '.join(cells)} |")
    sample = (ROOT / "benchmarks/sample/answers.jsonl").read_text(encoding="utf-8").splitlines()
    answers = [json.dumps(json.loads(line), ensure_ascii=False) for line in sample]
    for name, texts in (("lists of numbers", make_number_lists(options.numbers)), ("answers of the sample", answers)):
        changed = sum(redactor.redact(text)[0] != text for text in texts)
        print(f"\nfalse positives: {changed} of {len(texts):,} {name}", end="")
    print()


if __name__ == "__main__":
    main()
