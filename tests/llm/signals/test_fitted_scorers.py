import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Self

import numpy as np
import pandas as pd
import pytest
from threadpoolctl import threadpool_limits

from abstain.core.codes import Code
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.core.labels import Labels
from abstain.learning.estimators.fusion import fit_fusion
from abstain.learning.metrics.weighted_metrics import auroc
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.base import FeatureBatch, ScorerUnavailable, Signal
from abstain.llm.signals.length import LengthOnly
from abstain.llm.signals.out_of_fold import fit_scorer
from abstain.llm.signals.writer import WriterScores, collect_scores, compute_ranks
from benchmarks.labelled_answers import FILE, read_labelled_answers
from benchmarks.writer import SCENARIOS, measure_holdout, simulate_gain
from tests.llm.signals.builders import interaction, labels, unread

ROWS, COLUMNS = 200, 400
TRAIN = unread(*(interaction(f"answer {at}", name=f"{at}") for at in range(ROWS)))


@dataclass(frozen=True)
class Memory:
    """Least squares on noise, of which there is more than answers: it reproduces every label that it was fitted to."""

    name: str = "memory"
    requires: tuple[FeatureRequest, ...] = ()
    weights: Any = None
    fewest: int = 0

    def fit(self, answers: FeatureBatch, labels: Labels) -> Self:
        if len(answers) < self.fewest:
            raise ScorerUnavailable(Code.TOO_FEW_LABELS, "too few")
        columns = noise(answers)
        with threadpool_limits(1):  # more threads only wait for each other
            return replace(self, weights=columns.T @ np.linalg.solve(columns @ columns.T, labels.correct - 0.5))

    def score(self, answers: FeatureBatch) -> np.ndarray:
        return np.clip(noise(answers) @ self.weights + 0.5, 0, 1)


def noise(answers: FeatureBatch) -> np.ndarray:
    return np.array(
        [np.random.default_rng(int(one.interaction_id)).normal(size=COLUMNS) for one in answers.interactions]
    )


def drawn(seed: int) -> Labels:
    generator = np.random.default_rng(seed)
    return Labels(
        generator.integers(0, 2, ROWS), np.ones(ROWS), np.array([f"g{at % 40}" for at in range(ROWS)], object)
    )


@pytest.mark.heavy
def test_fit_scorer_out_of_fold_noise_has_no_weight() -> None:
    """In sample it ranks perfectly, and takes all weight of the fusion; out of fold it does neither."""
    figures = []
    for seed in range(3):
        labels = drawn(seed)
        fitted = fit_scorer(Memory(), TRAIN, labels, labels.assign_folds(5, 7))
        in_sample = fitted.scorer.score(TRAIN)
        assert auroc(labels.correct, in_sample) == 1.0
        leaking = fit_fusion(pd.DataFrame({"memory": in_sample}), labels).fusion
        assert auroc(labels.correct, leaking.score(pd.DataFrame({"memory": in_sample}))) == 1.0
        honest = fit_fusion(pd.DataFrame({"memory": fitted.out_of_fold}), labels).fusion
        assert honest.coefficients["memory"] < leaking.coefficients["memory"] / 5
        figures.append(auroc(labels.correct, honest.score(pd.DataFrame({"memory": fitted.out_of_fold}))))
    assert 0.4 < np.mean(figures) < 0.6


def test_fit_scorer_scores_are_of_copies_without_the_fold() -> None:
    labels = drawn(0)
    folds = labels.assign_folds(4, 7)
    found = fit_scorer(Memory(), TRAIN, labels, folds).out_of_fold
    for fold in range(4):
        others = Memory().fit(TRAIN.take(np.flatnonzero(folds != fold).tolist()), labels.subset(folds != fold))
        np.testing.assert_allclose(
            found[folds == fold], others.score(TRAIN.take(np.flatnonzero(folds == fold).tolist())), atol=1e-6
        )


def test_fit_scorer_without_parameters_scores_once() -> None:
    scored: list[str] = []
    signal = Signal("fixed", (), lambda row, found: scored.append(row.interaction_id) or 0.5)
    labels = drawn(0)
    fitted = fit_scorer(signal, TRAIN, labels, labels.assign_folds(5, 7))
    assert fitted.scorer is signal and scored == [one.interaction_id for one in TRAIN.interactions]
    np.testing.assert_array_equal(fitted.out_of_fold, np.full(ROWS, 0.5))


