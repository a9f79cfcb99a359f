"""What a guarantee is worth, where the truth is known.

The tables of docs/thresholds.md: `python -m tests.learning.thresholds.test_risk_control sequences 1000`; also `weights`, `documents`
and `bounds`.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mapie.risk_control import BinaryClassificationController, control_fwer
from mapie.risk_control import precision as mapie_precision
from scipy.stats import beta, binom

from abstain.config.params import ThresholdParams
from abstain.core.errors import AbstainError
from abstain.learning.thresholds.risk_control import (
    ControlledThreshold,
    NoControlledThreshold,
    ReviewedAnswers,
    control_risk,
    reviews_needed,
)
from abstain.learning.thresholds.selection import tune_threshold


def asked(target: float = 0.85, metric: str = "precision", confidence: float = 0.9, seed: int = 0) -> ThresholdParams:
    return ThresholdParams.model_validate(
        {
            "metric": metric,
            "target": target,
            "confidence": confidence,
            "seed": seed,
            "min_shown": 20,
            "exchangeable_unit": "answers",
            "on_infeasible": "heuristic",
        }
    )


@dataclass(frozen=True)
class Population:
    """All answers that were ever given: what is true of a threshold is counted, not estimated."""

    confidence: np.ndarray
    correct: np.ndarray
    reviewed: np.ndarray
    document: np.ndarray

    def at(self, threshold: float) -> dict[str, float]:
        shown = self.confidence >= threshold
        wrong = float((shown & (self.correct == 0)).mean())
        return {
            "precision": 1 - wrong / shown.mean() if shown.any() else 1.0,
            "error_rate": wrong,
            "shown": shown.mean(),
        }

    def draw(self, rows: int, generator: np.random.Generator) -> ReviewedAnswers:
        """Answers as reviewers were given them, with the weights that say so."""
        chosen = np.searchsorted(np.cumsum(self.reviewed), generator.random(rows) * self.reviewed.sum())
        return self.of(chosen)

    def documents(self, documents: int, generator: np.random.Generator) -> ReviewedAnswers:
        """All answers about some documents."""
        names = generator.choice(self.document.max() + 1, documents, replace=False)
        return self.of(np.flatnonzero(np.isin(self.document, names)))

    def of(self, chosen: np.ndarray) -> ReviewedAnswers:
        weight = 1 / self.reviewed[chosen]
        return ReviewedAnswers(
            self.confidence[chosen], self.correct[chosen], weight / weight.max(), self.document[chosen]
        )

    def oracle(self, params: ThresholdParams) -> float:
        """The share of answers that the lowest threshold shows which truly keeps the guarantee; 0: there is none."""
        order = np.argsort(-self.confidence)
        wrong = np.cumsum(1 - self.correct[order])
        shown = np.arange(1, len(order) + 1)
        kept = (
            wrong <= (1 - params.target) * shown
            if params.metric == "precision"
            else wrong <= params.target * len(order)
        )
        return float(shown[kept].max(initial=0) / len(order))


def population(seed: int = 0, liked_often: float = 0.25, document_sd: float = 0.0, a_document: int = 10) -> Population:
    """200,000 answers, seven in ten of them liked and more often right, with confidences that say too little of it.

    A liked answer is reviewed `liked_often` times as often as a disliked one. Answers about one document share an effect
    on the log-odds of being right.
    """
    generator = np.random.default_rng(seed)
    rows = 200_000
    liked = generator.random(rows) < 0.7
    confidence = np.where(liked, generator.beta(5, 2, rows), generator.beta(3, 3, rows))
    right = np.where(liked, 0.25 + 0.75 * confidence**0.8, 0.05 + 0.85 * confidence)
    document = np.arange(rows) // a_document
    effect = generator.normal(0, document_sd, document.max() + 1)[document] if document_sd else np.zeros(rows)
    log_odds = np.log(right) - np.log1p(-right) + effect
    correct = (generator.random(rows) < 1 / (1 + np.exp(-log_odds))).astype(int)
    return Population(confidence, correct, np.where(liked, liked_often, 1.0), document)


Procedure = Callable[[ReviewedAnswers, ReviewedAnswers, ThresholdParams], float | None]


def guaranteed(tested: ReviewedAnswers, training: ReviewedAnswers, params: ThresholdParams) -> float | None:
    made = control_risk(replace(tested, groups=None), training, params)
    return made.threshold if isinstance(made, ControlledThreshold) else None


def guaranteed_one_a_document(
    tested: ReviewedAnswers, training: ReviewedAnswers, params: ThresholdParams
) -> float | None:
    made = control_risk(tested, training, params)
    return made.threshold if isinstance(made, ControlledThreshold) else None


def guaranteed_without_weights(
    tested: ReviewedAnswers, training: ReviewedAnswers, params: ThresholdParams
) -> float | None:
    return guaranteed(replace(tested, weight=None), replace(training, weight=None), params)


def heuristic(tested: ReviewedAnswers, training: ReviewedAnswers, params: ThresholdParams) -> float | None:
    try:
        return tune_threshold(tested.confidence, tested.correct, params, tested.weight).threshold
    except AbstainError:
        return None


def by_mapie(method: str) -> Procedure:
    """The same thresholds and exact p-values, tested by another procedure of MAPIE's; of `fixed_sequence` from the top."""

    def procedure(tested: ReviewedAnswers, training: ReviewedAnswers, params: ThresholdParams) -> float | None:
        learn, even = training.even(params.seed + 1), replace(tested, groups=None).even(params.seed)
        thresholds = np.unique(np.quantile(learn.confidence, np.arange(50) / 50))[::-1]
        found = control_fwer(exact(thresholds, even, 1 - params.target), 1 - params.confidence, method)
        return float(thresholds[found].min()) if len(found) else None

    return procedure


