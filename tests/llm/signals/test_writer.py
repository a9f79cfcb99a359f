from collections.abc import Callable
from itertools import chain

import numpy as np
import pytest

from abstain.core.contracts import Interaction
from abstain.learning.metrics.weighted_metrics import auroc
from abstain.llm.signals.base import ScorerUnavailable
from abstain.llm.signals.writer import MIN_RANKED, WriterScores, collect_scores, compute_rank
from benchmarks.scorers import FILE
from benchmarks.writer import measure
from tests.llm.signals.builders import interaction, labels, unread

REFUSALS = ("I don't know",)
SCORER = WriterScores(REFUSALS)
Change = Callable[[str, float], float]


def make_answers(
    n: int, seed: int = 0, model: str = "m@1", change: Change = lambda name, value: value
) -> list[Interaction]:
    """Answers, a third of them refusals; `judge` is high for correct answers and low for correct refusals."""
    drawn = np.random.default_rng(seed)
    rows = []
    for at in range(n):
        refusal = at % 3 == 0
        judge = drawn.normal() + (2 * truth(at) - 1) * (-1 if refusal else 1)
        given = {"judge": change("judge", judge), "noise": change("noise", drawn.normal())}
        answer = "I don't know." if refusal else f"It is {at}."
        rows.append(
            interaction(answer, name=f"{model}-{at}").model_copy(update={"model": model, "writer_scores": given})
        )
    return rows


def truth(at: int) -> int:
    return at // 3 % 2


def list_truth(rows: list[Interaction]) -> np.ndarray:
    return np.array([truth(int(row.interaction_id.rpartition("-")[2])) for row in rows])


def fit_scorer(rows: list[Interaction]) -> WriterScores:
    return SCORER.fit(unread(*rows), labels(list_truth(rows).tolist()))


def drop_scores(row: Interaction, *names: str) -> Interaction:
    left = {name: value for name, value in (row.writer_scores or {}).items() if name not in names}
    return row.model_copy(update={"writer_scores": left or None})


def test_writer_scores_rank_answers_and_refusals_separately() -> None:
    test = make_answers(300, 1)
    found = fit_scorer(make_answers(300)).score(unread(*test))
    assert found.dtype == np.float64 and found.min() > 0 and found.max() < 1
    refusal = np.arange(300) % 3 == 0
    assert auroc(list_truth(test)[~refusal], found[~refusal]) > 0.85
    assert auroc(list_truth(test)[refusal], found[refusal]) > 0.85, "where a high mark means an incorrect one"


def test_writer_scores_do_not_depend_on_the_scale() -> None:
    shifts: dict[str, Change] = {
        "m@2": lambda name, value: 100 / (1 + np.exp(-value)),
        "m@3": lambda name, value: 1000 * value - 5000,
    }
    both = [make_answers(120), *(make_answers(120, 1, model) for model in shifts)]
    other = [make_answers(120), *(make_answers(120, 1, model, change) for model, change in shifts.items())]
    plain, moved = (fit_scorer([*chain(*of)]) for of in (both, other))
    tests = [make_answers(60, 2), *(make_answers(60, 3, model) for model in shifts)]
    shifted = [make_answers(60, 2), *(make_answers(60, 3, model, change) for model, change in shifts.items())]
    expected = plain.score(unread(*chain(*tests)))
    np.testing.assert_allclose(moved.score(unread(*chain(*shifted))), expected, atol=1e-6)
    assert auroc(list_truth([*chain(*tests)]), expected) > 0.8


def test_writer_scores_version_with_few_answers_is_nan() -> None:
    few = make_answers(3 * (MIN_RANKED - 1), 1, "m@2")
    scorer = fit_scorer([*make_answers(120), *few])
    new = make_answers(9, 2, "m@3")
    rows = [*make_answers(6, 3), *few[:6], *new, drop_scores(few[0], "judge", "noise")]
    found = scorer.score(unread(*rows))
    refusal = np.array([row.answer.startswith("I don't") for row in rows])
    model = np.array([row.model for row in rows])
    np.testing.assert_array_equal(np.isnan(found), (model == "m@3") | (refusal & (model == "m@2")))
    remark = scorer.describe_unranked(unread(*rows))
    assert remark.startswith("11 answers") and f"fewer than {MIN_RANKED} " in remark
    assert remark.endswith(": m@3, answers (6); m@3, refusals (3); m@2, refusals (2)")
    many = [row for version in range(6) for row in make_answers(2, 2, f"new@{version}")]
    assert scorer.describe_unranked(unread(*many)).endswith("; and 7 others")
    enough = fit_scorer([*make_answers(120), *make_answers(3 * MIN_RANKED, 1, "m@2")])
    assert not np.isnan(enough.score(unread(*few))).any() and enough.describe_unranked(unread(*few)) == ""


