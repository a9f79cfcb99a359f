"""Identifiers as a paste, a keyboard or a web page changes them: how many are found, and what only looks like one."""

from __future__ import annotations

import json
import random
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from abstain.ingest.privacy.redaction import Redactor
from tests.checkout import ROOT
from tests.ingest.privacy import builders

pytestmark = pytest.mark.slow  # Presidio takes seconds to import

REDACTOR = Redactor(builders.SHIPPED)
INVISIBLE = "\u00ad\u200b\u200c\u200d\u2060\ufeff\u200e\u202c"
LOOKALIKES = str.maketrans(
    "aceopxyABEHKMOPT",
    "\u0430\u0441\u0435\u043e\u0440\u0445\u0443\u0410\u0412\u0395\u041d\u039a\u039c\u041e\u0420\u0422",
)
CIRCLED = str.maketrans("0123456789", "\u24ea\u2460\u2461\u2462\u2463\u2464\u2465\u2466\u2467\u2468")
RAISED = str.maketrans("0123456789", "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")
WIDE = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}
SEPARATORS = [".", "/", "_", ",", "  ", "\t", "\n", "\r\n", " - ", ", ", "\u00a0", "\u2013", "\u2011", ":", "|"]

Mutation = Callable[[str, random.Random], str]


def invisible(text: str, rng: random.Random) -> str:
    """One to three characters that cannot be seen, anywhere in it."""
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(1, len(text))
        text = text[:at] + rng.choice(INVISIBLE) + text[at:]
    return text


def between(sizes: tuple[int, ...]) -> Mutation:
    """Digits in groups of `sizes`, the last of which repeats, with one separator."""

    def mutate(text: str, rng: random.Random) -> str:
        bare, groups, left = text.replace(" ", "").replace("-", ""), [], list(sizes)
        while bare:
            size = left.pop(0) if len(left) > 1 else left[0]
            groups.append(bare[:size])
            bare = bare[size:]
        return rng.choice(SEPARATORS).join(groups)

    return mutate


def by_table(table: dict[int, int]) -> Mutation:
    return lambda text, rng: text.translate(table)


def accent(text: str, rng: random.Random) -> str:
    """A letter gets an accent of its own, as file names of a Mac have it."""
    at = rng.choice([at for at, character in enumerate(text) if character.isalpha()])
    return unicodedata.normalize("NFD", f"{text[: at + 1]}\u0301{text[at + 1 :]}")


def sign(*signs: str) -> Mutation:
    return lambda text, rng: text.replace("@", rng.choice(signs))


def as_it_is(text: str, rng: random.Random) -> str:
    return text


DIGITS = [as_it_is, invisible, by_table(CIRCLED), by_table(RAISED), by_table(WIDE)]
MUTATIONS: dict[str, list[Mutation]] = {
    "EMAIL_ADDRESS": [
        *(as_it_is, invisible, accent, by_table(LOOKALIKES), by_table(WIDE)),
        sign("&#64;", "&#064;", "&#x40;", "%40", "\uff20", "\ufe6b", " @ ", "  @ "),
        lambda text, rng: text.replace(".", rng.choice("\u3002\uff0e\uff61\u2024")),
        lambda text, rng: f'"{text[0]} {text.replace("@", chr(34) + "@")[1:]}',
    ],
    "CREDIT_CARD": [*DIGITS, between((4,)), between((2,))],
    "IBAN_CODE": [*DIGITS, between((4,)), by_table(LOOKALIKES)],
    "US_SSN": [*DIGITS, between((3, 2, 4))],
    "PHONE_NUMBER": DIGITS,
}


def original(entity: str, rng: random.Random) -> str:
    def digits(count: int) -> str:
        return "".join(rng.choices("0123456789", k=count))

    match entity:
        case "EMAIL_ADDRESS":
            local, name = ("".join(rng.choices("abceioprstuxy", k=rng.randint(4, 9))) for _ in range(2))
            return f"{local}@{name}.{rng.choice(['com', 'org', 'de', 'co.uk', 'fr'])}"
        case "CREDIT_CARD":
            return builders.in_groups(
                builders.with_check_digit(rng.choice("45") + "1" + digits(13)), rng.choice(["", " "])
            )
        case "IBAN_CODE":
            country = rng.choice(["AT", "BE", "DE", "ES", "PL"])
            number = builders.iban(country, digits(builders.IBAN_LENGTHS[country] - 4))
            return builders.in_groups(number, rng.choice(["", " "]))
        case "US_SSN":
            return f"{rng.randint(100, 665)}-{rng.randint(10, 99)}-{rng.randint(1000, 9999)}"
        case _:
            return f"+49 {rng.choice(['170', '30', '89'])} {rng.randint(2_000_000, 9_999_999)}"


def corpus(count: int, seed: int = 1) -> Iterator[tuple[str, str, str, str]]:
    """(entity, what stands before it, the mutated identifier, what stands behind it)."""
    rng = random.Random(seed)
    for number in range(count):
        entity = sorted(MUTATIONS)[number % len(MUTATIONS)]
        mutated = rng.choice(MUTATIONS[entity])(original(entity, rng), rng)
        yield (
            entity,
            rng.choice(["Mine is ", "(", "", "\u8bf7\u8054\u7cfb "]),
            mutated,
            rng.choice([" thanks", ")", "", ", please."]),
        )


def test_mutated_identifiers_are_found() -> None:
    missed = Counter[str]()
    total, examples = 2_500, []
    for entity, before, mutated, after in corpus(total):
        redacted, _ = REDACTOR.redact(f"{before}{mutated}{after}")
        left = redacted.replace(f"<{entity}>", "", 1)
        if left == redacted or list(filter(str.isalnum, left)) != list(filter(str.isalnum, before + after)):
            missed[entity] += 1
            examples.append((mutated, redacted))
    assert missed.total() <= 0.02 * total, (missed, examples[:20])


@pytest.mark.parametrize(
    "text",
    [
        "ann[at]example.org",
        "ann at example dot org",
        "0049 30 1234567",
        "4l11 1111 1111 1111",
        "4111 and 1111 1111 1111",
    ],
)
def test_what_docs_privacy_says_that_stays_does(text: str) -> None:
    assert REDACTOR.redact(text)[0] == text


def test_numbers_of_the_sample_and_of_everyday_text_stay() -> None:
    """The sample names nobody; tables, years and prices with one separator, which cards have, too."""
    rows = [json.loads(line) for line in (ROOT / "benchmarks/sample/answers.jsonl").read_text().splitlines()]
    texts = [json.dumps(row, ensure_ascii=False) for row in rows]
    rng = random.Random(2)
    for separator in (" ", ", ", "\n", "\t", "/", ".", " - ", "|"):
        for _ in range(500):
            texts.append(separator.join(str(rng.randint(1900, 2030)) for _ in range(6)))
            texts.append(separator.join(f"{rng.randint(1_000, 99_999_999):,}" for _ in range(6)))
            texts.append(separator.join(f"{rng.uniform(0, 1000):.2f}" for _ in range(6)))
    changed = [text for text in texts if REDACTOR.redact(text)[0] != text]
    assert len(changed) <= 0.001 * len(texts), changed[:10]
