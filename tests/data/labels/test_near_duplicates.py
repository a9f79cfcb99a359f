from datetime import timedelta
from itertools import islice

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abstain.config.params import SplitParams
from abstain.core.contracts import Interaction
from abstain.data.labels import near_duplicates as module
from abstain.data.labels.near_duplicate_splits import has_near_duplicate_in_training, split_rows
from abstain.data.labels.near_duplicates import find_near_duplicates, mask_names_and_numbers
from abstain.data.store.splits import assign_splits, hash_to_unit_interval
from tests.data.frames import BY_GROUP, BY_TIME, FROZEN, OPENS
from tests.factories import ASKED, interaction

SENTENCE = (
    "you can cancel the contract at any time in the app or by letter and the fee for the current month is then "
    "paid back to your account within a few days"
)
WORDS = SENTENCE.split()


def make_answers(field: str, *texts: str) -> list[Interaction]:
    return [interaction(f"i-{n}", **{field: text}) for n, text in enumerate(texts)]


def find_twins(field: str, *texts: str) -> list[int | None]:
    return numbers(f"{field}_duplicate", make_answers(field, *texts))


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
    first, other, third = find_twins("question", gold, blue, "What is the limit of the Gold Card?")
    assert first == other != third
    assert find_twins("question", "And the Gold Card?", "And the Blue Card?") == [None, None], "too few words are left"


def test_find_near_duplicates_long_texts_may_differ_slightly() -> None:
    assert len(WORDS) >= module.MIN_LONG_TEXT_WORDS + 8
    one = " ".join([*WORDS[:10], "shortly", *WORDS[11:]])
    many = " ".join("other" if at % 4 == 0 else word for at, word in enumerate(WORDS))
    first, near, far = find_twins("answer", SENTENCE, one, many)
    assert first == near != far
    for length, expected in ((module.MIN_LONG_TEXT_WORDS - 1, [0, 1]), (module.MIN_LONG_TEXT_WORDS, [0, 0])):
        assert find_twins("question", " ".join(WORDS[:length]), " ".join([*WORDS[: length - 1], "shortly"])) == expected


def test_find_near_duplicates_ignores_order_in_batch() -> None:
    chain = [" ".join([*["so"] * n, *WORDS[n:]]) for n in range(0, 12, 2)]  # neighbours are alike, the ends are not
    rows = [interaction(f"i-{n}", answer=text, asked_at=ASKED + timedelta(days=n)) for n, text in enumerate(chain)]
    found, again = (find_near_duplicates([batch]).sort_index() for batch in (rows, rows[::-1]))
    pd.testing.assert_frame_equal(found, again)


def test_find_near_duplicates_later_batches_keep_numbers() -> None:
    first = make_answers("answer", *(" ".join([*["so"] * n, *WORDS[n:]]) for n in (0, 8)))
    between = " ".join([*["so"] * 4, *WORDS[4:]])
    before = numbers("answer_duplicate", first)
    assert numbers("answer_duplicate", first, [interaction("i-9", answer=between)])[:2] == before


def test_find_near_duplicates_joins_the_most_similar_text() -> None:
    words = (SENTENCE + " unless you have agreed with us on another date in writing").split()
    tail = ["however", "some", "old", "cards", "need", "more", "of", "it"]
    first, second, third = (" ".join([*words[: len(words) - n], *tail[len(tail) - n :]]) for n in (0, 7, 5))
    assert find_twins("answer", first, third)[1] == 0, "it is similar to both"
    assert find_twins("answer", first, second, third) == [0, 1, 1]


@pytest.mark.parametrize("at_least", [module.MIN_QUESTION_WORDS, module.MIN_LONG_TEXT_WORDS])
def test_find_near_duplicates_counts_words_but_no_masks(at_least: int) -> None:
    field, enough = "question" if at_least == module.MIN_QUESTION_WORDS else "answer", WORDS[:at_least]
    rows = make_answers(field, " ".join(enough), " ".join([*enough[:-1], "5"]))
    assert numbers(f"{field}_duplicate", rows) == [0, None]
    assert find_near_duplicates([rows]).index.equals(pd.Index(["i-0", "i-1"], dtype="str", name="interaction_id"))


def test_find_near_duplicates_masks_lower_case_products() -> None:
    cards = ("gold card", "silver card")
    rows = [
        interaction(f"i-{n}", question=f"What does the {card} cost me?", answer=" ".join([card] * 15), product=card)
        for n, card in enumerate(cards)
    ]
    assert numbers("question_duplicate", rows) == [0, 0] and numbers("answer_duplicate", rows) == [None, None]


Row = tuple[str, int | None, int | None, int]
"""Group, question's and answer's twin, days after the hold-out of `BY_TIME` opens."""

PARAMS = BY_GROUP.model_copy(update={"max_component": 0.3})
twin = st.none() | st.integers(0, 5)
nights = st.lists(
    st.lists(st.tuples(st.sampled_from([f"g{n}" for n in range(12)]), twin, twin, st.integers(-20, 60)), min_size=1, max_size=12),
    min_size=1,
    max_size=5,
)  # fmt: skip


