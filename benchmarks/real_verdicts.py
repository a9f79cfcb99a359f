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
from abstain.learning.thresholds.design_effect import intraclass_correlation
from abstain.learning.thresholds.risk_control import ReviewedAnswers
from abstain.llm.signals.base import FeatureBatch, Scorer
from abstain.llm.signals.out_of_fold import fit_scorer
from abstain.llm.signals.writer import WriterScores
from benchmarks.guarantee import Procedure, asked, guaranteed, heuristic
from benchmarks.scorers import DRAWS, FILE, ROOT, SEED, Judged, read_judged

SYSTEM = "long-term"
ROUNDS = (3, 4, 5, 6, 7, 8, 9)
SET_ASIDE = 8
"""The first of the rounds by which nothing was chosen."""
TARGETS = (0.8, 0.75)
REFUTED = 0.05
"""A p-value below this refutes the target."""
FRESH = 200
VALIDATION = 1 / 3
"""The share of the past's topics that choose the threshold: as many as in params.yaml, where a hold-out is taken, too.
"""


REVIEWED_DRAWN, REVIEWED_WITHHELD = 50, 0.05
"""How many answers of a round are drawn for review, and the share of the withheld ones that are reviewed besides."""
THUMBS: dict[str, tuple[float, float] | None] = {
    "thumbs on 3 %": (0.03, 0.0),
    "thumbs on 10 %": (0.1, 0.0),
    "thumbs on 30 %": (0.3, 0.0),
    "thumbs on 30 %, 1 in 10 wrong": (0.3, 0.1),
    "all labels": None,
}
"""The share of shown answers with a thumb, and that of thumbs that contradict the verdict; None: all are reviewed."""


THRESHOLDS: dict[str, Procedure] = {"guaranteed": guaranteed, "heuristic": heuristic}


@dataclass(frozen=True)
class Known:
    """What is known of each answer of the data, both (rows,): `inclusion`, the probability with which it was to be
    reviewed, nan of those without a review; and its `thumb`, 1 up, 0 down, nan none."""

    inclusion: np.ndarray
    thumb: np.ndarray

    @classmethod
    def of_all(cls, rows: int) -> Known:
        """All are reviewed, and none has a thumb."""
        return cls(np.ones(rows), np.full(rows, np.nan))

    def labels(self, judged: Judged, params: LabelParams, rows: np.ndarray) -> Labels:
        """Those of the answers at `rows`: a review counts before a thumb, and an answer with neither weighs 0."""
        by_review, by_thumb = (~np.isnan(values[rows]) for values in (self.inclusion, self.thumb))
        correct = np.where(by_review, judged.correct[rows], np.nan_to_num(self.thumb[rows])).astype(int)
        weight = np.where(by_review, 1.0, by_thumb * params.thumb_weight)
        return Labels(correct, weight, judged.topic[rows])


@dataclass(frozen=True)
class Served:
    """The fitted scorer, and its out-of-fold confidences of the reviewed training answers."""

    judged: Judged
    known: Known
    scorer: Scorer
    training: ReviewedAnswers

    def confidence(self, rows: np.ndarray) -> np.ndarray:
        """(rows,), nan of answers without a score."""
        return self.scorer.score(FeatureBatch(self.judged.take(rows), {}))

    def reviewed(self, rows: np.ndarray) -> ReviewedAnswers:
        """Those of the answers at `rows` that have a review and a score."""
        return scored(self.judged, rows, self.confidence(rows), self.known.inclusion[rows])


@dataclass(frozen=True)
class Shown:
    """What a threshold shows of answers on which it was not chosen: their places in the data, `rows`, and `shown`, of
    bool, each (rows,); and the p-value of `refutation`."""

    rows: np.ndarray
    shown: np.ndarray
    p_value: float


def scored(judged: Judged, rows: np.ndarray, confidence: np.ndarray, inclusion: np.ndarray) -> ReviewedAnswers:
    """Those of the answers at `rows` with a `confidence` and an `inclusion` probability, each (rows,)."""
    known = ~np.isnan(confidence + inclusion)
    at = rows[known]
    return ReviewedAnswers(confidence[known], judged.correct[at], row_weights(inclusion[known]), judged.topic[at])