def test_fit_scorer_fold_without_enough_rows_is_nan() -> None:
    labels = drawn(0)
    folds = np.where(np.arange(ROWS) % 40 < 10, 0, np.where(np.arange(ROWS) % 40 < 15, 1, 2))
    found = fit_scorer(Memory(fewest=160), TRAIN, labels, folds).out_of_fold
    np.testing.assert_array_equal(np.isnan(found), folds != 1)
    with pytest.raises(ScorerUnavailable):
        fit_scorer(Memory(fewest=ROWS + 1), TRAIN, labels, folds)


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
    alike = interaction("a right answer"), interaction("A wrong word!!", contexts=[], question="Why?")
    assert len(set(scorer.score(unread(*alike)))) == 1 and scorer.score(unread()).shape == (0,)


def test_length_only_uses_weights() -> None:
    heavy = [1] * 4 + [9] * 4
    weighted = LengthOnly().fit(of_lengths(*LENGTHS), labels(SHORT_IS_RIGHT, heavy))
    plain = LengthOnly().fit(of_lengths(*LENGTHS), labels(SHORT_IS_RIGHT))
    assert (weighted.score(of_lengths(*LENGTHS)) < plain.score(of_lengths(*LENGTHS))).all()
    without = LengthOnly().fit(of_lengths(*LENGTHS, 1), labels([*SHORT_IS_RIGHT, 0], [1] * 8 + [1e-9]))
    np.testing.assert_allclose(without.score(of_lengths(2, 70)), plain.score(of_lengths(2, 70)), atol=0.05)


def test_length_only_one_class_is_an_error() -> None:
    one_class = r"^the train split has answers of one class only: bring feedback of both"
    for correct, weight in (([1, 1], [1, 1]), ([0, 0], [1, 1]), ([1, 0], [1, 0]), ([], [])):
        with pytest.raises(AbstainError, match=one_class):
            LengthOnly().fit(of_lengths(*LENGTHS[: len(correct)]), labels(correct, weight))


SCORER = WriterScores(("I don't know",))
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


def fit_writer(rows: list[Interaction]) -> WriterScores:
    return SCORER.fit(unread(*rows), labels(list_truth(rows).tolist()))


def drop_scores(row: Interaction, *names: str) -> Interaction:
    left = {name: value for name, value in (row.writer_scores or {}).items() if name not in names}
    return row.model_copy(update={"writer_scores": left or None})


def test_writer_scores_rank_answers_and_refusals_separately() -> None:
    test = make_answers(300, 1)
    found = fit_writer(make_answers(300)).score(unread(*test))
    assert found.dtype == np.float64 and found.min() > 0 and found.max() < 1
    refusal = np.arange(300) % 3 == 0
    assert auroc(list_truth(test)[~refusal], found[~refusal]) > 0.85
    assert auroc(list_truth(test)[refusal], found[refusal]) > 0.85, "where a high mark means an incorrect one"


@pytest.mark.heavy
def test_writer_scores_other_scales_are_ranked_apart() -> None:
    shifts: dict[str, Change] = {
        "m@2": lambda name, value: 100 / (1 + np.exp(-value)),
        "m@3": lambda name, value: 1000 * value - 50000,
    }
    plain = fit_writer([*make_answers(900), *(chain(*(make_answers(300, 1, model) for model in shifts)))])
    moved_rows = [make_answers(300, 1, model, change) for model, change in shifts.items()]
    moved = fit_writer([*make_answers(900), *chain(*moved_rows)])
    tests = [*chain(*(make_answers(150, 3, model) for model in shifts))]
    shifted = [*chain(*(make_answers(150, 3, model, change) for model, change in shifts.items()))]
    expected, found = plain.score(unread(*tests)), moved.score(unread(*shifted))
    assert auroc(list_truth(shifted), found) == pytest.approx(auroc(list_truth(tests), expected), abs=0.01)
    assert plain.describe_apart() == ""
    line = moved.describe_apart()
    assert "m@2, answers, writer.judge" in line and line.endswith("and 3 others") and "m@1" not in line


