from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abstain.core.errors import AbstainError
from abstain.knowledge.retrieval.encoder import Vectors
from abstain.learning.estimators.correctness_targets import METRICS, compute_correctness
from abstain.learning.metrics.rouge import rouge_l
from tests.knowledge.builders import BagOfWords

CHATTY, GOLD = "The annual fee of the Gold Card is 95 euros.", "95 euros"
ROUGE = ["rouge1_f1", "rouge1_precision", "rougeL"]
SQUAD = ["exact_match", "token_f1"]
LAST_DECIMAL = 1.5e-6
"""Figures have six: one that lies between two may be rounded either way."""
WORDS = st.lists(st.sampled_from(["fee", "card", "loan", "95", "euros", "the", "Naïve", "χρέωση"]), max_size=6).map(
    " ".join
)
ROWS = st.lists(st.tuples(WORDS, st.lists(WORDS, max_size=3)), max_size=5)


def score_row(names: list[str], answer: str, *references: str) -> list[float]:
    return compute_correctness(names, [answer], [references], BagOfWords()).iloc[0].tolist()


def test_rouge_targets_match_hand_computation() -> None:
    """2 of the answer's 10 words are the gold answer's 2: precision 2 / 10, recall 1."""
    assert score_row(ROUGE, CHATTY, GOLD) == pytest.approx([2 * 0.2 / 1.2, 0.2, 2 * 0.2 / 1.2], abs=1e-6)
    assert score_row(ROUGE, "euros: 95 of them", GOLD) == pytest.approx([4 / 6, 0.5, 2 / 6], abs=1e-6)
    assert score_row(ROUGE, "euros euros euros", GOLD) == pytest.approx([2 / 5, 1 / 3, 2 / 5], abs=1e-6)


@pytest.mark.slow
def test_squad_targets_match_hand_computation() -> None:
    # annual fee of gold card is 95 euros: 8 words, 2 of them in common.
    assert score_row(SQUAD, CHATTY, GOLD) == pytest.approx([0, 4 / 10], abs=1e-6)
    assert score_row(SQUAD, "The 95 Euros!", GOLD) == [1, 1]
    assert score_row(SQUAD, "95", GOLD) == pytest.approx([0, 2 / 3], abs=1e-6)
    assert score_row(SQUAD, "euros 95", GOLD) == [0, 1]
    assert score_row(SQUAD, "Η χρέωση", "η χρέωση.") == [1, 1]  # any script
    assert score_row(SQUAD, "", GOLD) == score_row(SQUAD, "...", GOLD) == [0, 0]
    assert score_row(["token_f1"], "b c d e f", "b c d e g") == [0.8]  # and not float32's 0.8, which exceeds it


def test_cosine_target_matches_hand_computation() -> None:
    class Signed(BagOfWords):
        def encode(self, texts: list[str]) -> Vectors:  # type: ignore[override]
            return np.array([[-1, 0.1] if "no" in text else [1, 0] for text in texts], dtype=np.float32)

    assert score_row(["cosine"], "fee fee card", "fee") == pytest.approx([2 / 5**0.5], abs=1e-6)
    assert score_row(["cosine"], "fee", "loan") == [0]
    assert score_row(["cosine"], "hello", "loan") == [0]  # a vector of zeros is like none
    negative = compute_correctness(["cosine"], ["no", "no"], [["yes"], ["no"]], Signed())
    assert negative["cosine"].tolist() == [0, 1]


def test_compute_correctness_encodes_each_text_once() -> None:
    encoder = BagOfWords()
    answers = ["fee", "fee", "card", "loan", "  ", "rate"]
    references = [["fee", "card"], ["fee", "fee"], ["loan"], [], ["limit"], [""]]
    found = compute_correctness(["cosine"], answers, references, encoder)["cosine"]
    np.testing.assert_array_equal(found, [1, 1, 0, np.nan, 0, np.nan])
    assert encoder.calls == 1
    assert sorted(encoder.encoded) == ["card", "fee", "loan"]  # no text that is compared with nothing


@pytest.mark.parametrize("names", [ROUGE, ["cosine"], pytest.param(SQUAD, marks=pytest.mark.slow)])
def test_compute_correctness_takes_best_reference_per_metric(names: list[str]) -> None:
    answer, references = "the card fee 95", ["fee", "card fee loan rate limit 95", "", "loan"]
    alone = [score_row(names, answer, reference) for reference in references]
    np.testing.assert_allclose(score_row(names, answer, *references), np.nanmax(alone, axis=0), atol=LAST_DECIMAL)


@pytest.mark.parametrize(
    ("reference", "unread"),
    [(" \n", {*METRICS}), ("年费", {*ROUGE}), ("the", {*SQUAD}), ("...", {*ROUGE, *SQUAD}), ("fee", set())],
)
@pytest.mark.slow
def test_compute_correctness_unreadable_reference_is_ignored(reference: str, unread: set[str]) -> None:
    for answer in ("fee", reference, ""):
        alone = compute_correctness([*METRICS], [answer], [[reference]], BagOfWords()).iloc[0]
        assert {*alone.index[alone.isna()]} == unread
    with_another = compute_correctness([*METRICS], ["fee"], [[reference, "fee"]], BagOfWords()).iloc[0]
    assert with_another.tolist() == [1.0] * len(METRICS)