def fit(judged: Judged, params: Params, train: np.ndarray, ranked: np.ndarray, known: Known) -> Served:
    """The scorer, fitted to what is known of the answers at `train`. These and those at `ranked` give ranks."""
    rows, learnt = np.concatenate([train, ranked]), np.repeat([1, 0], [len(train), len(ranked)])
    labels = known.labels(judged, params.labels, rows)
    labels = replace(labels, correct=labels.correct * learnt, weight=labels.weight * learnt)
    folds = labels.assign_folds(params.probe.folds, params.probe.seed)
    folds[~np.isin(labels.groups, labels.groups[labels.weight > 0])] = -1  # to give ranks for every labelled fold
    fitted = fit_scorer(WriterScores(params.labels.refusals), FeatureBatch(judged.take(rows), {}), labels, folds)
    training = scored(judged, train, fitted.out_of_fold[: len(train)], known.inclusion[train])
    return Served(judged, known, fitted.scorer, training)


def refutation(answers: ReviewedAnswers, training: ReviewedAnswers, threshold: float, target: float) -> float:
    """The chance of as many incorrect answers, or more, among the shown ones if their true precision were `target`.

    It is binomial, of as many independent answers as the shown ones are worth, as the guarantee's own test is. But the
    intraclass correlation (of `answers` and `training` together) is the estimate, and not what is safely above it: that
    would make a broken guarantee harder to see.
    """
    shown, learnt = (rows.validate("").totals(np.array([threshold]), "precision") for rows in (answers, training))
    n_eff, wrong_share = shown.effective_size(intraclass_correlation(shown, learnt)[0])[0], shown.incorrect_share[0]
    if not wrong_share:
        return 1.0
    return float(betainc(wrong_share * n_eff, (1 - wrong_share) * n_eff + 1, 1 - target))


def shown_by(
    procedure: Procedure, target: float, served: Served, tested: ReviewedAnswers, rows: np.ndarray
) -> Shown | None:
    """What the threshold that `procedure` chooses on `tested` shows of the answers at `rows`; None: it finds none."""
    threshold = procedure(tested, served.training, asked(target))
    if threshold is None:
        return None
    confidence = served.confidence(rows)
    answers = scored(served.judged, rows, confidence, np.ones(len(rows)))
    return Shown(rows, confidence >= threshold, refutation(answers, served.training, threshold, target))


def all_thresholds(served: Served, tested: ReviewedAnswers, rows: np.ndarray) -> dict[tuple[float, str], Shown | None]:
    """`shown_by`, by target and name of the threshold."""
    return {
        (target, name): shown_by(procedure, target, served, tested, rows)
        for target in TARGETS
        for name, procedure in THRESHOLDS.items()
    }


def not_refuted(made: Sequence[Shown]) -> str:
    return f"{np.mean([one.p_value >= REFUTED for one in made]):.0%}"


def without_shift(judged: Judged, params: Params, splits: int) -> Iterator[str]:
    """The lines of the table; of it rounds from `SET_ASIDE` on are no part."""
    system = np.array([one.product == SYSTEM for one in judged.interactions])
    pooled = part_of(judged, np.flatnonzero(system & (judged.round < SET_ASIDE)))
    found: defaultdict[tuple[float, str], list[Shown]] = defaultdict(list)
    for seed in range(splits):
        for key, one in in_one_split(pooled, params, seed).items():
            found[key] += [] if one is None else [one]
    answers, topics = len(pooled.correct), len(set(pooled.topic))
    yield f"Without shift: {answers:,} answers about {topics} topics, {pooled.correct.mean():.1%} correct\n"
    yield "| target | threshold | splits that have one | mean share shown | mean precision | not refuted |"
    yield "| --: | --- | --: | --: | --: | --: |"
    for (target, name), made in found.items():
        yield f"| {target:g} | {name} | {len(made)} of {splits} | {' | '.join(mean_figures(pooled, made))} |"


def mean_figures(judged: Judged, made: Sequence[Shown]) -> list[str]:
    """The mean share of answers shown, the mean share of these that are correct, and how often they do not refute."""
    if not made:
        return ["-"] * 3
    shown = np.mean([one.shown.mean() for one in made])
    precision = np.mean([judged.correct[one.rows[one.shown]].mean() for one in made if one.shown.any()])
    return [f"{shown:.3f}", f"{precision:.3f}", not_refuted(made)]


