"""What a guarantee is worth where documents err together and some answers are reviewed more often, by simulation.

    python -m benchmarks.guarantee --runs 2000          the table of all cells, one line each
    python -m benchmarks.guarantee --methods            other tests of the same thresholds, on some of the cells

"Broken": a guarantee was made and the true precision at its threshold is below the target, of all runs. "Shown": the
share of answers shown at the threshold, of what the best true threshold shows, on average over all runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

import numpy as np
from scipy.optimize import brentq
from scipy.special import betainc, stdtr, stdtrit
from scipy.stats import binom, norm

from abstain.config.params import ThresholdParams
from abstain.core.errors import AbstainError
from abstain.learning.metrics.calibration import rejection_sample
from abstain.learning.thresholds.design_effect import GroupTotals, intraclass_correlation
from abstain.learning.thresholds.risk_control import (
    ControlledThreshold,
    ReviewedAnswers,
    candidate_thresholds,
    control_risk,
)
from abstain.learning.thresholds.selection import tune_threshold

SHAPES = ((8, 30), (20, 30), (50, 10), (150, 10))
"""Documents, and reviewed answers about each."""
CORRELATIONS = (0.0, 0.1, 0.2, 0.3)
AUROCS = (0.75, 0.85)
LIKED, DISLIKED = 0.8, 0.4
"""The share of correct and of incorrect answers that users like."""
GRID = np.linspace(-6, 6, 24_001)


def asked(
    target: float = 0.8, metric: str = "precision", confidence: float = 0.9, max_reviewer_share: float | None = None
) -> ThresholdParams:
    return ThresholdParams.model_validate(
        {"metric": metric, "target": target, "confidence": confidence, "min_shown": 20, "on_infeasible": "heuristic"}
        | {"max_reviewer_share": max_reviewer_share}
    )


@dataclass(frozen=True)
class Population:
    """Answers with calibrated confidences, so that the truth of a threshold is a formula.

    An answer is correct where intercept + slope * score + noise > 0; scores and noise are normal. `correlation` is that
    of the noise of two answers about one document, `score_correlation` that of their scores. Liked answers are reviewed
    `liked_often` times as often as disliked ones.
    """

    auroc: float = 0.75
    correlation: float = 0.0
    liked_often: float = 1.0
    base_rate: float = 0.7
    score_correlation: float = 0.0

    @cached_property
    def slope(self) -> float:
        return float(brentq(lambda slope: self._auroc(slope) - self.auroc, 0, 5))

    @cached_property
    def truth(self) -> tuple[np.ndarray, np.ndarray]:
        """The share of answers shown from each confidence of the grid on, and their precision."""
        weight = norm.pdf(GRID) / norm.pdf(GRID).sum()
        shown = np.cumsum(weight[::-1])[::-1]
        correct = np.cumsum((weight * norm.cdf(self._latent(GRID, self.slope)))[::-1])[::-1]
        return shown, correct / shown

    def at(self, threshold: float) -> dict[str, float]:
        place = np.searchsorted(norm.cdf(self._latent(GRID, self.slope)), threshold)
        shown, precision = (float(values[min(place, len(GRID) - 1)]) for values in self.truth)
        return {"shown": shown, "precision": precision, "error_rate": shown * (1 - precision)}

    def oracle(self, params: ThresholdParams) -> float:
        """The largest share that any threshold shows which truly keeps the guarantee; 0: there is none."""
        shown, precision = self.truth
        kept = precision >= params.target if params.metric == "precision" else shown * (1 - precision) <= params.target
        return float(shown[kept].max(initial=0))

    def draw(self, documents: int, answers: int, generator: np.random.Generator) -> ReviewedAnswers:
        """Reviewed answers about `documents`, `answers` about each on average, with the weights that say so."""
        reviewed_share = self._reviewed_share()
        asked_about = round(answers / reviewed_share)
        shape = (documents, asked_about)
        score = self._correlated(self.score_correlation, shape, generator)
        correct = self._latent(score, self.slope) + self._correlated(self.correlation, shape, generator) > 0
        liked = generator.random(shape) < np.where(correct, LIKED, DISLIKED)
        chance = np.where(liked, self.liked_often, 1.0) / max(1.0, self.liked_often)
        kept = generator.random(shape) < chance
        document = np.broadcast_to(np.arange(documents)[:, None], shape)
        weight = 1 / chance[kept]
        return ReviewedAnswers(
            norm.cdf(self._latent(score[kept], self.slope)), correct[kept].astype(int), weight, document[kept]
        )

    def _latent(self, score: np.ndarray, slope: float) -> np.ndarray:
        return norm.ppf(self.base_rate) * np.hypot(1, slope) + slope * score

    def _auroc(self, slope: float) -> float:
        weight = norm.pdf(GRID)
        right = weight * norm.cdf(self._latent(GRID, slope))
        wrong = weight - right
        return float((right * (np.cumsum(wrong) - wrong / 2)).sum() / right.sum() / wrong.sum())

    def _reviewed_share(self) -> float:
        liked = LIKED * self.base_rate + DISLIKED * (1 - self.base_rate)
        return (liked * self.liked_often + 1 - liked) / max(1.0, self.liked_often)

    @staticmethod
    def _correlated(correlation: float, shape: tuple[int, int], generator: np.random.Generator) -> np.ndarray:
        shared = np.sqrt(correlation) * generator.standard_normal((shape[0], 1))
        return np.asarray(shared + np.sqrt(1 - correlation) * generator.standard_normal(shape))


Procedure = Callable[[ReviewedAnswers, ReviewedAnswers, ThresholdParams], float | None]


def guaranteed(tested: ReviewedAnswers, training: ReviewedAnswers, params: ThresholdParams) -> float | None:
    found = control_risk(tested, training, params)
    return found.threshold if isinstance(found, ControlledThreshold) else None


def heuristic(tested: ReviewedAnswers, training: ReviewedAnswers, params: ThresholdParams) -> float | None:
    try:
        return tune_threshold(tested.confidence, tested.correct, params, tested.weight).threshold
    except AbstainError:
        return None


@dataclass(frozen=True)
class Record:
    """Of many runs: how often a guarantee was made, how often it was broken, and the mean share shown."""

    runs: int
    made: int
    broken: int
    shown: float

    def of(self, oracle: float) -> str:
        return f"{self.made / self.runs:.0%} | {self.broken / self.runs:.1%} | {self.shown / oracle:.0%}"


@dataclass(frozen=True)
class Cell:
    """A population and how much of it is reviewed; twice as many documents are there to learn from."""

    population: Population
    documents: int
    answers: int
    params: ThresholdParams = field(default_factory=asked)

    def run(self, procedures: dict[str, Procedure], runs: int, seed: int = 17) -> dict[str, Record]:
        """Every procedure on the same samples."""
        counted = {name: [0, 0, 0.0] for name in procedures}
        metric = self.params.metric
        for sample in range(runs):
            generator = np.random.default_rng([seed, sample])
            tested, training = (
                self.population.draw(documents, self.answers, generator)
                for documents in (self.documents, 2 * self.documents)
            )
            for name, procedure in procedures.items():
                threshold = procedure(tested, training, self.params)
                if threshold is None:
                    continue
                truth = self.population.at(threshold)
                short = (
                    self.params.target - truth[metric] if metric == "precision" else truth[metric] - self.params.target
                )
                counted[name][0] += 1
                counted[name][1] += int(short > 1e-9)
                counted[name][2] += truth["shown"] / runs
        return {name: Record(runs, *figures) for name, figures in counted.items()}


def most_that_are_broken(runs: int, cells: int = 1, delta: float = 0.1) -> int:
    """More broken guarantees than this are seen in one of twenty tables of `cells` whose procedure breaks `delta`."""
    return int(binom.ppf(1 - 0.05 / cells, runs, delta))


def cells(target: float = 0.8, liked_often: tuple[float, ...] = (1.0, 0.25)) -> Iterator[Cell]:
    for often, auroc, correlation, shape in product(liked_often, AUROCS, CORRELATIONS, SHAPES):
        yield Cell(Population(auroc, correlation, often), *shape, asked(target))


Test = Callable[[GroupTotals, np.ndarray, float], np.ndarray]
"""The p-value of each threshold, from the sums by group, the intraclass correlation and the tolerated share."""


def in_sequence(test: Test, true_correlation: float | None = None) -> Procedure:
    """The same thresholds in the same order, tested in another way."""

    def procedure(tested: ReviewedAnswers, training: ReviewedAnswers, params: ThresholdParams) -> float | None:
        thresholds = candidate_thresholds(training)
        counted, learnt = (rows.validate("").totals(thresholds, params.metric) for rows in (tested, training))
        icc = intraclass_correlation(counted, learnt)[1]
        if true_correlation is not None:
            icc = np.full(len(thresholds), true_correlation)
        tolerated = 1 - params.target
        start = int(np.argmin(test(learnt, icc, tolerated)))
        passed = np.cumprod(test(counted, icc, tolerated)[start::-1] <= 1 - params.confidence).sum()
        return float(thresholds[start + 1 - passed]) if passed else None

    return procedure


def binomial(totals: GroupTotals, n_eff: np.ndarray, tolerated: float) -> np.ndarray:
    wrong = totals.incorrect_share * n_eff
    return np.where(n_eff > 0, betainc(np.maximum(n_eff - wrong, 1e-12), wrong + 1, 1 - tolerated), 1.0)


def as_if_independent(totals: GroupTotals, icc: np.ndarray, tolerated: float) -> np.ndarray:
    return binomial(totals, totals.effective_size(np.zeros_like(icc)), tolerated)


def with_correlation(totals: GroupTotals, icc: np.ndarray, tolerated: float) -> np.ndarray:
    return binomial(totals, totals.effective_size(icc), tolerated)


def korn_graubard(totals: GroupTotals, icc: np.ndarray, tolerated: float) -> np.ndarray:
    """The design effect of the tested groups alone, at each threshold, with a t quantile for their number."""
    groups, share, weight = len(totals.weight), totals.incorrect_share, totals.weight.sum(axis=0)
    residual = totals.incorrect_weight - share * totals.weight
    variance = groups / (groups - 1) * (residual**2).sum(axis=0) / np.maximum(weight, 1e-12) ** 2
    independent = totals.effective_size(np.zeros_like(icc))
    with np.errstate(divide="ignore", invalid="ignore"):
        n_eff = np.where(variance > 0, share * (1 - share) / variance, np.inf)
    n_eff = np.minimum(n_eff, independent) * (norm.ppf(0.9) / stdtrit(groups - 1, 0.9)) ** 2
    return binomial(totals, n_eff, tolerated)


def t_test(totals: GroupTotals, icc: np.ndarray, tolerated: float) -> np.ndarray:
    """A t-test of the groups' sums of (incorrect - tolerated)."""
    excess = totals.incorrect_weight - tolerated * totals.weight
    spread = excess.std(axis=0, ddof=1) / np.sqrt(len(excess))
    ratio = np.divide(excess.mean(axis=0), spread, out=np.zeros_like(spread), where=spread > 0)
    return np.where(spread > 0, stdtr(len(excess) - 1, ratio), 1.0)


