"""How much a guarantee is worth if errors are correlated within documents and reviews are uneven, by simulation.

    python -m benchmarks.guarantee --runs 2000          the table of all cells, one line each
    python -m benchmarks.guarantee --methods            other tests of the same thresholds, on some of the cells

"Violated": the share of all runs with a guarantee although the true precision at its threshold is below the target.
"Shown": coverage at the threshold relative to the best true threshold, on average over all runs.
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
from abstain.learning.thresholds.design_effect import GroupTotals, estimate_intraclass_correlation
from abstain.learning.thresholds.outcomes import ControlledThreshold
from abstain.learning.thresholds.risk_control import (
    ReviewedAnswers,
    choose_candidate_thresholds,
    control_risk_by_params,
)
from abstain.learning.thresholds.selection import tune_threshold

SHAPES = ((8, 30), (20, 30), (50, 10), (150, 10))
"""Documents, and reviewed answers about each."""
CORRELATIONS = (0.0, 0.1, 0.2, 0.3)
AUROCS = (0.75, 0.85)
LIKED, DISLIKED = 0.8, 0.4
"""The share of correct and of incorrect answers that users like."""
GRID = np.linspace(-6, 6, 24_001)


def make_threshold_params(
    target: float = 0.8, metric: str = "precision", confidence: float = 0.9, max_reviewer_share: float | None = None
) -> ThresholdParams:
    """Return the parameters of a threshold with a guarantee."""
    return ThresholdParams.model_validate(
        {"metric": metric, "target": target, "confidence": confidence, "min_shown": 20, "on_infeasible": "heuristic"}
        | {"max_reviewer_share": max_reviewer_share}
    )


@dataclass(frozen=True)
class Population:
    """Answers with calibrated confidences, so that the true metrics of a threshold have a closed form.

    An answer is correct if intercept + slope * score + noise > 0; scores and noise are normal.

    Attributes:
        auroc: AUROC of the scores.
        correlation: Correlation of the noise of two answers about one document.
        review_ratio: How many times as often liked answers are reviewed as disliked ones.
        base_rate: Share of correct answers.
        score_correlation: Correlation of the scores of two answers about one document.
    """

    auroc: float = 0.75
    correlation: float = 0.0
    review_ratio: float = 1.0
    base_rate: float = 0.7
    score_correlation: float = 0.0

    @cached_property
    def slope(self) -> float:
        """Slope of the score that gives the AUROC."""
        return float(brentq(lambda slope: self._auroc(slope) - self.auroc, 0, 5))

    @cached_property
    def truth(self) -> tuple[np.ndarray, np.ndarray]:
        """Coverage from each confidence of the grid on, and the precision of the answers shown."""
        weight = norm.pdf(GRID) / norm.pdf(GRID).sum()
        shown = np.cumsum(weight[::-1])[::-1]
        correct = np.cumsum((weight * norm.cdf(self._latent(GRID, self.slope)))[::-1])[::-1]
        return shown, correct / shown

    def evaluate_threshold(self, threshold: float) -> dict[str, float]:
        """Return the true metrics at `threshold`: shown, precision and error_rate."""
        index = np.searchsorted(norm.cdf(self._latent(GRID, self.slope)), threshold)
        shown, precision = (float(values[min(index, len(GRID) - 1)]) for values in self.truth)
        return {"shown": shown, "precision": precision, "error_rate": shown * (1 - precision)}

    def compute_max_coverage(self, params: ThresholdParams) -> float:
        """Return the largest coverage of any threshold whose guarantee truly holds; 0 if there is none."""
        shown, precision = self.truth
        holds = precision >= params.target if params.metric == "precision" else shown * (1 - precision) <= params.target
        return float(shown[holds].max(initial=0))

    def draw(self, documents: int, answers: int, generator: np.random.Generator) -> ReviewedAnswers:
        """Draw reviewed answers about `documents`, on average `answers` about each, with their weights."""
        reviewed_share = self._reviewed_share()
        n_asked = round(answers / reviewed_share)
        shape = (documents, n_asked)
        score = self._draw_correlated(self.score_correlation, shape, generator)
        correct = self._latent(score, self.slope) + self._draw_correlated(self.correlation, shape, generator) > 0
        liked = generator.random(shape) < np.where(correct, LIKED, DISLIKED)
        probability = np.where(liked, self.review_ratio, 1.0) / max(1.0, self.review_ratio)
        is_reviewed = generator.random(shape) < probability
        document = np.broadcast_to(np.arange(documents)[:, None], shape)
        weight = 1 / probability[is_reviewed]
        return ReviewedAnswers(
            norm.cdf(self._latent(score[is_reviewed], self.slope)),
            correct[is_reviewed].astype(int),
            weight,
            document[is_reviewed],
        )

    def _latent(self, score: np.ndarray, slope: float) -> np.ndarray:
        return norm.ppf(self.base_rate) * np.hypot(1, slope) + slope * score

    def _auroc(self, slope: float) -> float:
        weight = norm.pdf(GRID)
        correct = weight * norm.cdf(self._latent(GRID, slope))
        incorrect = weight - correct
        return float((correct * (np.cumsum(incorrect) - incorrect / 2)).sum() / correct.sum() / incorrect.sum())

    def _reviewed_share(self) -> float:
        liked = LIKED * self.base_rate + DISLIKED * (1 - self.base_rate)
        return (liked * self.review_ratio + 1 - liked) / max(1.0, self.review_ratio)

    @staticmethod
    def _draw_correlated(correlation: float, shape: tuple[int, int], generator: np.random.Generator) -> np.ndarray:
        shared = np.sqrt(correlation) * generator.standard_normal((shape[0], 1))
        return np.asarray(shared + np.sqrt(1 - correlation) * generator.standard_normal(shape))


Procedure = Callable[[ReviewedAnswers, ReviewedAnswers, ThresholdParams], float | None]


def find_guaranteed_threshold(
    tested: ReviewedAnswers, training: ReviewedAnswers, params: ThresholdParams
) -> float | None:
    """Return the threshold that risk control finds; None without one."""
    result = control_risk_by_params(tested, training, params)
    return result.threshold if isinstance(result, ControlledThreshold) else None


def find_heuristic_threshold(
    tested: ReviewedAnswers, training: ReviewedAnswers, params: ThresholdParams
) -> float | None:
    """Return the threshold that just reaches the target on the tested answers; None without one."""
    try:
        return tune_threshold(tested.confidence, tested.correct, params, tested.weight).threshold
    except AbstainError:
        return None


@dataclass(frozen=True)
class Record:
    """Number of guarantees and of violated ones, and the mean coverage, over many runs."""

    runs: int
    n_guaranteed: int
    n_violated: int
    mean_coverage: float

    def format_cells(self, oracle: float) -> str:
        """Format the cells of a table, with coverage relative to that of the best true threshold."""
        guaranteed, violated = self.n_guaranteed / self.runs, self.n_violated / self.runs
        return f"{guaranteed:.0%} | {violated:.1%} | {self.mean_coverage / oracle:.0%}"


@dataclass(frozen=True)
class Cell:
    """A population and how much of it is reviewed; twice as many documents serve for training."""

    population: Population
    documents: int
    answers: int
    params: ThresholdParams = field(default_factory=make_threshold_params)

    def run(self, procedures: dict[str, Procedure], runs: int, seed: int = 17) -> dict[str, Record]:
        """Run every procedure on the same samples."""
        totals = {name: [0, 0, 0.0] for name in procedures}
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
                truth = self.population.evaluate_threshold(threshold)
                shortfall = (
                    self.params.target - truth[metric] if metric == "precision" else truth[metric] - self.params.target
                )
                totals[name][0] += 1
                totals[name][1] += int(shortfall > 1e-9)
                totals[name][2] += truth["shown"] / runs
        return {name: Record(runs, *values) for name, values in totals.items()}


def compute_max_violations(runs: int, cells: int = 1, delta: float = 0.1) -> int:
    """Return the number of violations that only one in twenty tables of `cells` exceeds if their rate is `delta`."""
    return int(binom.ppf(1 - 0.05 / cells, runs, delta))


def make_cells(target: float = 0.8, liked_often: tuple[float, ...] = (1.0, 0.25)) -> Iterator[Cell]:
    """Yield the cells of the table."""
    for review_ratio, auroc, correlation, shape in product(liked_often, AUROCS, CORRELATIONS, SHAPES):
        yield Cell(Population(auroc, correlation, review_ratio), *shape, make_threshold_params(target))


Test = Callable[[GroupTotals, np.ndarray, float], np.ndarray]
"""The p-value of each threshold, from the sums by group, the intraclass correlation and the tolerated share."""


def make_procedure(test: Test, true_correlation: float | None = None) -> Procedure:
    """Return a procedure that tests the same thresholds in the same order by another test."""

    def procedure(tested: ReviewedAnswers, training: ReviewedAnswers, params: ThresholdParams) -> float | None:
        thresholds = choose_candidate_thresholds(training)
        tested_totals, training_totals = (
            rows.validate("").compute_totals(thresholds, params.metric) for rows in (tested, training)
        )
        icc = estimate_intraclass_correlation(tested_totals, training_totals)[1]
        if true_correlation is not None:
            icc = np.full(len(thresholds), true_correlation)
        tolerated = 1 - params.target
        start = int(np.argmin(test(training_totals, icc, tolerated)))
        passed = np.cumprod(test(tested_totals, icc, tolerated)[start::-1] <= 1 - params.confidence).sum()
        return float(thresholds[start + 1 - passed]) if passed else None

    return procedure


def binomial(totals: GroupTotals, n_eff: np.ndarray, tolerated: float) -> np.ndarray:
    """Return the binomial p-value of each threshold for `n_eff` answers."""
    incorrect = totals.incorrect_share * n_eff
    return np.where(n_eff > 0, betainc(np.maximum(n_eff - incorrect, 1e-12), incorrect + 1, 1 - tolerated), 1.0)


def as_if_independent(totals: GroupTotals, icc: np.ndarray, tolerated: float) -> np.ndarray:
    """Test as if all answers were independent."""
    return binomial(totals, totals.compute_effective_size(np.zeros_like(icc)), tolerated)


def with_correlation(totals: GroupTotals, icc: np.ndarray, tolerated: float) -> np.ndarray:
    """Test with the effective sample size by intraclass correlation."""
    return binomial(totals, totals.compute_effective_size(icc), tolerated)


def korn_graubard(totals: GroupTotals, icc: np.ndarray, tolerated: float) -> np.ndarray:
    """Test with the design effect of the tested groups only, and a t quantile for their number."""
    groups, share, weight = len(totals.weight), totals.incorrect_share, totals.weight.sum(axis=0)
    residual = totals.incorrect_weight - share * totals.weight
    variance = groups / (groups - 1) * (residual**2).sum(axis=0) / np.maximum(weight, 1e-12) ** 2
    independent = totals.compute_effective_size(np.zeros_like(icc))
    with np.errstate(divide="ignore", invalid="ignore"):
        n_eff = np.where(variance > 0, share * (1 - share) / variance, np.inf)
    n_eff = np.minimum(n_eff, independent) * (norm.ppf(0.9) / stdtrit(groups - 1, 0.9)) ** 2
    return binomial(totals, n_eff, tolerated)


def t_test(totals: GroupTotals, icc: np.ndarray, tolerated: float) -> np.ndarray:
    """Test the sums of (incorrect - tolerated) by group with a t-test."""
    excess = totals.incorrect_weight - tolerated * totals.weight
    spread = excess.std(axis=0, ddof=1) / np.sqrt(len(excess))
    ratio = np.divide(excess.mean(axis=0), spread, out=np.zeros_like(spread), where=spread > 0)
    return np.where(spread > 0, stdtr(len(excess) - 1, ratio), 1.0)


def betting(totals: GroupTotals, icc: np.ndarray, tolerated: float) -> np.ndarray:
    """Test the sums of (incorrect - tolerated) by group with a betting martingale (Waudby-Smith and Ramdas)."""
    excess = (totals.incorrect_weight - tolerated * totals.weight) / max(totals.weight.max(), 1e-12)
    capital = best = mean = np.zeros(excess.shape[1])
    variance = np.full(excess.shape[1], 0.05)
    for n_groups, group in enumerate(excess, start=1):
        stake = np.clip(-mean / np.maximum(variance, 1e-3), 0, 0.75 / (1 - tolerated))
        capital = capital + np.log1p(-stake * group)
        best = np.maximum(best, capital)
        mean = (mean * n_groups + group) / (n_groups + 1)
        variance = (variance * n_groups + (group - mean) ** 2) / (n_groups + 1)
    return np.exp(-best)


def sample_one_per_document(
    tested: ReviewedAnswers, training: ReviewedAnswers, params: ThresholdParams
) -> float | None:
    """Test one answer of each document, drawn by weight."""
    assert tested.weight is not None and tested.groups is not None
    order = np.random.default_rng(0).permutation(len(tested.correct))
    order = order[rejection_sample(tested.weight[order], 1)]
    indices = order[np.unique(tested.groups[order], return_index=True)[1]]
    single_answers = ReviewedAnswers(tested.confidence[indices], tested.correct[indices])
    return make_procedure(as_if_independent)(single_answers, training, params)


def estimate_true_correlation(population: Population) -> float:
    """Estimate the intraclass correlation of incorrect answers among those that the best true threshold shows."""
    rows = replace(population, liked_often=1.0).draw(20_000, 10, np.random.default_rng(99))
    index = np.argmax(population.truth[1] >= 0.8)
    threshold = norm.cdf(population._latent(GRID[index], population.slope))
    estimate, _ = estimate_intraclass_correlation(rows.validate("").compute_totals(np.array([threshold]), "precision"))
    return float(estimate[0])


METHODS: dict[str, Procedure] = {
    "every answer as if independent": make_procedure(as_if_independent),
    "one answer a document": sample_one_per_document,
    "betting over documents": make_procedure(betting),
    "t-test of documents": make_procedure(t_test),
    "Korn and Graubard, tested documents alone": make_procedure(korn_graubard),
    "effective sample size (used)": find_guaranteed_threshold,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--target", type=float, default=0.8)
    parser.add_argument("--liked-often", type=float, nargs="+", default=[1.0, 0.25])
    parser.add_argument(
        "--methods", action="store_true", help="other tests, too, on the cells of AUROC 0.75 and correlation 0 and 0.2"
    )
    options = parser.parse_args()
    procedures = METHODS if options.methods else {"guarantee": find_guaranteed_threshold}
    print("liked reviewed | AUROC | correlation | documents x answers | method | guaranteed | violated | shown")
    for cell in make_cells(options.target, tuple(options.liked_often)):
        population = cell.population
        if options.methods and (population.auroc, population.correlation) not in ((0.75, 0.0), (0.75, 0.2)):
            continue
        with_true_correlation = make_procedure(with_correlation, estimate_true_correlation(population))
        records = cell.run({**procedures, "correlation known": with_true_correlation}, options.runs)
        for name, record in records.items():
            print(
                f"{population.review_ratio:g} | {population.auroc} | {population.correlation} | {cell.documents} x "
                f"{cell.answers} | {name} | {record.format_cells(population.compute_max_coverage(cell.params))}",
                flush=True,
            )


if __name__ == "__main__":
    main()
