"""What the guarantee is worth on people's verdicts: `python -m benchmarks.real_verdicts FOLDER`.

FOLDER holds `user_feedback.jsonl.gz` of *Continually Improving Extractive QA via Human Feedback* (Gao et al., EMNLP
2023): answers of several systems in nine rounds, each judged by the user who had asked; in each round a system is
another version. An answer, refusals included, is correct if the verdict is Correct. The scorer `writer` is served, the
only one that can be without a forward pass. Thresholds are `guaranteed`, or for comparison `heuristic`: these just
reach the target on the answers by which they are chosen.

Without shift: the long-term system's rounds before `SET_ASIDE`, pooled, and split by topic as params.yaml says, again
and again. The scorer is fitted to the training answers, the threshold chosen on the validation answers, and judged on
the test answers (`refutation`).

With shift: the answers of one round, all systems, by the verdicts of the rounds before it on other topics. Scores of a
new version have no ranks before some of its answers are at hand: `FRESH` of the round's answers are drawn, at most half
of them, and all figures are of the others. Two set-ups judge the same answers:

* `past`: the drawn answers give ranks, and no verdict of the round is known.
* `fresh`: threshold and calibrator are fitted to the verdicts on the drawn answers, the scorer stays.

Each round is evaluated with many divisions of the past and draws of the round, so that no seed decides. Figures are of
all of these together; their 95 % intervals are of a bootstrap by topic.

With `--replay`, instead, the rounds follow one another, and little is known of each (`feedback`). The threshold of a
round is the guaranteed one of the reviews so far, else their heuristic one. Everything is shown until there is one for
the first time; from then on, a round without one withholds everything. The drawn answers come first, and are withheld
for want of ranks. Thumbs train the scorer, and only reviews test; all answers of the past give ranks, on topics of the
round or not. The verdicts on all the other answers of the round judge what is shown.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import betainc

from abstain.config.params import LabelParams, Params, load_params
from abstain.core.labels import Labels
from abstain.core.text import is_refusal
from abstain.data.store.splits import assign_splits, hash_to_unit_interval
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import Estimate, Statistic, bootstrap
from abstain.learning.metrics.calibration import fit_calibrator
from abstain.learning.metrics.weighted_metrics import row_weights
from abstain.learning.thresholds.design_effect import estimate_intraclass_correlation
from abstain.learning.thresholds.risk_control import ReviewedAnswers
from abstain.llm.signals.base import FeatureBatch, Scorer
from abstain.llm.signals.out_of_fold import fit_scorer
from abstain.llm.signals.writer import WriterScores
from benchmarks.guarantee import Procedure, find_guaranteed_threshold, find_heuristic_threshold, make_threshold_params
from benchmarks.labelled_answers import FILE, N_RESAMPLES, ROOT, SEED, LabelledAnswers, read_labelled_answers

SYSTEM = "long-term"
ROUNDS = (3, 4, 5, 6, 7, 8, 9)
SET_ASIDE = 8
"""The first of the rounds by which nothing was chosen."""
TARGETS = (0.8, 0.75)
REJECTED_BELOW = 0.05
"""A p-value below this refutes the target."""
FRESH = 200
VALIDATION = 1 / 3
"""The share of the past's topics that choose the threshold: as many as in params.yaml, where a hold-out is taken, too.
"""


REVIEWED_SAMPLE, REVIEWED_WITHHELD = 50, 0.05
"""How many answers of a round are drawn for review, and the share of the withheld ones that are reviewed besides."""
THUMBS: dict[str, tuple[float, float] | None] = {
    "thumbs on 3 %": (0.03, 0.0),
    "thumbs on 10 %": (0.1, 0.0),
    "thumbs on 30 %": (0.3, 0.0),
    "thumbs on 30 %, 1 in 10 wrong": (0.3, 0.1),
    "all labels": None,
}
"""The share of shown answers with a thumb, and that of thumbs that contradict the verdict; None: all are reviewed."""


PROCEDURES: dict[str, Procedure] = {"guaranteed": find_guaranteed_threshold, "heuristic": find_heuristic_threshold}


@dataclass(frozen=True)
class Feedback:
    """What is known about each answer of the data, both (rows,).

    Attributes:
        inclusion: Probability with which the answer was to be reviewed; nan without a review.
        thumb: 1 for up, 0 for down, nan for none.
    """

    inclusion: np.ndarray
    thumb: np.ndarray

    @classmethod
    def make_fully_reviewed(cls, rows: int) -> Feedback:
        """Return feedback in which every answer has a review and none has a thumb."""
        return cls(np.ones(rows), np.full(rows, np.nan))

    def make_labels(self, dataset: LabelledAnswers, params: LabelParams, rows: np.ndarray) -> Labels:
        """Return the labels of answers at `rows`: a review counts before a thumb; without either the weight is 0."""
        is_reviewed, has_thumb = (~np.isnan(values[rows]) for values in (self.inclusion, self.thumb))
        correct = np.where(is_reviewed, dataset.correct[rows], np.nan_to_num(self.thumb[rows])).astype(int)
        weight = np.where(is_reviewed, 1.0, has_thumb * params.thumb_weight)
        return Labels(correct, weight, dataset.topic[rows])


@dataclass(frozen=True)
class FittedWriter:
    """The fitted scorer, and its out-of-fold confidences of the reviewed training answers."""

    dataset: LabelledAnswers
    feedback: Feedback
    scorer: Scorer
    training: ReviewedAnswers

    def confidence(self, rows: np.ndarray) -> np.ndarray:
        """Return the confidences, (rows,), nan for answers without a score."""
        return self.scorer.score(FeatureBatch(self.dataset.take(rows), {}))

    def get_reviewed(self, rows: np.ndarray) -> ReviewedAnswers:
        """Return the answers at `rows` that have a review and a score."""
        return select_scored(self.dataset, rows, self.confidence(rows), self.feedback.inclusion[rows])


@dataclass(frozen=True)
class ThresholdOutcome:
    """What a threshold shows of answers on which it was not chosen.

    Attributes:
        rows: Indices of the answers in the data, (rows,).
        shown: Whether each is shown, bool (rows,).
        p_value: The p-value of `compute_p_value`.
    """

    rows: np.ndarray
    shown: np.ndarray
    p_value: float


def select_scored(
    dataset: LabelledAnswers, rows: np.ndarray, confidence: np.ndarray, inclusion: np.ndarray
) -> ReviewedAnswers:
    """Return the answers at `rows` with a `confidence` and an `inclusion` probability, each (rows,)."""
    is_known = ~np.isnan(confidence + inclusion)
    known_rows = rows[is_known]
    return ReviewedAnswers(
        confidence[is_known], dataset.correct[known_rows], row_weights(inclusion[is_known]), dataset.topic[known_rows]
    )


def fit_writer(
    dataset: LabelledAnswers, params: Params, train: np.ndarray, ranking_rows: np.ndarray, feedback: Feedback
) -> FittedWriter:
    """Fit the scorer to the feedback on the answers at `train`. These and those at `ranking_rows` give ranks."""
    rows, is_training = np.concatenate([train, ranking_rows]), np.repeat([1, 0], [len(train), len(ranking_rows)])
    labels = feedback.make_labels(dataset, params.labels, rows)
    labels = replace(labels, correct=labels.correct * is_training, weight=labels.weight * is_training)
    folds = labels.assign_folds(params.probe.folds, params.probe.seed)
    folds[~np.isin(labels.groups, labels.groups[labels.weight > 0])] = -1  # to give ranks for every labelled fold
    fitted = fit_scorer(WriterScores(params.labels.refusals), FeatureBatch(dataset.take(rows), {}), labels, folds)
    training = select_scored(dataset, train, fitted.out_of_fold[: len(train)], feedback.inclusion[train])
    return FittedWriter(dataset, feedback, fitted.scorer, training)


def compute_p_value(answers: ReviewedAnswers, training: ReviewedAnswers, threshold: float, target: float) -> float:
    """Return the probability of as many incorrect shown answers or more if the true precision were `target`.

    The test is binomial for the effective sample size of the shown answers, like the guarantee's own test. But the
    intraclass correlation (of `answers` and `training` together) is the estimate, and not a safe upper bound: that
    would make a violated guarantee harder to detect.
    """
    tested_totals, training_totals = (
        rows.validate("").compute_totals(np.array([threshold]), "precision") for rows in (answers, training)
    )
    n_eff, wrong_share = (
        tested_totals.compute_effective_size(estimate_intraclass_correlation(tested_totals, training_totals)[0])[0],
        tested_totals.incorrect_share[0],
    )
    if not wrong_share:
        return 1.0
    return float(betainc(wrong_share * n_eff, (1 - wrong_share) * n_eff + 1, 1 - target))


def evaluate_procedure(
    procedure: Procedure, target: float, fitted: FittedWriter, tested: ReviewedAnswers, rows: np.ndarray
) -> ThresholdOutcome | None:
    """Return what the threshold of `procedure`, chosen on `tested`, shows of answers at `rows`; None without one."""
    threshold = procedure(tested, fitted.training, make_threshold_params(target))
    if threshold is None:
        return None
    confidence = fitted.confidence(rows)
    answers = select_scored(fitted.dataset, rows, confidence, np.ones(len(rows)))
    return ThresholdOutcome(rows, confidence >= threshold, compute_p_value(answers, fitted.training, threshold, target))


def evaluate_procedures(
    fitted: FittedWriter, tested: ReviewedAnswers, rows: np.ndarray
) -> dict[tuple[float, str], ThresholdOutcome | None]:
    """Return the outcomes of `evaluate_procedure` by target and name of the procedure."""
    return {
        (target, name): evaluate_procedure(procedure, target, fitted, tested, rows)
        for target in TARGETS
        for name, procedure in PROCEDURES.items()
    }


def format_not_rejected(outcomes: Sequence[ThresholdOutcome]) -> str:
    """Format the share of outcomes that do not reject the target."""
    return f"{np.mean([outcome.p_value >= REJECTED_BELOW for outcome in outcomes]):.0%}"


def report_without_shift(dataset: LabelledAnswers, params: Params, splits: int) -> Iterator[str]:
    """Yield the lines of the table; rounds from `SET_ASIDE` on are left out."""
    is_system = np.array([interaction.product == SYSTEM for interaction in dataset.interactions])
    selected = select_rows(dataset, np.flatnonzero(is_system & (dataset.round < SET_ASIDE)))
    outcomes_by_key: defaultdict[tuple[float, str], list[ThresholdOutcome]] = defaultdict(list)
    for seed in range(splits):
        for key, outcome in evaluate_split(selected, params, seed).items():
            outcomes_by_key[key] += [] if outcome is None else [outcome]
    answers, topics = len(selected.correct), len(set(selected.topic))
    yield f"Without shift: {answers:,} answers about {topics} topics, {selected.correct.mean():.1%} correct\n"
    yield "| target | threshold | splits that have one | mean share shown | mean precision | not refuted |"
    yield "| --: | --- | --: | --: | --: | --: |"
    for (target, name), outcomes in outcomes_by_key.items():
        yield f"| {target:g} | {name} | {len(outcomes)} of {splits} | {' | '.join(format_means(selected, outcomes))} |"


def format_means(dataset: LabelledAnswers, outcomes: Sequence[ThresholdOutcome]) -> list[str]:
    """Format the mean coverage, the mean precision, and how often the target is not rejected."""
    if not outcomes:
        return ["-"] * 3
    coverage = np.mean([outcome.shown.mean() for outcome in outcomes])
    precision = np.mean(
        [dataset.correct[outcome.rows[outcome.shown]].mean() for outcome in outcomes if outcome.shown.any()]
    )
    return [f"{coverage:.3f}", f"{precision:.3f}", format_not_rejected(outcomes)]


def evaluate_split(
    dataset: LabelledAnswers, params: Params, seed: int
) -> dict[tuple[float, str], ThresholdOutcome | None]:
    """Evaluate all procedures on one split by topic."""
    split_params = params.split.model_copy(update={"by": "group", "seed": seed, "holdout_frozen_at": None})
    asked_at = pd.Series([interaction.asked_at for interaction in dataset.interactions])
    split = assign_splits(pd.Series(dataset.topic), asked_at, split_params).to_numpy()
    train, validation, test = (np.flatnonzero(split == part) for part in ("train", "validation", "holdout"))
    fitted = fit_writer(dataset, params, train, test[:0], Feedback.make_fully_reviewed(len(dataset.correct)))
    return evaluate_procedures(fitted, fitted.get_reviewed(validation), test)


def select_rows(dataset: LabelledAnswers, rows: np.ndarray) -> LabelledAnswers:
    """Return the answers at `rows`."""
    return LabelledAnswers(dataset.take(rows), dataset.correct[rows], dataset.topic[rows], dataset.round[rows])


@dataclass(frozen=True)
class Division:
    """What each set-up shows and predicts for the same answers of a round.

    Attributes:
        rows: Indices of the answers in the data, (rows,).
        confidence: Raw confidences, (rows,), nan without a score.
        shown: Outcomes by set-up, target and procedure.
        probability: Calibrated probabilities by set-up, (rows,), nan without a score.
    """

    rows: np.ndarray
    confidence: np.ndarray
    shown: dict[tuple[str, float, str], ThresholdOutcome | None]
    probability: dict[str, np.ndarray]


def divide_round(
    dataset: LabelledAnswers, number: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows of the past's training and validation answers, and of round `number`'s fresh and other ones.

    No topic of the round is in the past, and no topic of the training answers is among the validation answers.
    """
    round_rows = np.flatnonzero(dataset.round == number)
    past_rows = np.flatnonzero((dataset.round < number) & ~np.isin(dataset.topic, dataset.topic[round_rows]))
    return *split_by_topic(dataset, past_rows, seed), *split_fresh(round_rows, seed)