def in_one_split(judged: Judged, params: Params, seed: int) -> dict[tuple[float, str], Shown | None]:
    by_topic = params.split.model_copy(update={"by": "group", "seed": seed, "holdout_frozen_at": None})
    asked_at = pd.Series([one.asked_at for one in judged.interactions])
    split = assign_splits(pd.Series(judged.topic), asked_at, by_topic).to_numpy()
    train, validation, test = (np.flatnonzero(split == part) for part in ("train", "validation", "holdout"))
    served = fit(judged, params, train, test[:0], Known.of_all(len(judged.correct)))
    return all_thresholds(served, served.reviewed(validation), test)


def part_of(judged: Judged, rows: np.ndarray) -> Judged:
    return Judged(judged.take(rows), judged.correct[rows], judged.topic[rows], judged.round[rows])


@dataclass(frozen=True)
class Division:
    """What each set-up shows (by set-up, target and threshold) and says (by set-up) of the same answers of a round.

    `rows` are the answers' places in the data, (rows,). Their raw `confidence`, (rows,), and the calibrated
    `probability`, (rows,) by set-up, are nan without a score.
    """

    rows: np.ndarray
    confidence: np.ndarray
    shown: dict[tuple[str, float, str], Shown | None]
    probability: dict[str, np.ndarray]