def make_rows(*nights: list[Row]) -> pd.DataFrame:
    """Make the rows of some nights, in the order of `training_table`."""
    rows = [
        (f"{night:06d}", OPENS + timedelta(days=days), group, question, answer)
        for night, batch in enumerate(nights)
        for group, question, answer, days in sorted(batch, key=lambda row: row[3])
    ]
    frame = pd.DataFrame(rows, columns=["batch", "asked_at", "group", "question_duplicate", "answer_duplicate"])
    return frame.astype({"question_duplicate": "Int64", "answer_duplicate": "Int64", "group": "str"})


def find_groups(side: str, count: int = 1) -> list[str]:
    """Find groups whose name alone puts them on this side."""
    names = (f"g{n}" for n in range(1000))
    found = (n for n in names if (hash_to_unit_interval(PARAMS.seed, n) < PARAMS.holdout) == (side == "holdout"))
    return list(islice(found, count))


(HELD,), (TRAINED,) = find_groups("holdout"), find_groups("train")


def make_fillers(count: int) -> list[Row]:
    return [(f"filler {n}", None, None, 0) for n in range(count)]


def count_component_rows(rows: pd.DataFrame) -> pd.Series:
    label, before = pd.Series(range(len(rows))), None
    while not label.equals(before):
        before = label
        for name in ("group", "question_duplicate", "answer_duplicate"):
            label = label.groupby(rows[name]).transform("min").fillna(label).astype(int)
    return label.map(label.value_counts())


def test_split_rows_first_group_decides_for_joined() -> None:
    for first, other in ((HELD, TRAINED), (TRAINED, HELD)):
        rows = make_rows([(first, 1, None, 0), (other, 1, None, 1), *make_fillers(38)])
        found = split_rows(rows, BY_GROUP)
        sides = found["split"].groupby(rows["group"]).first()
        assert (sides[first] == "holdout") == (first == HELD) == (sides[other] == "holdout")
        assert rows["group"][found["joined"]].tolist() == [other]


def test_has_near_duplicate_marks_validation_rows() -> None:
    others = find_groups("train", 30)
    splits = assign_splits(pd.Series(others), pd.Series([OPENS] * len(others)), BY_GROUP)
    validating, trained = (others[splits.tolist().index(name)] for name in ("validation", "train"))
    rows = make_rows([(validating, 1, None, 0), (validating, 2, None, 0), *make_fillers(20)], [(trained, 1, None, 1)])
    flagged = has_near_duplicate_in_training(rows.assign(split=split_rows(rows, BY_GROUP)["split"]))
    assert flagged[flagged].index.tolist() == [0]


def test_split_rows_newest_twin_leaves_training_alone() -> None:
    days = (FROZEN - OPENS).days
    rows = make_rows([(HELD, None, None, 0), (TRAINED, 1, None, 0), *make_fillers(60)], [(HELD, 1, None, days)])
    found = split_rows(rows, BY_GROUP)
    assert found["split"].iloc[-1] == "newest" and not found["left_out"].any()
    assert not has_near_duplicate_in_training(rows.assign(split=found["split"])).any()


@pytest.mark.heavy
@settings(max_examples=40)
@given(nights)
def test_split_rows_batches_keep_holdout(nights: list[list[Row]]) -> None:
    before: pd.DataFrame | None = None
    for count in range(1, len(nights) + 1):
        rows = make_rows(*nights[:count])
        after = split_rows(rows, PARAMS)
        by_group = after["split"].where(after["split"] != "newest", "holdout")[~after["left_out"]]
        assert by_group.groupby(rows["group"]).nunique().le(1).all()
        if before is not None:
            now = after.head(len(before))
            held = before["split"].isin(["holdout", "newest"])
            assert now["split"][held].equals(before["split"][held])
            moved = now["split"] != before["split"]
            assert (now["left_out"] | before["left_out"])[moved].all() and not held[moved].any()
        before = after


@pytest.mark.heavy
@settings(max_examples=40)
@given(nights, st.sampled_from([PARAMS, BY_TIME.model_copy(update={"max_component": 0.3})]))
def test_split_rows_holdout_twins_are_not_trained_on(nights: list[list[Row]], params: SplitParams) -> None:
    """Only in small components; other twins are not left out."""
    rows = make_rows(*nights)
    found = split_rows(rows, params)
    flagged = has_near_duplicate_in_training(rows.assign(split=found["split"]))
    held = found["split"] == "holdout"
    assert not flagged[held & (count_component_rows(rows) <= 0.3 * len(rows))].any()
    assert found["split"][flagged].isin(["holdout", "validation"]).all()
    unsplit = rows.assign(split=found["split"].mask(found["left_out"], "train"))
    held = unsplit[unsplit["split"] == "holdout"]
    for at in found.index[found["left_out"]]:
        assert any((rows.loc[at, name] == held[name]).any() for name in ("question_duplicate", "answer_duplicate"))
    if params.by == "time":
        plain = assign_splits(rows["group"], rows["asked_at"], params)
        assert found["split"][~found["left_out"]].equals(plain[~found["left_out"]]) and not found["joined"].any()


@pytest.mark.heavy
@settings(max_examples=40)
@given(nights)
def test_split_rows_small_components_are_on_one_side(nights: list[list[Row]]) -> None:
    rows = make_rows([row for night in nights for row in night])
    found = split_rows(rows, PARAMS)
    small = count_component_rows(rows) <= PARAMS.max_component * len(rows)
    assert not found["left_out"][small].any()