def test_compute_correctness_empty_answer_and_no_reference() -> None:
    assert score_row([*ROUGE, "cosine"], "", "fee") == score_row([*ROUGE, "cosine"], "χρέωση", "fee") == [0, 0, 0, 0]
    assert np.isnan(score_row([*ROUGE, "cosine"], "fee")).all()


def test_compute_correctness_table_has_rows_and_metrics() -> None:
    found = compute_correctness(["rougeL", "cosine", "rougeL"], ["fee"] * 3, [["fee"], [], ["card"]], BagOfWords())
    expected = pd.DataFrame({name: [1, np.nan, 0] for name in ("rougeL", "cosine")})
    pd.testing.assert_frame_equal(found, expected)
    assert compute_correctness([], ["fee"], [["fee"]]).shape == (1, 0)
    nothing = compute_correctness([*ROUGE, "cosine"], [], [])
    assert (nothing.shape, [*nothing]) == ((0, 4), [*ROUGE, "cosine"]) and (nothing.dtypes == np.float64).all()


def test_compute_correctness_wrong_arguments_raise() -> None:
    with pytest.raises(AbstainError, match=f"'bleu'.* {', '.join(METRICS)}"):
        compute_correctness(["cosine", "bleu"], [], [])
    with pytest.raises(ValueError, match="shorter"):
        compute_correctness(["rougeL"], ["fee", "card"], [["fee"]])
    with pytest.raises(TypeError, match="a list of texts"):
        compute_correctness(["rougeL"], ["fee"], ["fee"])  # its letters are not references


@pytest.mark.heavy
@pytest.mark.parametrize("names", [[*ROUGE, "cosine"], pytest.param(SQUAD, marks=pytest.mark.slow)])
@settings(deadline=None, max_examples=50)
@given(rows=ROWS, another=WORDS)
def test_compute_correctness_range_identity_and_order(
    names: list[str], rows: list[tuple[str, list[str]]], another: str
) -> None:
    answers, references = [answer for answer, _ in rows], [of_row for _, of_row in rows]

    def compute(answers: list[str], references: list[list[str]]) -> np.ndarray:
        return compute_correctness(names, answers, references, BagOfWords()).to_numpy()

    values = compute(answers, references)
    assert values.shape == (len(rows), len(names))
    assert ((values >= 0) & (values <= 1) | np.isnan(values)).all()
    more = compute(answers, [[*of_row, another] for of_row in references])
    assert (np.fmax(more, values) <= more + LAST_DECIMAL)[~np.isnan(more)].all()  # one more never makes it worse
    assert not (np.isnan(more) & ~np.isnan(values)).any()
    turned = compute(answers[::-1], [of_row[::-1] for of_row in references[::-1]])
    np.testing.assert_allclose(turned[::-1], values, atol=LAST_DECIMAL)
    known = np.array([bool({"fee", "card", "loan"} & {*answer.split()}) for answer in answers], dtype=bool)
    for name, itself in zip(names, compute(answers, [[answer] for answer in answers]).T, strict=True):
        assert (itself[known if name == "cosine" else ~np.isnan(itself)] == 1).all()


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(answer=WORDS, reference=WORDS)
def test_token_f1_equals_f1_of_word_bags(answer: str, reference: str) -> None:
    bags = [Counter(word.lower() for word in text.split() if word != "the") for text in (answer, reference)]
    common, total = (bags[0] & bags[1]).total(), bags[0].total() + bags[1].total()
    expected = 2 * common / total if bags[1] else np.nan
    assert score_row(["token_f1"], answer, reference) == pytest.approx([expected], abs=1e-6, nan_ok=True)


@pytest.mark.parametrize(
    ("answer", "ideal", "common"),
    [
        ("the fee is 30 euros", "The fee is 30 euros.", 5),
        ("The annual fee of the card is 30 euros", "The fee is 30 euros a year", 5),
        ("30 the is fee", "the fee is 30", 2),
        ("fees", "fee", 0),  # no stemmer
    ],
)
def test_rouge_l_is_f1_of_longest_common_subsequence(answer: str, ideal: str, common: int) -> None:
    expected = 2 * common / (len(answer.split()) + len(ideal.split()))
    assert rouge_l([answer], [ideal]) == pytest.approx([expected])


def test_rouge_l_without_ideal_answer_is_nan() -> None:
    found = rouge_l(["a", "a", "a", "a", "b"], [None, float("nan"), "", "ναι", "a"])  # type: ignore[list-item]
    assert np.isnan(found).tolist() == [True, True, True, True, False]
    assert found[-1] == 0
    assert rouge_l(["ναι"], ["yes"]).tolist() == [0]
    assert rouge_l([], []).shape == (0,)
    with pytest.raises(ValueError, match="shorter"):
        rouge_l(["a", "b"], ["a"])
