from datetime import timedelta

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.core.contracts import Interaction
from abstain.data.labels.near_duplicates import (
    MIN_LONG_TEXT_WORDS,
    MIN_QUESTION_WORDS,
    find_near_duplicates,
    mask_names_and_numbers,
)
from tests.factories import ASKED, interaction

SENTENCE = (
    "you can cancel the contract at any time in the app or by letter and the fee for the current month is then "
    "paid back to your account within a few days"
)


def question_twins(*questions: str) -> list[int | None]:
    return numbers("question_duplicate", [interaction(f"i-{n}", question=text) for n, text in enumerate(questions)])


def answer_twins(*answers: str) -> list[int | None]:
    return numbers("answer_duplicate", [interaction(f"i-{n}", answer=text) for n, text in enumerate(answers)])


def numbers(column: str, *batches: list[Interaction]) -> list[int | None]:
    found = find_near_duplicates(batches)[column]
    return [None if pd.isna(number) else int(number) for number in found]


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("What does the Gold Card cost?", "what does the _ cost"),
        ("Is it 5,000.50 EUR, or €12?", "is it _ or _"),
        ("Due on 12 May 2026. Or 2026-05-12?", "due on _ or _"),
        ("Gold cards: Can I (or I'd rather ask Ann Lee) stop?", "gold cards can i or i'd rather ask _ stop"),
        ("the GOLD-card and gold  Card's fee", "the _ and _ s fee"),
        ("Zum ４. Mal: “Hello”!", "zum _ mal hello"),
        ("?!", ""),
    ],
)
def test_mask_names_and_numbers_examples(text: str, masked: str) -> None:
    assert mask_names_and_numbers(text, "Gold card" if "GOLD" in text else None) == masked


@given(st.text(), st.text() | st.none())
def test_mask_names_and_numbers_gives_words(text: str, product: str | None) -> None:
    assert all(word == "_" or word.casefold() == word for word in mask_names_and_numbers(text, product).split(" "))


def test_find_near_duplicates_ignores_names_with_numbers() -> None:
    gold, blue = "What is the fee of the Gold Card?", "what is the fee of the Blue Saver 24"
    first, other, third = question_twins(gold, blue, "What is the limit of the Gold Card?")
    assert first == other != third
    assert question_twins("And the Gold Card?", "And the Blue Card?") == [None, None], "too few words are left"


def test_find_near_duplicates_long_texts_may_differ_slightly() -> None:
    words = SENTENCE.split()
    assert len(words) >= MIN_LONG_TEXT_WORDS + 8
    one = " ".join([*words[:10], "shortly", *words[11:]])
    many = " ".join("other" if at % 4 == 0 else word for at, word in enumerate(words))
    first, near, far = answer_twins(SENTENCE, one, many)
    assert first == near != far
    for length, expected in ((MIN_LONG_TEXT_WORDS - 1, [0, 1]), (MIN_LONG_TEXT_WORDS, [0, 0])):
        assert question_twins(" ".join(words[:length]), " ".join([*words[: length - 1], "shortly"])) == expected


def test_find_near_duplicates_ignores_order_in_batch() -> None:
    words = SENTENCE.split()
    chain = [" ".join([*["so"] * n, *words[n:]]) for n in range(0, 12, 2)]  # neighbours are alike, the ends are not
    rows = [interaction(f"i-{n}", answer=text, asked_at=ASKED + timedelta(days=n)) for n, text in enumerate(chain)]
    pd.testing.assert_frame_equal(
        find_near_duplicates([rows]).sort_index(), find_near_duplicates([rows[::-1]]).sort_index()
    )


def test_find_near_duplicates_later_batches_keep_numbers() -> None:
    words = SENTENCE.split()
    ends = [" ".join([*["so"] * n, *words[n:]]) for n in (0, 8)]
    between = " ".join([*["so"] * 4, *words[4:]])
    first = [interaction(f"i-{n}", answer=text) for n, text in enumerate(ends)]
    before = numbers("answer_duplicate", first)
    assert numbers("answer_duplicate", first, [interaction("i-9", answer=between)])[:2] == before


def test_find_near_duplicates_joins_the_most_similar_text() -> None:
    words = (SENTENCE + " unless you have agreed with us on another date in writing").split()
    tail = ["however", "some", "old", "cards", "need", "more", "of", "it"]
    first, second, third = (" ".join([*words[: len(words) - n], *tail[len(tail) - n :]]) for n in (0, 7, 5))
    assert answer_twins(first, third)[1] == 0, "it is similar to both"
    assert answer_twins(first, second, third) == [0, 1, 1]


@pytest.mark.parametrize("at_least", [MIN_QUESTION_WORDS, MIN_LONG_TEXT_WORDS])
def test_find_near_duplicates_counts_words_but_no_masks(at_least: int) -> None:
    column = "question_duplicate" if at_least == MIN_QUESTION_WORDS else "answer_duplicate"
    enough = SENTENCE.split()[:at_least]
    texts = [" ".join(enough), " ".join([*enough[:-1], "5"])]
    rows = [interaction(f"i-{n}", **{column.removesuffix("_duplicate"): text}) for n, text in enumerate(texts)]
    assert numbers(column, rows) == [0, None]
    assert find_near_duplicates([rows]).index.equals(pd.Index(["i-0", "i-1"], dtype="str", name="interaction_id"))


def test_find_near_duplicates_masks_lower_case_products() -> None:
    cards = ("gold card", "silver card")
    rows = [
        interaction(f"i-{n}", question=f"What does the {card} cost me?", answer=" ".join([card] * 15), product=card)
        for n, card in enumerate(cards)
    ]
    assert numbers("question_duplicate", rows) == [0, 0] and numbers("answer_duplicate", rows) == [None, None]
