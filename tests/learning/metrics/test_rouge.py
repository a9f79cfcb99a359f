import numpy as np
import pytest

from abstain.learning.metrics.rouge import rouge, rouge_l


@pytest.mark.parametrize(
    ("answer", "ideal", "common"),
    [
        ("the fee is 30 euros", "The fee is 30 euros.", 5),
        ("The annual fee of the card is 30 euros", "The fee is 30 euros a year", 5),
        ("30 the is fee", "the fee is 30", 2),
        ("no idea", "the fee is 30 euros", 0),
        ("fees", "fee", 0),  # no stemmer
    ],
)
def test_rouge_l_is_f1_of_longest_common_subsequence(answer: str, ideal: str, common: int) -> None:
    expected = 2 * common / (len(answer.split()) + len(ideal.split()))
    assert rouge_l([answer], [ideal]) == pytest.approx([expected])


def test_rouge_precision_and_recall_match_definition() -> None:
    answers, ideal = ["30 is the fee in euros", "χρέωση"], ["the fee is 30", "the fee is 30"]
    found = {figure: rouge(answers, ideal, "rouge1", figure) for figure in ("precision", "recall", "fmeasure")}
    assert found["precision"] == pytest.approx([4 / 6, 0])
    assert found["recall"] == pytest.approx([1, 0])
    assert found["fmeasure"] == pytest.approx([0.8, 0])
    assert rouge(answers, ideal, "rougeL", "recall") == pytest.approx([2 / 4, 0])  # the fee


def test_rouge_l_without_ideal_answer_is_nan() -> None:
    found = rouge_l(["a", "a", "a", "a", "b"], [None, float("nan"), "", "ναι", "a"])  # type: ignore[list-item]
    assert np.isnan(found).tolist() == [True, True, True, True, False]
    assert found[-1] == 0
    assert rouge_l(["ναι"], ["yes"]).tolist() == [0]
    assert rouge_l([], []).shape == (0,)


def test_rouge_l_different_lengths_raise() -> None:
    with pytest.raises(ValueError, match="shorter"):
        rouge_l(["a", "b"], ["a"])