def test_writer_scores_new_version_is_scored_at_once() -> None:
    scorer = fit_writer([*make_answers(120), *make_answers(6, 1, "m@2")])
    new = [*make_answers(90, 2, "m@2"), *make_answers(90, 3, "m@3")]
    found = scorer.score(unread(*new))
    assert auroc(list_truth(new), found) > 0.8
    again = WriterScores.from_dict(json.loads(json.dumps(scorer.to_dict())))
    np.testing.assert_array_equal(again.score(unread(*new)), found)


@pytest.mark.heavy
def test_writer_scores_partial_pooling_keeps_up_with_either() -> None:
    """`python -m benchmarks.writer simulation` has more scenarios and sizes."""
    for scenario, sizes in (("another shift each", (100,) * 4), ("one scale", (5,) * 30)):
        gains = [simulate_gain(SCENARIOS[scenario], sizes, seed) for seed in range(2)]
        assert np.mean(gains) > -0.01, scenario


def test_writer_scores_missing_scores_of_an_answer() -> None:
    scorer = fit_writer(make_answers(120))
    row = make_answers(2)[1].model_copy(update={"writer_scores": {"judge": 3.0, "noise": 0.0}})
    found = scorer.score(
        unread(row, drop_scores(row, "noise"), drop_scores(row, "judge"), drop_scores(row, "judge", "noise"))
    )
    np.testing.assert_array_equal(np.isnan(found), [False, False, False, True])
    assert found[0] == pytest.approx(found[1], abs=0.1) and abs(found[0] - found[2]) > 0.1
    unknown = unread(row.model_copy(update={"writer_scores": {"other": 1.0}}))
    assert np.isnan(scorer.score(unknown)).all()
    assert scorer.score(unread()).shape == (0,)


def test_collect_scores_includes_token_log_probs() -> None:
    row = interaction().model_copy(update={"token_log_probs": (-0.5, -1.5, -1.0), "writer_scores": {"mean": 7.0}})
    assert collect_scores(row) == {
        "writer.mean": 7.0,
        "token_log_probs.mean": -1.0,
        "token_log_probs.sum": -3.0,
        "token_log_probs.min": -1.5,
    }


@pytest.mark.heavy
def test_writer_scores_weight_zero_is_ranked_but_not_learnt() -> None:
    rows = make_answers(240)
    weight = (np.arange(240) < 120).astype(float)
    found = SCORER.fit(unread(*rows), labels(list_truth(rows).tolist(), weight.tolist()))
    turned = np.where(weight > 0, list_truth(rows), 1 - list_truth(rows))
    again = SCORER.fit(unread(*rows), labels(turned.tolist(), weight.tolist()))
    np.testing.assert_array_equal(found.score(unread(*rows)), again.score(unread(*rows)))


def test_compute_ranks_of_equal_scores_are_shared() -> None:
    found = compute_ranks(np.array([0, 1, 2, 2.5, 9, np.nan]), np.array([1.0, 2.0, 2.0, 3.0]))
    np.testing.assert_allclose(found, [0.1, 0.2, 0.5, 0.7, 0.9, np.nan])


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([drop_scores(row, "judge", "noise") for row in make_answers(60)], "^no training answer has scores"),
        ([row for row in make_answers(240) if list_truth([row])[0]], "^the training answers with scores"),
    ],
    ids=["no scores", "one class"],
)
def test_writer_scores_too_little_to_learn_is_unavailable(rows: list[Interaction], why: str) -> None:
    with pytest.raises(ScorerUnavailable, match=why):
        fit_writer(rows)
    assert np.isnan(SCORER.score(unread(*rows))).all(), "before it is fitted it ranks nothing"


@pytest.mark.slow
@pytest.mark.skipif(not FILE.exists(), reason="../shared/data/qa_from_hf is not here")
def test_writer_scores_rank_published_answers() -> None:
    found = measure_holdout(read_labelled_answers(FILE))
    for name, least in {"training, out of fold": 0.64, "hold-out": 0.61, "hold-out, answers": 0.645}.items():
        assert found[name].auroc.interval[0] > least and found[name].unscored < 0.05
    assert found["hold-out, answers"].auroc.value > found["hold-out, refusals"].auroc.value > 0.5