def test_writer_scores_missing_scores_of_an_answer() -> None:
    scorer = fit_scorer(make_answers(120))
    row = make_answers(2)[1].model_copy(update={"writer_scores": {"judge": 3.0, "noise": 0.0}})
    found = scorer.score(
        unread(row, drop_scores(row, "noise"), drop_scores(row, "judge"), drop_scores(row, "judge", "noise"))
    )
    np.testing.assert_array_equal(np.isnan(found), [False, False, False, True])
    assert found[0] == pytest.approx(found[1], abs=0.1) and abs(found[0] - found[2]) > 0.1
    unknown = unread(row.model_copy(update={"writer_scores": {"other": 1.0}}))
    assert np.isnan(scorer.score(unknown)).all() and scorer.describe_unranked(unknown).endswith("m@1, answers (1)")
    assert scorer.score(unread()).shape == (0,)


def test_collect_scores_includes_token_log_probs() -> None:
    row = interaction().model_copy(update={"token_log_probs": (-0.5, -1.5, -1.0), "writer_scores": {"mean": 7.0}})
    assert collect_scores(row) == {
        "writer.mean": 7.0,
        "token_log_probs.mean": -1.0,
        "token_log_probs.sum": -3.0,
        "token_log_probs.min": -1.5,
    }
    drawn = np.random.default_rng(0)
    rows = []
    for at, row in enumerate(make_answers(300)):
        log_probs = tuple(-drawn.exponential(3 - 2 * truth(at), 5))
        rows.append(row.model_copy(update={"writer_scores": None, "token_log_probs": log_probs}))
    found = fit_scorer(rows[:150]).score(unread(*rows[150:]))
    assert auroc(list_truth(rows[150:]), found) > 0.85


def test_writer_scores_weight_zero_is_ranked_but_not_learnt() -> None:
    rows = make_answers(240)
    weight = (np.arange(240) < 120).astype(float)
    found = SCORER.fit(unread(*rows), labels(list_truth(rows).tolist(), weight.tolist()))
    turned = np.where(weight > 0, list_truth(rows), 1 - list_truth(rows))
    again = SCORER.fit(unread(*rows), labels(turned.tolist(), weight.tolist()))
    np.testing.assert_array_equal(found.score(unread(*rows)), again.score(unread(*rows)))


def test_compute_rank_of_equal_scores_is_shared() -> None:
    among = np.array([1.0, 2.0, 2.0, 3.0])
    found = [compute_rank(value, among) for value in (0, 1, 2, 2.5, 9)]
    assert found == pytest.approx([0.1, 0.2, 0.5, 0.7, 0.9])


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([drop_scores(row, "judge", "noise") for row in make_answers(60)], "^no training answer has scores"),
        ([row for row in make_answers(3 * MIN_RANKED) if row.answer.startswith("I don't")][1:], "^no version"),
        ([row for row in make_answers(240) if list_truth([row])[0]], "^no version"),
    ],
    ids=["no scores", "too few answers", "one class"],
)
def test_writer_scores_too_little_to_learn_is_unavailable(rows: list[Interaction], why: str) -> None:
    with pytest.raises(ScorerUnavailable, match=why) as raised:
        fit_scorer(rows)
    assert "\n" not in str(raised.value)
    assert np.isnan(SCORER.score(unread(*rows))).all(), "before it is fitted it ranks nothing"


@pytest.mark.slow
@pytest.mark.skipif(not FILE.exists(), reason="../shared/data/qa_from_hf is not here")
def test_writer_scores_rank_published_answers() -> None:
    found = measure(FILE)
    for name, least in {"training, out of fold": 0.64, "hold-out": 0.61, "hold-out, answers": 0.645}.items():
        assert found[name].auroc.interval[0] > least and found[name].unscored < 0.05
    assert found["hold-out, answers"].auroc.value > found["hold-out, refusals"].auroc.value > 0.5
