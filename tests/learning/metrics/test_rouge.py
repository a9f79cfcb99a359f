from __future__ import annotations

import numpy as np
import pytest

from abstain.learning.metrics.rouge import rouge, rouge_l


def longest_common(one: list[str], other: list[str]) -> int:
    """The length of the longest common subsequence, by its definition."""
    if not one or not other:
        return 0
    if one[-1] == other[-1]:
        return 1 + longest_common(one[:-1], other[:-1])
    return max(longest_common(one[:-1], other), longest_common(one, other[:-1]))


@pytest.mark.parametrize(
    ("answer", "ideal"),
    [
        ("the fee is 30 euros", "The fee is 30 euros."),
        ("The annual fee of the card is 30 euros", "The fee is 30 euros a year"),
        ("30 the is fee", "the fee is 30"),
        ("no idea", "the fee is 30 euros"),
        ("fees", "fee"),  # no stemmer
    ],
)
def test_rouge_l_is_the_f1_of_the_longest_common_subsequence(answer: str, ideal: str) -> None:
    words = [text.lower().replace(".", "").split() for text in (answer, ideal)]
    common = longest_common(*words)
    expected = 2 * common / (len(words[0]) + len(words[1]))
    assert rouge_l([answer], [ideal]) == pytest.approx([expected])


def test_precision_is_of_the_answers_words_and_recall_of_the_ideal_ones() -> None:
    answers, ideal = ["30 is the fee in euros", "χρέωση"], ["the fee is 30", "the fee is 30"]
    found = {figure: rouge(answers, ideal, "rouge1", figure) for figure in ("precision", "recall", "fmeasure")}
    assert found["precision"] == pytest.approx([4 / 6, 0])
    assert found["recall"] == pytest.approx([1, 0])
    assert found["fmeasure"] == pytest.approx([0.8, 0])
    assert rouge(answers, ideal, "rougeL", "recall") == pytest.approx([2 / 4, 0])  # the fee


def test_without_an_ideal_answer_there_is_no_figure() -> None:
    found = rouge_l(["a", "a", "a", "a", "b"], [None, float("nan"), "", "ναι", "a"])  # type: ignore[list-item]
    assert np.isnan(found).tolist() == [True, True, True, True, False]
    assert found[-1] == 0
    assert rouge_l(["ναι"], ["yes"]).tolist() == [0]
    assert rouge_l([], []).shape == (0,)


def test_answers_and_ideal_answers_must_be_of_the_same_rows() -> None:
    with pytest.raises(ValueError, match="shorter"):
        rouge_l(["a", "b"], ["a"])