def betting(totals: GroupTotals, icc: np.ndarray, tolerated: float) -> np.ndarray:
    """A betting martingale over the groups' sums of (incorrect - tolerated) (Waudby-Smith and Ramdas)."""
    excess = (totals.incorrect_weight - tolerated * totals.weight) / max(totals.weight.max(), 1e-12)
    capital = best = mean = np.zeros(excess.shape[1])
    variance = np.full(excess.shape[1], 0.05)
    for seen, group in enumerate(excess, start=1):
        bet = np.clip(-mean / np.maximum(variance, 1e-3), 0, 0.75 / (1 - tolerated))
        capital = capital + np.log1p(-bet * group)
        best = np.maximum(best, capital)
        mean = (mean * seen + group) / (seen + 1)
        variance = (variance * seen + (group - mean) ** 2) / (seen + 1)
    return np.exp(-best)


def one_a_document(tested: ReviewedAnswers, training: ReviewedAnswers, params: ThresholdParams) -> float | None:
    """One answer of each document, drawn by weight."""
    assert tested.weight is not None and tested.groups is not None
    order = np.random.default_rng(0).permutation(len(tested.correct))
    order = order[rejection_sample(tested.weight[order], 1)]
    kept = order[np.unique(tested.groups[order], return_index=True)[1]]
    alone = ReviewedAnswers(tested.confidence[kept], tested.correct[kept])
    return in_sequence(as_if_independent)(alone, training, params)