def mapie_alone(tested: ReviewedAnswers, training: ReviewedAnswers, params: ThresholdParams) -> float | None:
    """What its documentation shows, on even rows: its own precision, its own hundred thresholds from 0 to 0.99."""
    learn, even = training.even(params.seed + 1), replace(tested, groups=None).even(params.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        controller = controller_of(params)
        controller.learn_fixed_sequence_order(learn.confidence, learn.correct, binary=True)
        controller.calibrate(even.confidence, even.correct)
    return controller.best_predict_param


def controller_of(params: ThresholdParams, **options: object) -> BinaryClassificationController:
    return BinaryClassificationController(
        predict_function=lambda confidence: np.column_stack([1 - confidence, confidence]),
        risk=mapie_precision,
        target_level=params.target,
        confidence_level=params.confidence,
        **{"fwer_method": "split_fixed_sequence", **options},
    )


def exact(thresholds: np.ndarray, rows: ReviewedAnswers, tolerated: float) -> np.ndarray:
    shown = [rows.confidence >= threshold for threshold in thresholds]
    return np.array([binom.cdf((1 - rows.correct)[s].sum(), s.sum(), tolerated) for s in shown])


@dataclass(frozen=True)
class Record:
    """Of many samples: how often a guarantee was made, how often it was not true, and the share of all answers shown."""

    samples: int
    made: int
    broken: int
    shown: float

    def row(self, oracle: float) -> str:
        return f"{self.made / self.samples:.1%} | {self.broken / self.samples:.1%} | {self.shown / oracle:.1%}"


def simulate(
    whole: Population,
    procedures: dict[str, Procedure],
    params: ThresholdParams,
    samples: int,
    draw: Callable[[np.random.Generator], tuple[ReviewedAnswers, ReviewedAnswers]],
) -> dict[str, Record]:
    """Every procedure on the same `samples` pairs of (tested, training) answers."""
    counted = {name: [0, 0, 0.0] for name in procedures}
    for sample in range(samples):
        tested, training = draw(np.random.default_rng([17, sample]))
        for name, procedure in procedures.items():
            threshold = procedure(tested, training, params.model_copy(update={"seed": 2 * sample}))
            if threshold is not None:
                truth = whole.at(threshold)
                missed = (
                    truth["precision"] < params.target
                    if params.metric == "precision"
                    else truth["error_rate"] > params.target
                )
                counted[name][0] += 1
                counted[name][1] += int(missed)
                counted[name][2] += truth["shown"] / samples
    return {name: Record(samples, *figures) for name, figures in counted.items()}


def evenly(whole: Population, rows: int) -> Callable[[np.random.Generator], tuple[ReviewedAnswers, ReviewedAnswers]]:
    """`rows` reviewed answers to test on, and twice as many to learn from."""
    return lambda generator: (whole.draw(rows, generator), whole.draw(2 * rows, generator))


def most_that_are_broken(samples: int, delta: float = 0.1) -> int:
    """More broken guarantees than this are seen in one of a thousand runs of a procedure that breaks `delta` of them."""
    return int(binom.ppf(0.999, samples, delta))


@pytest.mark.heavy
def test_the_guarantee_is_kept_where_the_heuristic_threshold_and_one_without_weights_are_not() -> None:
    """Liked answers are more often right, and were reviewed four times as often as the others."""
    whole = population(liked_often=4)
    procedures: dict[str, Procedure] = {
        "guarantee": guaranteed,
        "heuristic": heuristic,
        "without weights": guaranteed_without_weights,
    }
    found = simulate(whole, procedures, asked(0.8), 40, evenly(whole, 500))
    assert found["guarantee"].broken <= most_that_are_broken(40) == 11
    assert found["guarantee"].made >= 20
    assert found["heuristic"].broken > most_that_are_broken(40)
    assert found["without weights"].broken > most_that_are_broken(40)


def keeps_its_guarantee(samples: int, metric: str, target: float) -> None:
    whole = population()
    params = asked(target, metric)
    found = simulate(whole, {"guarantee": guaranteed, "heuristic": heuristic}, params, samples, evenly(whole, 800))
    assert found["guarantee"].broken <= most_that_are_broken(samples)
    assert found["heuristic"].broken >= 0.35 * samples > most_that_are_broken(samples)
    assert found["guarantee"].made >= 0.925 * samples
    assert found["guarantee"].shown > 0.7 * whole.oracle(params)


METRICS = pytest.mark.parametrize(("metric", "target"), [("precision", 0.8), ("error_rate", 0.1)])


@pytest.mark.slow
@METRICS
def test_the_guarantee_is_kept_in_100_samples(metric: str, target: float) -> None:
    keeps_its_guarantee(100, metric, target)


@pytest.mark.soak(twin="test_the_guarantee_is_kept_in_100_samples")
@METRICS
def test_the_guarantee_is_kept_in_400_samples(metric: str, target: float) -> None:
    keeps_its_guarantee(400, metric, target)


@pytest.mark.slow
def test_what_is_learnt_on_training_rows_shows_more_than_procedures_that_learn_nothing() -> None:
    whole = population()
    procedures = {"learnt": guaranteed, "holm": by_mapie("bonferroni_holm"), "from the top": by_mapie("fixed_sequence")}
    found = simulate(whole, procedures, asked(0.85), 100, evenly(whole, 800))
    assert found["learnt"].shown > 2 * found["holm"].shown
    assert found["learnt"].shown > 2 * found["from the top"].shown


@pytest.mark.slow
def test_as_many_reviews_as_are_said_to_be_needed_make_a_guarantee_four_times_in_five() -> None:
    whole, params = population(), asked(0.85)
    refused = [
        made.reviews_needed
        for sample in range(60)
        if isinstance(made := _made(whole, params, 300, sample), NoControlledThreshold)
        and made.reviews_needed is not None
    ]
    needed = int(np.median(refused))
    assert len(refused) > 30 and needed > 300
    made = sum(isinstance(_made(whole, params, needed, 1000 + sample), ControlledThreshold) for sample in range(100))
    assert made == pytest.approx(80, abs=15)


def _made(
    whole: Population, params: ThresholdParams, rows: int, sample: int
) -> ControlledThreshold | NoControlledThreshold:
    tested, training = evenly(whole, rows)(np.random.default_rng([23, sample]))
    return control_risk(replace(tested, groups=None), training, params.model_copy(update={"seed": 2 * sample}))


def graded(*groups: tuple[float, int, int]) -> ReviewedAnswers:
    """Answers from (confidence, how many right, how many wrong)."""
    confidence = np.concatenate([np.full(right + wrong, value) for value, right, wrong in groups])
    return ReviewedAnswers(
        confidence, np.concatenate([np.repeat([1, 0], [right, wrong]) for _, right, wrong in groups])
    )


TRAINING = graded((0.9, 38, 2), (0.6, 20, 4), (0.3, 20, 16))


def test_a_guarantee_by_hand() -> None:
    """40 right of 40, then 58 of 60 (p 0.053), then 76 of 100: the last is what 0.9 does not reach."""
    tested = graded((0.9, 40, 0), (0.6, 18, 2), (0.3, 18, 22))
    made = control_risk(tested, TRAINING, asked(0.9))
    assert isinstance(made, ControlledThreshold)
    assert made.to_dict() == {
        "guaranteed": True,
        "metric": "precision",
        "target": 0.9,
        "confidence": 0.9,
        "threshold": 0.6,
        "precision": pytest.approx(58 / 60),
        "error_rate": pytest.approx(0.02),
        "coverage": pytest.approx(0.6),
        "rows": 100,
        "n_eff": 100,
        "shown": 60,
        "p_value": pytest.approx(sum(math.comb(60, k) * 0.1**k * 0.9 ** (60 - k) for k in range(3))),
        "message": "precision of at least 0.9 at confidence 0.9 with 100 reviewed answers: threshold 0.600 shows 60%, "
        "0.967 of them correct",
    }
    assert json.loads(json.dumps(made.to_dict()))["threshold"] == made.threshold


def test_an_error_rate_is_of_all_answers_and_needs_nothing_of_the_training_rows_but_thresholds() -> None:
    tested = graded((0.9, 40, 0), (0.6, 18, 2), (0.3, 18, 22))
    for training in (TRAINING, graded((0.9, 0, 40), (0.6, 0, 24), (0.3, 36, 0))):
        made = control_risk(tested, training, asked(0.06, "error_rate"))
        assert isinstance(made, ControlledThreshold)
        assert (made.threshold, made.error_rate, made.shown) == (0.6, pytest.approx(0.02), 60)
        assert made.p_value == pytest.approx(sum(math.comb(100, k) * 0.06**k * 0.94 ** (100 - k) for k in range(3)))
        assert str(made).startswith("error rate of at most 0.06 at confidence 0.9 with 100 reviewed answers: thresh")


def test_too_few_reviews_say_how_many_are_needed() -> None:
    """38 + 19 of 40 + 20 right at the threshold tried first, which shows 40 of 100 + 20 of 50 answers."""
    tested, training = graded((0.9, 19, 1), (0.3, 10, 20)), graded((0.9, 38, 2), (0.3, 20, 40))
    made = control_risk(tested, training, asked(0.9))
    assert isinstance(made, NoControlledThreshold) and made.more_reviews is not None
    assert made.reviews_needed == reviews_needed("precision", 0.9, 0.9, 0.95, 0.4) == 383
    assert str(made) == (
        "no threshold reaches precision 0.9 at confidence 0.9 with 50 reviewed answers; about 383 would be needed: "
        "bring about 333 more reviews, or lower threshold.target"
    )
    of_quarter = control_risk(tested, training, asked(0.9), tested_share=0.25)
    assert isinstance(of_quarter, NoControlledThreshold) and of_quarter.more_reviews == 4 * made.more_reviews
    assert (made.threshold, made.precision, made.coverage) == (0.9, pytest.approx(0.95), 0.4)
    assert made.to_dict()["guaranteed"] is False and json.dumps(made.to_dict())


def test_where_few_answers_exclude_nothing_at_least_as_many_are_named_as_the_best_truth_needs() -> None:
    """2 of 10 + 20 are incorrect and 5 % are tolerated: a truth of 1.2 % would show as many one time in twenty."""
    few = graded((0.9, 9, 1)), graded((0.9, 19, 1))
    made = control_risk(*few, asked(0.05, "error_rate"), tested_share=0.25)
    assert isinstance(made, NoControlledThreshold) and made.at_least
    best = beta.ppf(0.05, 2, 29)
    assert made.reviews_needed == reviews_needed("error_rate", 0.05, 0.9, best, 1.0)
    assert f"bring at least {made.more_reviews:,} more reviews" in str(made)
    many = graded((0.9, 900, 100))
    assert "more of them will not help" in str(control_risk(many, many, asked(0.05, "error_rate")))


def test_uneven_reviews_say_what_they_are_worth_and_need_more() -> None:
    tested = graded((0.9, 19, 1), (0.3, 10, 20))
    weight = np.where(np.arange(50) % 2, 1.0, 0.2)
    made = control_risk(replace(tested, weight=weight), TRAINING, asked(0.95))
    assert isinstance(made, NoControlledThreshold) and 25 <= made.n_eff < 40
    assert f"with 50 reviewed answers (effective sample size {made.n_eff})" in str(made)
    assert replace(tested, weight=weight).even_share == pytest.approx(0.6)


def test_a_probe_that_is_not_good_enough_needs_no_more_reviews_but_a_lower_guarantee() -> None:
    poor = graded((0.9, 32, 8), (0.3, 30, 30))
    made = control_risk(poor, poor, asked(0.95))
    assert isinstance(made, NoControlledThreshold) and made.reviews_needed is None
    assert str(made) == (
        "no threshold reaches precision 0.95 at confidence 0.9 with 100 reviewed answers, and more of them will not "
        "help: within reach is 0.800 while showing 40% (threshold 0.900): lower threshold.target, or train a better probe"
    )
    made = control_risk(poor, poor, asked(0.01, "error_rate"))
    assert (
        "error rate 0.01" in str(made)
        and "within reach is 0.080" in str(made)
        and "raise threshold.target" in str(made)
    )


def test_confidences_on_two_scales_are_noticed() -> None:
    tested, training = graded((0.5, 60, 40)), graded((0.9, 60, 0), (0.7, 60, 40))
    message = (
        "^no reviewed answer of the validation split has a confidence of 0.700 or more, as every training "
        "answer has: score both on one scale, the training split out of fold$"
    )
    for params in (asked(0.05, "error_rate"), asked(0.9)):
        with pytest.raises(AbstainError, match=message):
            control_risk(tested, training, params)


tables = st.lists(
    st.tuples(st.integers(0, 10).map(lambda n: n / 10), st.integers(0, 30), st.integers(0, 6)), min_size=1, max_size=8
).filter(lambda groups: sum(right + wrong for _, right, wrong in groups) > 0)


@given(tables, tables, st.sampled_from([0.5, 0.8, 0.95]), st.sampled_from(["precision", "error_rate"]))
@settings(deadline=None, max_examples=40)
def test_what_is_guaranteed_is_significant_on_the_tested_answers(
    tested: list[tuple[float, int, int]], training: list[tuple[float, int, int]], target: float, metric: str
) -> None:
    rows, params = graded(*tested), asked(target, metric)
    try:
        made = control_risk(rows, graded(*training), params)
    except AbstainError:
        learnt = graded(*training)
        assert rows.confidence.max() < learnt.confidence.max()
        return
    shown = rows.confidence >= made.threshold
    wrong = int((shown & (rows.correct == 0)).sum())
    if isinstance(made, ControlledThreshold):
        of, tolerated = (shown.sum(), 1 - target) if metric == "precision" else (len(shown), target)
        assert made.p_value == pytest.approx(binom.cdf(wrong, of, tolerated)) and made.p_value <= 0.1 + 1e-12
        assert made.shown == shown.sum() > 0
        assert made.precision == pytest.approx(1 - wrong / shown.sum())
        assert made.error_rate == pytest.approx(wrong / len(shown))
    else:
        assert made.reviews_needed is None or made.reviews_needed > len(shown)
    assert json.loads(json.dumps(made.to_dict()))["message"] == str(made)


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n // 4))))
@settings(deadline=None, max_examples=40)
def test_the_library_never_calls_significant_what_is_not(counts: tuple[int, int]) -> None:
    """Its rounding of n * (k / n) may count a wrong answer too many, never one too few."""
    shown, wrong = counts
    made = control_risk(graded((0.9, shown - wrong, wrong)), TRAINING, asked(0.8))
    exactly = binom.cdf(wrong, shown, 0.2)
    assert isinstance(made, NoControlledThreshold) or exactly <= 0.1
    assert isinstance(made, ControlledThreshold) or binom.cdf(wrong + 1, shown, 0.2) > 0.1 or exactly > 0.1


def test_why_the_risk_is_an_error_and_no_threshold_is_tried_that_shows_no_training_row() -> None:
    """What MAPIE 1.6 makes of its own `precision` and grid; where this fails, it has been mended upstream."""
    tested = graded((0.5, 95, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = controller_of(asked(0.9), fwer_method="bonferroni", list_predict_params=np.array([0.5]))
        own.calibrate(tested.confidence, tested.correct)
        assert own.p_values[0, 0] == pytest.approx(binom.cdf(6, 100, 0.1))  # six wrong answers, not five
        own = controller_of(asked(0.9)).learn_fixed_sequence_order(tested.confidence, tested.correct, binary=True)
        own.calibrate(tested.confidence, tested.correct)
    assert own.best_predict_param is None and np.isnan(own.p_values).all()  # above 0.5 it shows nothing
    made = control_risk(tested, tested, asked(0.9))
    assert isinstance(made, ControlledThreshold) and made.p_value == pytest.approx(binom.cdf(5, 100, 0.1))


def test_the_seed_alone_draws() -> None:
    tested = replace(graded((0.9, 50, 2), (0.3, 20, 20)), weight=np.where(np.arange(92) % 3, 1.0, 0.3))
    made = [control_risk(tested, TRAINING, asked(0.8, seed=seed)) for seed in (0, 0, 1, 2, 3, 4)]
    assert made[0] == made[1]
    assert len({one.n_eff for one in made}) > 1


def test_answers_of_one_group_count_once() -> None:
    tested = graded((0.9, 60, 0), (0.3, 20, 20))
    alone = control_risk(replace(tested, groups=np.arange(100)), TRAINING, asked(0.9))
    assert alone == control_risk(tested, TRAINING, asked(0.9)) and isinstance(alone, ControlledThreshold)
    few = replace(tested, groups=np.arange(100) // 10)
    made = control_risk(few, TRAINING, asked(0.9))
    assert isinstance(made, NoControlledThreshold) and made.n_eff == 10
    assert few.even_share == pytest.approx(0.1)
    assert made.reviews_needed is not None and made.reviews_needed > 300


def test_reviews_needed_by_hand() -> None:
    """Where all that is shown is right, 0.95 ** 45 is the first power of 0.95 that is at most 0.1."""
    assert reviews_needed("precision", 0.95, 0.9, 1.0, 1.0) == 45
    assert reviews_needed("precision", 0.95, 0.9, 1.0, 0.5) == 90
    assert reviews_needed("precision", 0.95, 0.9, 1.0, 0.5, even_share=0.5) == 180
    assert reviews_needed("error_rate", 0.05, 0.9, 0.0, 0.5) == 45
    assert reviews_needed("precision", 0.95, 0.9, 0.95, 1.0) is None
    assert reviews_needed("precision", 0.95, 0.9, 0.9501, 1.0) is None  # by millions of reviews
    assert reviews_needed("error_rate", 0.05, 0.9, 0.06, 1.0) is None


@given(st.floats(0.6, 0.95), st.floats(0.02, 0.3), st.sampled_from([0.8, 0.9, 0.99]))
@settings(deadline=None, max_examples=20)
def test_with_as_many_a_guarantee_is_made_four_times_in_five(target: float, better: float, confidence: float) -> None:
    reached = min(target + better, 1.0)
    needed = reviews_needed("precision", target, confidence, reached, 1.0)
    assert needed is not None

    def power(rows: int) -> float:
        few_enough = binom.cdf(np.arange(rows + 1), rows, 1 - target) <= 1 - confidence
        return float(binom.cdf(few_enough.sum() - 1, rows, 1 - reached))

    assert power(needed) >= 0.8
    assert min(power(rows) for rows in range(int(needed * 0.98) - 2, needed)) < 0.8


def test_values_that_are_none_are_refused_in_both_tables() -> None:
    """By `calibration.checked_rows`, whose messages its own tests name."""
    good = graded((0.9, 60, 0), (0.3, 20, 20))
    for bad in (replace(good, confidence=np.full(100, np.nan)), replace(good, weight=np.zeros(100))):
        for tested, training in ((bad, good), (good, bad)):
            with pytest.raises(AbstainError, match="^100 of 100 reviewed answers have a "):
                control_risk(tested, training, asked())


def test_without_rows_there_is_nothing_to_say() -> None:
    none = ReviewedAnswers(np.array([]), np.array([], int))
    with pytest.raises(AbstainError, match="^no reviewed answers to test a threshold on: bring reviews$"):
        control_risk(none, TRAINING, asked())
    with pytest.raises(AbstainError, match="^no reviewed answers in the training split"):
        control_risk(TRAINING, none, asked())


@pytest.mark.parametrize("rows", [graded((0.9, 1, 0)), graded((0.9, 0, 1)), graded((0.2, 0, 50)), graded((1.0, 5, 0))])
def test_one_row_and_one_class_are_judged_without_a_figure_that_is_made_up(rows: ReviewedAnswers) -> None:
    for metric in ("precision", "error_rate"):
        made = control_risk(rows, rows, asked(0.02 if metric == "error_rate" else 0.9, metric))
        assert isinstance(made, NoControlledThreshold)
        assert made.precision == pytest.approx(rows.correct.mean())
        assert (made.reviews_needed is None) == (rows.correct.mean() == 0)
    assert isinstance(
        control_risk(graded((0.8, 200, 0)), rows, asked(0.9)), ControlledThreshold | NoControlledThreshold
    )


def compare_sequences(samples: int) -> None:
    whole, params = population(), asked(0.85)
    procedures = {
        "learnt sequence": guaranteed,
        "Bonferroni-Holm": by_mapie("bonferroni_holm"),
        "fixed sequence, from the top": by_mapie("fixed_sequence"),
    }
    print(f"precision 0.85, oracle shows {whole.oracle(params):.1%}")
    for rows in (200, 400, 800, 1600):
        report(f"{rows}", simulate(whole, procedures, params, samples, evenly(whole, rows)), whole.oracle(params))
    alone = simulate(whole, {"MAPIE alone": mapie_alone}, params, samples // 10, evenly(whole, 800))
    report("800", alone, whole.oracle(params))


def compare_weights(samples: int) -> None:
    procedures = {"guarantee": guaranteed, "weights ignored": guaranteed_without_weights, "heuristic": heuristic}
    for liked_often in (0.25, 4.0):
        whole = population(liked_often=liked_often)
        for params in (asked(0.8), asked(0.1, "error_rate")):
            found = simulate(whole, procedures, params, samples, evenly(whole, 500))
            report(f"{params.metric} | liked {liked_often:g} times as often", found, whole.oracle(params))


def compare_documents(samples: int) -> None:
    """800 answers about whole documents, all of them reviewed."""
    procedures = {"every answer": guaranteed, "one a document": guaranteed_one_a_document}
    for document_sd, a_document in ((0.0, 20), (0.5, 5), (1.0, 5), (0.5, 20), (1.0, 20), (2.0, 20)):
        whole, params = population(1, 1.0, document_sd, a_document), asked(0.8)

        def draw(
            generator: np.random.Generator, whole: Population = whole, a_document: int = a_document
        ) -> tuple[ReviewedAnswers, ReviewedAnswers]:
            return whole.documents(800 // a_document, generator), whole.documents(1600 // a_document, generator)

        answers = whole.correct.reshape(-1, a_document)
        together = np.corrcoef(answers[:, 0], answers[:, 1])[0, 1]
        found = simulate(whole, procedures, params, samples, draw)
        report(f"{a_document} a document, correlated {together:.2f}", found, whole.oracle(params))


def compare_bounds(samples: int) -> None:
    """100 shown answers, some of weight 1/4, 5 % of them wrong where 10 % are: how often each test sees it at 10 %."""
    generator = np.random.default_rng(0)
    for light in (0.3, 0.6):
        seen = np.zeros(4)
        for _ in range(samples):
            weight = np.where(generator.random(100) < light, 0.25, 1.0)
            wrong = generator.random(100) < 0.05

            def thinned(weight: np.ndarray = weight, wrong: np.ndarray = wrong) -> float:
                kept = generator.random(100) < weight
                return float(binom.cdf(wrong[kept].sum(), kept.sum(), 0.1))

            p_values = [thinned() for _ in range(11)]
            seen += np.array([p_values[0], 2 * np.mean(p_values), *betting(weight, wrong)]) <= 0.1
        figures = " | ".join(f"{share:.1%}" for share in seen / samples)
        print(f"| {light:.0%} light | thinned, mean of eleven doubled, betting, betting that knows | {figures} |")


def betting(weight: np.ndarray, wrong: np.ndarray) -> tuple[float, float]:
    """p-values of martingales that bet on weight * (0.1 - wrong) being positive on average: learning how much to bet
    from the rows before (Waudby-Smith and Ramdas 2024), and knowing what is best where 5 % are wrong.
    """
    gain = weight * (0.1 - wrong)
    before = np.concatenate([np.zeros((2, 1)), np.cumsum([gain, gain**2], axis=1)[:, :-1]], axis=1)
    learnt = np.clip(before[0] / (before[1] + 0.25 * 0.9**2), 0, 0.5 / 0.9)
    choices = np.linspace(0, 0.99 / 0.9, 50)[:, None]
    growth = 0.95 * np.log1p(0.1 * choices * weight) + 0.05 * np.log1p(-0.9 * choices * weight)
    best = choices[np.argmax(growth.mean(axis=1)), 0]
    return tuple(float(np.exp(-max(0, np.cumsum(np.log1p(bet * gain)).max()))) for bet in (learnt, best))  # type: ignore[return-value]


def report(what: str, found: dict[str, Record], oracle: float) -> None:
    for name, record in found.items():
        print(f"| {what} | {name} | {record.row(oracle)} |", flush=True)


if __name__ == "__main__":
    tables = {
        "sequences": compare_sequences,
        "weights": compare_weights,
        "documents": compare_documents,
        "bounds": compare_bounds,
    }
    tables[sys.argv[1]](int(sys.argv[2]))