def divided(judged: Judged, number: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The places of the past's training and validation answers, and of the drawn and other answers of round `number`.

    No topic of the round is in the past, and none of the training answers' topics among the validation answers.
    """
    of_round = np.flatnonzero(judged.round == number)
    past = np.flatnonzero((judged.round < number) & ~np.isin(judged.topic, judged.topic[of_round]))
    return *by_topic(judged, past, seed), *fresh_and_others(of_round, seed)


def by_topic(judged: Judged, past: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The training and the validation answers of those at `past`. A topic is on the same side in every round."""
    validates = np.array([hash_to_unit_interval(seed, topic) < VALIDATION for topic in judged.topic[past]], bool)
    return past[~validates], past[validates]


def fresh_and_others(of_round: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    drawn = np.random.default_rng([SEED, seed]).permutation(of_round)
    fresh = min(FRESH, len(of_round) // 2)
    return drawn[:fresh], drawn[fresh:]


def in_one_division(judged: Judged, params: Params, number: int, seed: int) -> Division:
    train, validation, drawn, others = divided(judged, number, seed)
    served = fit(judged, params, train, drawn, Known.of_all(len(judged.correct)))
    confidence = served.confidence(others)
    shown: dict[tuple[str, float, str], Shown | None] = {}
    probability = {}
    for set_up, rows in {"past": validation, "fresh": drawn}.items():
        tested = served.reviewed(rows)
        shown |= {(set_up, *key): one for key, one in all_thresholds(served, tested, others).items()}
        calibrator = fit_calibrator(params.calibration.method, tested.confidence, tested.correct)
        probability[set_up] = calibrator.apply(confidence)
    return Division(others, confidence, shown, probability)


def slices(judged: Judged, params: Params, rows: np.ndarray) -> dict[str, np.ndarray]:
    """By name the mask, over all data, of the slices that have at least `gate.min_slice` of the answers at `rows`."""
    refusal = np.array([is_refusal(one.answer, params.labels.refusals) for one in judged.interactions])
    system = np.array([str(one.product) for one in judged.interactions])
    masks = {"all": np.ones(len(refusal), bool), "answers": ~refusal, "refusals": refusal}
    masks |= {name: system == name for name in np.unique(system[rows])}
    return {name: mask for name, mask in masks.items() if mask[rows].sum() >= params.gate.min_slice}


def with_shift(judged: Judged, params: Params, rounds: Sequence[int], divisions: int) -> Iterator[str]:
    """The lines of two tables: what is shown, of each slice at the first target alone, and the probabilities."""
    found = {number: [in_one_division(judged, params, number, seed) for seed in range(divisions)] for number in rounds}
    parts = {number: slices(judged, params, np.flatnonzero(judged.round == number)) for number in rounds}
    yield "\nWith shift, what is shown:\n"
    yield (
        "| round | slice | set-up | target | threshold | divisions that have one | shown | precision "
        "| incorrect withheld | correct withheld | not refuted |"
    )
    yield "| --: | --- | --- | --: | --- | --: | --- | --- | --- | --- | --: |"
    for number, of_round in found.items():
        for part, (set_up, target, name) in product(parts[number], of_round[0].shown):
            if part == "all" or target == TARGETS[0]:
                made = [one for division in of_round if (one := division.shown[set_up, target, name])]
                figures = " | ".join(shown_figures(judged, made, parts[number][part]))
                stands = not_refuted(made) if made and part == "all" else "-"
                yield (
                    f"| {number} | {part} | {set_up} | {target:g} | {name} | {len(made)} of {divisions} "
                    f"| {figures} | {stands} |"
                )
    yield "\nWith shift, the probabilities:\n"
    yield (
        "| round | slice | answers | correct | with a score | AUROC "
        "| Brier, past | ECE, past | ECE of one, past | Brier, fresh | ECE, fresh | ECE of one, fresh |"
    )
    yield "| --: | --- | --: | --: | --: | --- | --- | --- | --- | --- | --- | --- |"
    for number, of_round in found.items():
        for part, mask in parts[number].items():
            at_hand = mask & (judged.round == number)
            counts = f"{at_hand.sum()} | {judged.correct[at_hand].mean():.1%}"
            yield f"| {number} | {part} | {counts} | {' | '.join(said_figures(judged, of_round, mask))} |"


def shown_figures(judged: Judged, made: Sequence[Shown], mask: np.ndarray) -> list[str]:
    """The shares of all answers that are shown, of the shown ones that are correct, and of incorrect and of correct
    ones that are withheld; of those of `mask`, over all data, and of all of `made` together."""
    if not made:
        return ["-"] * 4
    rows, shown = (np.concatenate([getattr(one, name) for one in made]) for name in ("rows", "shown"))
    rows, shown = rows[mask[rows]], shown[mask[rows]].astype(float)
    correct = judged.correct[rows]
    figures = {
        "shown": partial(metrics.weighted_mean, shown),
        "precision": partial(metrics.precision, correct, shown, threshold=1.0),
        "incorrect withheld": partial(metrics.recall, 1 - correct, 1 - shown, threshold=1.0),
        "correct withheld": partial(metrics.recall, correct, 1 - shown, threshold=1.0),
    }
    return estimates(judged, rows, figures)


def said_figures(judged: Judged, divisions: Sequence[Division], mask: np.ndarray) -> list[str]:
    """The share of answers with a score, and of these the AUROC, and by set-up Brier score, ECE and `ece_of_one`."""
    rows, confidence = (np.concatenate([getattr(one, name) for one in divisions]) for name in ("rows", "confidence"))
    division = np.repeat(np.arange(len(divisions)), [len(one.rows) for one in divisions])
    known = ~np.isnan(confidence)
    kept = known & mask[rows]
    correct = judged.correct[rows[kept]]
    figures: dict[str, Statistic] = {"AUROC": partial(metrics.auroc, correct, confidence[kept])}
    for set_up in divisions[0].probability:
        probability = np.concatenate([one.probability[set_up] for one in divisions])[kept]
        figures[f"Brier, {set_up}"] = partial(metrics.brier, correct, probability)
        figures[f"ECE, {set_up}"] = partial(metrics.ece, correct, probability)
        figures[f"ECE of one, {set_up}"] = partial(ece_of_one, correct, probability, division[kept])
    return [f"{known[mask[rows]].mean():.0%}", *estimates(judged, rows[kept], figures)]


def ece_of_one(correct: np.ndarray, probability: np.ndarray, division: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The mean ECE of the divisions, (draws,) of a weight (draws, rows): that of all together is lower, because what
    calibrators err in one division evens out."""
    parts = [division == one for one in np.unique(division)]
    found = [metrics.ece(correct[part], probability[part], weight[..., part]) for part in parts]
    return np.asarray(np.mean(found, axis=0))


def estimates(judged: Judged, rows: np.ndarray, figures: Mapping[str, Statistic]) -> list[str]:
    """Each with its interval, unless that has no width; "-" for what is not defined."""
    return [written(found) for found in bootstrap(figures, judged.topic[rows], DRAWS, SEED).values()]


def written(figure: Estimate) -> str:
    low, high = figure.interval
    interval = f" ({low:.3f} to {high:.3f})" if low < high else ""
    return "-" if np.isnan(figure.value) else f"{figure.value:.3f}{interval}"


@dataclass(frozen=True)
class Replayed:
    """A round of a replay: by how many reviews its threshold was chosen, how many thumbs there were, and what each
    threshold shows (by name)."""

    reviews: int
    thumbs: int
    shown: dict[str, Shown | None]

    @property
    def live(self) -> Shown | None:
        """What the gate shows; None: it has no threshold."""
        return self.shown["guaranteed"] or self.shown["heuristic"]


def feedback(
    shown: np.ndarray, correct: np.ndarray, thumbs: tuple[float, float] | None, generator: np.random.Generator
) -> Known:
    """What comes to be known of a round's answers, by their `shown` (bool) and `correct` (0/1), both (rows,).

    Shown ones get `thumbs`, one of `THUMBS`. Reviewed are some drawn from all answers, and some of the withheld ones:
    the inclusion probability is that of being reviewed for either reason.
    """
    rows = len(shown)
    if thumbs is None:
        return Known.of_all(rows)
    (share, wrong), by_draw, as_withheld = thumbs, min(1.0, REVIEWED_DRAWN / rows), REVIEWED_WITHHELD * ~shown
    reviewed = (generator.permutation(rows) < REVIEWED_DRAWN) | (generator.random(rows) < as_withheld)
    thumb = correct ^ (generator.random(rows) < wrong)
    return Known(
        inclusion=np.where(reviewed, 1 - (1 - by_draw) * (1 - as_withheld), np.nan),
        thumb=np.where(shown & (generator.random(rows) < share), thumb, np.nan),
    )


def replayed(
    judged: Judged, params: Params, last: int, target: float, thumbs: tuple[float, float] | None, seed: int
) -> dict[int, Replayed]:
    """Rounds 2 to `last` by number, each by the feedback on those before it; `thumbs` is one of `THUMBS`."""
    generator, found = np.random.default_rng([SEED, seed, 1]), {}
    known = Known(*np.full((2, len(judged.correct)), np.nan))
    shown = np.ones(len(judged.correct), bool)
    for number in range(1, last + 1):
        if number > 1:
            found[number] = in_one_round(judged, params, known, number, target, seed)
            if live := found[number].live:
                shown[judged.round >= number] = False  # in later rounds, too: there is a gate now
                shown[live.rows] = live.shown
        of_round = np.flatnonzero(judged.round == number)
        new = feedback(shown[of_round], judged.correct[of_round], thumbs, generator)
        known.inclusion[of_round], known.thumb[of_round] = new.inclusion, new.thumb
    return found


def in_one_round(judged: Judged, params: Params, known: Known, number: int, target: float, seed: int) -> Replayed:
    train, validation = by_topic(judged, np.flatnonzero(judged.round < number), seed)
    drawn, others = fresh_and_others(np.flatnonzero(judged.round == number), seed)
    served = fit(judged, params, train, drawn, known)
    tested = served.reviewed(validation)
    shown = {name: shown_by(procedure, target, served, tested, others) for name, procedure in THRESHOLDS.items()}
    return Replayed(len(tested.correct), int((~np.isnan(known.thumb)).sum()), shown)


def replays(judged: Judged, params: Params, rounds: Sequence[int], divisions: int) -> Iterator[str]:
    """The lines of a table: by target and feedback, all `rounds` and divisions together."""
    yield (
        "| target | feedback | reviews that test, last round | thumbs | rounds with a guarantee | shown | precision "
        "| not refuted | rounds with a threshold | shown | precision | not refuted |"
    )
    yield "| --: | --- |" + " --: |" * 10
    for target, (name, thumbs) in product(TARGETS, THUMBS.items()):
        of_all = [replayed(judged, params, max(rounds), target, thumbs, seed) for seed in range(divisions)]
        last = [of_one[max(rounds)] for of_one in of_all]
        cells = [f"{np.mean([one.reviews for one in last]):.0f}", f"{np.mean([one.thumbs for one in last]):.0f}"]
        made = [of_one[number] for of_one, number in product(of_all, rounds)]
        for gate in ([one.shown["guaranteed"] for one in made], [one.live for one in made]):
            found = [one for one in gate if one]
            cells += [f"{len(found)} of {len(made)}", *mean_figures(judged, found)]
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
    chosen = parser.parse_args(arguments)
    params, judged = load_params(ROOT / "params.yaml"), read_judged(chosen.folder / FILE.name)
    tables = [without_shift(judged, params, chosen.splits), with_shift(judged, params, chosen.rounds, chosen.divisions)]
    if chosen.replay:
        tables = [replays(judged, params, chosen.rounds, chosen.divisions)]
    for line in chain.from_iterable(tables):
        print(line, flush=True)


if __name__ == "__main__":
    main()
