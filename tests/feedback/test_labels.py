from datetime import timedelta

import pytest

from abstain.feedback.labels import Label, label_rows
from abstain.params import LabelParams

from .builders import feedback, interaction, later, review

PARAMS = LabelParams(require=("correct", "truthful", "complete"), review_weight=1.0, thumb_weight=0.4)


def test_a_review_outranks_every_thumb() -> None:
    thumbs = [feedback(user=f"u{n}") for n in range(5)]
    result = label_rows([interaction()], thumbs, [review(right=False, inclusion_probability=0.2)], PARAMS)
    assert result.labels == (Label("i-1", False, "sme", 1.0, 0.2),)


def test_without_a_review_the_thumb_counts_with_its_own_weight() -> None:
    result = label_rows([interaction()], [feedback(thumb="down")], [], PARAMS)
    assert result.labels == (Label("i-1", False, "thumb", 0.4),)


@pytest.mark.parametrize("failing", ["complete", "correct", "truthful"])
def test_right_means_all_required_verdicts(failing: str) -> None:
    reviews = [review(**{failing: False})]
    assert not label_rows([interaction()], [], reviews, PARAMS).labels[0].right
    lenient = PARAMS.model_copy(update={"require": tuple(name for name in PARAMS.require if name != failing)})
    assert label_rows([interaction()], [], reviews, lenient).labels[0].right


def test_the_latest_review_wins_and_the_disagreement_is_counted() -> None:
    reviews = [review(right=False, days=5), review(right=True, days=2)]
    result = label_rows([interaction()], [], reviews, PARAMS)
    assert [label.right for label in result.labels] == [False]
    assert result.conflicting_reviews == 1


def test_reviews_of_one_moment_need_to_agree_on_right() -> None:
    reviews = [review(right=True, reviewer="a"), review(right=False, reviewer="b")]
    assert not label_rows([interaction()], [], reviews, PARAMS).labels[0].right
    assert not label_rows([interaction()], [], reviews[::-1], PARAMS).labels[0].right


def test_agreeing_reviews_are_no_conflict() -> None:
    assert label_rows([interaction()], [], [review(), review(days=3)], PARAMS).conflicting_reviews == 0


def test_the_majority_of_thumbs_decides() -> None:
    thumbs = [feedback(thumb="up"), feedback(thumb="down", days=2), feedback(thumb="down", days=3)]
    assert not label_rows([interaction()], thumbs, [], PARAMS).labels[0].right


def test_a_tie_is_no_label_but_counted() -> None:
    result = label_rows([interaction()], [feedback(thumb="up"), feedback(thumb="down", days=2)], [], PARAMS)
    assert result.labels == ()
    assert (result.tied_thumbs, result.unlabelled) == (1, 1)


def test_a_known_user_counts_once_with_the_last_thumb() -> None:
    thumbs = [feedback(thumb="down", days=4, user="u"), feedback(thumb="up", days=1, user="u")]
    result = label_rows([interaction()], thumbs, [], PARAMS)
    assert [label.right for label in result.labels] == [False]
    assert result.tied_thumbs == 0


def test_a_tie_under_a_review_is_not_counted() -> None:
    thumbs = [feedback(thumb="up"), feedback(thumb="down", days=2)]
    assert label_rows([interaction()], thumbs, [review()], PARAMS).tied_thumbs == 0


def test_unlabelled_interactions_are_left_out_and_counted_and_the_order_kept() -> None:
    rows = [interaction("c"), interaction("a"), interaction("b")]
    result = label_rows(rows, [feedback("b"), feedback("c", thumb="down")], [], PARAMS)
    assert [label.interaction_id for label in result.labels] == ["c", "b"]
    assert result.counts() == {
        "sme": 0,
        "thumb": 2,
        "right": 1,
        "unlabelled": 1,
        "tied_thumbs": 0,
        "conflicting_reviews": 0,
    }


def test_frozen_at_forgets_what_came_at_that_moment_or_later() -> None:
    thumbs, reviews = [feedback(thumb="up", days=1)], [review(right=False, days=2)]
    before = label_rows([interaction()], thumbs, reviews, PARAMS, frozen_at=later(2))
    after = label_rows([interaction()], thumbs, reviews, PARAMS, frozen_at=later(2) + timedelta(seconds=1))
    assert [(label.source, label.right) for label in before.labels] == [("thumb", True)]
    assert [(label.source, label.right) for label in after.labels] == [("sme", False)]


def test_no_rows_no_labels() -> None:
    result = label_rows([], [], [], PARAMS)
    assert result.to_dict() == {"counts": result.counts(), "labels": []}
    assert result.unlabelled == 0