def split_by_topic(dataset: LabelledAnswers, past_rows: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split the rows in `past_rows` into training and validation. A topic is on the same side in every round."""
    is_validation = np.array(
        [hash_to_unit_interval(seed, topic) < VALIDATION for topic in dataset.topic[past_rows]], bool
    )
    return past_rows[~is_validation], past_rows[is_validation]


def split_fresh(round_rows: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split the rows of a round into those that give ranks and the others."""
    shuffled = np.random.default_rng([SEED, seed]).permutation(round_rows)
    n_fresh = min(FRESH, len(round_rows) // 2)
    return shuffled[:n_fresh], shuffled[n_fresh:]


def evaluate_division(dataset: LabelledAnswers, params: Params, number: int, seed: int) -> Division:
    """Evaluate both set-ups on one division of a round."""
    train, validation, fresh, remaining = divide_round(dataset, number, seed)
    fitted = fit_writer(dataset, params, train, fresh, Feedback.make_fully_reviewed(len(dataset.correct)))
    confidence = fitted.confidence(remaining)
    outcomes: dict[tuple[str, float, str], ThresholdOutcome | None] = {}
    probability = {}
    for set_up, rows in {"past": validation, "fresh": fresh}.items():
        tested = fitted.get_reviewed(rows)
        outcomes |= {(set_up, *key): outcome for key, outcome in evaluate_procedures(fitted, tested, remaining).items()}
        calibrator = fit_calibrator(params.calibration.method, tested.confidence, tested.correct)
        probability[set_up] = calibrator.apply(confidence)
    return Division(remaining, confidence, outcomes, probability)


def make_slices(dataset: LabelledAnswers, params: Params, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Return by name the masks, over all data, of slices with at least `min_n_eff` of the answers at `rows`."""
    refusal = np.array([is_refusal(interaction.answer, params.labels.refusals) for interaction in dataset.interactions])
    system = np.array([str(interaction.product) for interaction in dataset.interactions])
    masks = {"all": np.ones(len(refusal), bool), "answers": ~refusal, "refusals": refusal}
    masks |= {name: system == name for name in np.unique(system[rows])}
    return {name: mask for name, mask in masks.items() if mask[rows].sum() >= params.evaluation.min_n_eff}


def report_with_shift(dataset: LabelledAnswers, params: Params, rounds: Sequence[int], divisions: int) -> Iterator[str]:
    """Yield the lines of two tables: what is shown, by slice at the first target only, and the probabilities."""
    divisions_by_round = {
        number: [evaluate_division(dataset, params, number, seed) for seed in range(divisions)] for number in rounds
    }
    parts = {number: make_slices(dataset, params, np.flatnonzero(dataset.round == number)) for number in rounds}
    yield "\nWith shift, what is shown:\n"
    yield (
        "| round | slice | set-up | target | threshold | divisions that have one | shown | precision "
        "| incorrect withheld | correct withheld | not refuted |"
    )
    yield "| --: | --- | --- | --: | --- | --: | --- | --- | --- | --- | --: |"
    for number, round_divisions in divisions_by_round.items():
        for part, (set_up, target, name) in product(parts[number], round_divisions[0].shown):
            if part == "all" or target == TARGETS[0]:
                outcomes = [
                    outcome for division in round_divisions if (outcome := division.shown[set_up, target, name])
                ]
                cells = " | ".join(format_shown_metrics(dataset, outcomes, parts[number][part]))
                not_rejected = format_not_rejected(outcomes) if outcomes and part == "all" else "-"
                yield (
                    f"| {number} | {part} | {set_up} | {target:g} | {name} | {len(outcomes)} of {divisions} "
                    f"| {cells} | {not_rejected} |"
                )
    yield "\nWith shift, the probabilities:\n"
    yield (
        "| round | slice | answers | correct | with a score | AUROC "
        "| Brier, past | ECE, past | ECE of one, past | Brier, fresh | ECE, fresh | ECE of one, fresh |"
    )
    yield "| --: | --- | --: | --: | --: | --- | --- | --- | --- | --- | --- | --- |"
    for number, round_divisions in divisions_by_round.items():
        for part, mask in parts[number].items():
            is_in_slice = mask & (dataset.round == number)
            counts = f"{is_in_slice.sum()} | {dataset.correct[is_in_slice].mean():.1%}"
            cells = " | ".join(format_probability_metrics(dataset, round_divisions, mask))
            yield f"| {number} | {part} | {counts} | {cells} |"


def format_shown_metrics(dataset: LabelledAnswers, outcomes: Sequence[ThresholdOutcome], mask: np.ndarray) -> list[str]:
    """Format coverage, precision, and the shares of incorrect and of correct answers that are withheld.

    They are of the answers in `mask`, over all data, and of all `outcomes` together.
    """
    if not outcomes:
        return ["-"] * 4
    rows, shown = (np.concatenate([getattr(outcome, name) for outcome in outcomes]) for name in ("rows", "shown"))
    rows, shown = rows[mask[rows]], shown[mask[rows]].astype(float)
    correct = dataset.correct[rows]
    metrics_by_name = {
        "shown": partial(metrics.weighted_mean, shown),
        "precision": partial(metrics.precision, correct, shown, threshold=1.0),
        "incorrect withheld": partial(metrics.recall, 1 - correct, 1 - shown, threshold=1.0),
        "correct withheld": partial(metrics.recall, correct, 1 - shown, threshold=1.0),
    }
    return format_estimates(dataset, rows, metrics_by_name)


def format_probability_metrics(dataset: LabelledAnswers, divisions: Sequence[Division], mask: np.ndarray) -> list[str]:
    """Format the share of answers with a score, their AUROC, and by set-up Brier score, ECE and ECE of one division."""
    rows, confidence = (
        np.concatenate([getattr(division, name) for division in divisions]) for name in ("rows", "confidence")
    )
    division_index = np.repeat(np.arange(len(divisions)), [len(division.rows) for division in divisions])
    has_score = ~np.isnan(confidence)
    is_used = has_score & mask[rows]
    correct = dataset.correct[rows[is_used]]
    metrics_by_name: dict[str, Statistic] = {"AUROC": partial(metrics.auroc, correct, confidence[is_used])}
    for set_up in divisions[0].probability:
        probability = np.concatenate([division.probability[set_up] for division in divisions])[is_used]
        metrics_by_name[f"Brier, {set_up}"] = partial(metrics.brier, correct, probability)
        metrics_by_name[f"ECE, {set_up}"] = partial(metrics.ece, correct, probability)
        metrics_by_name[f"ECE of one, {set_up}"] = partial(
            mean_division_ece, correct, probability, division_index[is_used]
        )
    return [f"{has_score[mask[rows]].mean():.0%}", *format_estimates(dataset, rows[is_used], metrics_by_name)]


def mean_division_ece(
    correct: np.ndarray, probability: np.ndarray, division: np.ndarray, weight: np.ndarray
) -> np.ndarray:
    """Return the mean ECE of the divisions, (draws,), for a weight (draws, rows).

    The ECE of all divisions together is lower, because the errors of the calibrators even out.
    """
    parts = [division == index for index in np.unique(division)]
    errors = [metrics.ece(correct[part], probability[part], weight[..., part]) for part in parts]
    return np.asarray(np.mean(errors, axis=0))


def format_estimates(dataset: LabelledAnswers, rows: np.ndarray, metrics_by_name: Mapping[str, Statistic]) -> list[str]:
    """Format each metric with its interval, unless that has no width; "-" if it is not defined."""
    return [
        format_estimate(estimate)
        for estimate in bootstrap(metrics_by_name, dataset.topic[rows], n_resamples=N_RESAMPLES, seed=SEED).values()
    ]


def format_estimate(estimate: Estimate) -> str:
    """Format an estimate with its interval."""
    low, high = estimate.interval
    interval = f" ({low:.3f} to {high:.3f})" if low < high else ""
    return "-" if np.isnan(estimate.value) else f"{estimate.value:.3f}{interval}"


@dataclass(frozen=True)
class ReplayedRound:
    """A round of a replay.

    Attributes:
        reviews: Number of reviews by which its threshold was chosen.
        thumbs: Number of thumbs.
        shown: Outcome by procedure.
    """

    reviews: int
    thumbs: int
    shown: dict[str, ThresholdOutcome | None]

    @property
    def live(self) -> ThresholdOutcome | None:
        """What the gate shows; None without a threshold."""
        return self.shown["guaranteed"] or self.shown["heuristic"]


def simulate_feedback(
    shown: np.ndarray, correct: np.ndarray, thumbs: tuple[float, float] | None, generator: np.random.Generator
) -> Feedback:
    """Simulate the feedback on a round's answers, by their `shown` (bool) and `correct` (0/1), both (rows,).

    Shown answers get `thumbs`, one of `THUMBS`. Reviewed are some sampled from all answers, and some of the withheld
    ones: the inclusion probability is that of being reviewed for either reason.
    """
    rows = len(shown)
    if thumbs is None:
        return Feedback.make_fully_reviewed(rows)
    (share, error_rate), p_sampled, p_withheld = thumbs, min(1.0, REVIEWED_SAMPLE / rows), REVIEWED_WITHHELD * ~shown
    is_reviewed = (generator.permutation(rows) < REVIEWED_SAMPLE) | (generator.random(rows) < p_withheld)
    thumb = correct ^ (generator.random(rows) < error_rate)
    return Feedback(
        inclusion=np.where(is_reviewed, 1 - (1 - p_sampled) * (1 - p_withheld), np.nan),
        thumb=np.where(shown & (generator.random(rows) < share), thumb, np.nan),
    )


def replay_rounds(
    dataset: LabelledAnswers, params: Params, last: int, target: float, thumbs: tuple[float, float] | None, seed: int
) -> dict[int, ReplayedRound]:
    """Replay rounds 2 to `last`, each by the feedback on those before it; `thumbs` is one of `THUMBS`."""
    generator, rounds = np.random.default_rng([SEED, seed, 1]), {}
    feedback = Feedback(*np.full((2, len(dataset.correct)), np.nan))
    is_shown = np.ones(len(dataset.correct), bool)
    for number in range(1, last + 1):
        if number > 1:
            rounds[number] = evaluate_round(dataset, params, feedback, number, target, seed)
            if outcome := rounds[number].live:
                is_shown[dataset.round >= number] = False  # in later rounds, too: there is a gate now
                is_shown[outcome.rows] = outcome.shown
        round_rows = np.flatnonzero(dataset.round == number)
        new = simulate_feedback(is_shown[round_rows], dataset.correct[round_rows], thumbs, generator)
        feedback.inclusion[round_rows], feedback.thumb[round_rows] = new.inclusion, new.thumb
    return rounds


def evaluate_round(
    dataset: LabelledAnswers, params: Params, feedback: Feedback, number: int, target: float, seed: int
) -> ReplayedRound:
    """Evaluate one round of a replay."""
    train, validation = split_by_topic(dataset, np.flatnonzero(dataset.round < number), seed)
    fresh, remaining = split_fresh(np.flatnonzero(dataset.round == number), seed)
    fitted = fit_writer(dataset, params, train, fresh, feedback)
    tested = fitted.get_reviewed(validation)
    outcomes = {
        name: evaluate_procedure(procedure, target, fitted, tested, remaining) for name, procedure in PROCEDURES.items()
    }
    return ReplayedRound(len(tested.correct), int((~np.isnan(feedback.thumb)).sum()), outcomes)


def report_replays(dataset: LabelledAnswers, params: Params, rounds: Sequence[int], divisions: int) -> Iterator[str]:
    """Yield the lines of a table by target and feedback, over all `rounds` and divisions."""
    yield (
        "| target | feedback | reviews that test, last round | thumbs | rounds with a guarantee | shown | precision "
        "| not refuted | rounds with a threshold | shown | precision | not refuted |"
    )
    yield "| --: | --- |" + " --: |" * 10
    for target, (name, thumbs) in product(TARGETS, THUMBS.items()):
        replays = [replay_rounds(dataset, params, max(rounds), target, thumbs, seed) for seed in range(divisions)]
        last_rounds = [replay[max(rounds)] for replay in replays]
        cells = [
            f"{np.mean([round_.reviews for round_ in last_rounds]):.0f}",
            f"{np.mean([round_.thumbs for round_ in last_rounds]):.0f}",
        ]
        rounds_replayed = [replay[number] for replay, number in product(replays, rounds)]
        for outcomes in (
            [round_.shown["guaranteed"] for round_ in rounds_replayed],
            [round_.live for round_ in rounds_replayed],
        ):
            existing = [outcome for outcome in outcomes if outcome]
            cells += [f"{len(existing)} of {len(rounds_replayed)}", *format_means(dataset, existing)]
        yield f"| {target:g} | {name} | {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real_verdicts", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("folder", type=Path, help="holds user_feedback.jsonl.gz")
    parser.add_argument("--splits", type=int, default=100, help="without shift")
    parser.add_argument("--divisions", type=int, default=20, help="of each round, with shift")
    parser.add_argument("--rounds", type=int, nargs="+", choices=ROUNDS, default=ROUNDS, help="evaluated with shift")
    parser.add_argument("--replay", action="store_true", help="feedback on what is shown only, instead of both")
    options = parser.parse_args(arguments)
    params, dataset = load_params(ROOT / "params.yaml"), read_labelled_answers(options.folder / FILE.name)
    tables = [
        report_without_shift(dataset, params, options.splits),
        report_with_shift(dataset, params, options.rounds, options.divisions),
    ]
    if options.replay:
        tables = [report_replays(dataset, params, options.rounds, options.divisions)]
    for line in chain.from_iterable(tables):
        print(line, flush=True)


if __name__ == "__main__":
    main()