def true_correlation(population: Population) -> float:
    """The intraclass correlation of being incorrect among the answers shown by the best true threshold."""
    rows = replace(population, liked_often=1.0).draw(20_000, 10, np.random.default_rng(99))
    place = np.argmax(population.truth[1] >= 0.8)
    threshold = norm.cdf(population._latent(GRID[place], population.slope))
    estimate, _ = intraclass_correlation(rows.validate("").totals(np.array([threshold]), "precision"))
    return float(estimate[0])


METHODS: dict[str, Procedure] = {
    "every answer as if independent": in_sequence(as_if_independent),
    "one answer a document": one_a_document,
    "betting over documents": in_sequence(betting),
    "t-test of documents": in_sequence(t_test),
    "Korn and Graubard, tested documents alone": in_sequence(korn_graubard),
    "effective sample size (used)": guaranteed,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--target", type=float, default=0.8)
    parser.add_argument("--liked-often", type=float, nargs="+", default=[1.0, 0.25])
    parser.add_argument(
        "--methods", action="store_true", help="other tests, too, on the cells of AUROC 0.75 and correlation 0 and 0.2"
    )
    chosen = parser.parse_args()
    procedures = METHODS if chosen.methods else {"guarantee": guaranteed}
    print("liked reviewed | AUROC | correlation | documents x answers | method | guaranteed | broken | shown")
    for cell in cells(chosen.target, tuple(chosen.liked_often)):
        population = cell.population
        if chosen.methods and (population.auroc, population.correlation) not in ((0.75, 0.0), (0.75, 0.2)):
            continue
        known = in_sequence(with_correlation, true_correlation(population))
        found = cell.run({**procedures, "correlation known": known}, chosen.runs)
        for name, record in found.items():
            print(
                f"{population.liked_often:g} | {population.auroc} | {population.correlation} | {cell.documents} x "
                f"{cell.answers} | {name} | {record.of(population.oracle(cell.params))}",
                flush=True,
            )


if __name__ == "__main__":
    main()
