import numpy as np
import pytest

from abstain.core.errors import AbstainError
from abstain.llm.signals.base import FeatureBatch
from abstain.llm.signals.length import LengthOnly
from tests.llm.signals.builders import interaction, labels, unread


def of_lengths(*characters: int) -> FeatureBatch:
    return unread(*(interaction("x" * n, name=f"i-{at}") for at, n in enumerate(characters)))


LENGTHS = [1, 5, 9, 40, 50, 60, 200, 300]
SHORT_IS_RIGHT = [1, 1, 1, 1, 0, 0, 0, 0]


def test_length_only_learns_whether_short_answers_are_right() -> None:
    scorer = LengthOnly().fit(of_lengths(*LENGTHS), labels(SHORT_IS_RIGHT))
    found = scorer.score(of_lengths(2, 20, 100, 250))
    assert (scorer.name, scorer.requires) == ("length_only", ())
    assert found.dtype == np.float64 and found.shape == (4,)
    assert (np.diff(found) < 0).all() and 0 < found.min() < 0.5 < found.max() < 1
    other = LengthOnly().fit(of_lengths(*LENGTHS), labels([1 - right for right in SHORT_IS_RIGHT]))
    np.testing.assert_allclose(other.score(of_lengths(2, 20, 100, 250)), 1 - found, atol=1e-6)


def test_length_only_reads_nothing_but_the_length() -> None:
    scorer = LengthOnly().fit(of_lengths(*LENGTHS), labels(SHORT_IS_RIGHT))
    one, two = interaction("a right answer"), interaction("A wrong word!!", contexts=[], question="Why?")
    assert len(one.answer) == len(two.answer)
    assert len(set(scorer.score(unread(one, two)))) == 1
    assert scorer.score(unread()).shape == (0,)


def test_length_only_uses_weights() -> None:
    heavy = [1] * 4 + [9] * 4
    weighted = LengthOnly().fit(of_lengths(*LENGTHS), labels(SHORT_IS_RIGHT, heavy))
    plain = LengthOnly().fit(of_lengths(*LENGTHS), labels(SHORT_IS_RIGHT))
    assert (weighted.score(of_lengths(*LENGTHS)) < plain.score(of_lengths(*LENGTHS))).all()
    without = LengthOnly().fit(of_lengths(*LENGTHS, 1), labels([*SHORT_IS_RIGHT, 0], [1] * 8 + [1e-9]))
    np.testing.assert_allclose(without.score(of_lengths(2, 70)), plain.score(of_lengths(2, 70)), atol=0.05)


@pytest.mark.parametrize(
    ("correct", "weight"), [([1, 1, 1], [1, 1, 1]), ([0, 0, 0], [1, 1, 1]), ([1, 1, 0], [1, 1, 0]), ([], [])]
)
def test_length_only_one_class_is_an_error(correct: list[int], weight: list[float]) -> None:
    with pytest.raises(AbstainError, match=r"^the train split has answers of one class only: bring feedback of both"):
        LengthOnly().fit(of_lengths(*range(1, len(correct) + 1)), labels(correct, weight))
