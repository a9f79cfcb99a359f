"""How often the promotion checks promote a candidate that is not better, and how soon one that is, by simulation.

    python -m benchmarks.gate --runs 200
    python -m benchmarks.gate --guarantee

Every night a new candidate passes through all promotion checks, on the same hold-out of answers about documents whose
errors are correlated. "Promoted": the share of runs in which an equal candidate was promoted on any of the nights.
"Found": the share of runs in which a candidate that is better from the first night on was promoted within five. Every
comparison has the same alpha, so the share is the same from any later night on that leaves five comparisons.

`--guarantee`: how often a hold-out rejects a guarantee, by the true precision of the shown answers.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import yaml
from scipy.optimize import brentq
from scipy.stats import norm

from abstain.config.params import PromotionParams
from abstain.config.template import read_template
from abstain.learning.metrics.bootstrap import BootstrapConfig
from abstain.release import degradation_checks, evaluation_set
from abstain.release.champion_comparison import ComparisonBudget, get_comparison_alpha
from abstain.release.evaluation_set import CANDIDATE, EvaluationSet
from abstain.release.holdout_guarantee import check_precision_guarantee
from abstain.release.promotion_check import CandidateMeasurements, PromotionDecision, check_candidate

CHAMPION = "v1.0.0"
BASE_RATE, TARGET, REACHED = 0.7, 0.8, 0.82
"""The share of correct answers; the guaranteed precision; that at the tuned threshold, which has some margin."""
PRODUCTS = 5
MIN_N_EFF = 20
"""`evaluation.min_n_eff`, as shipped."""


def load_shipped_params(**changes: object) -> PromotionParams:
    """Return the shipped parameters of the promotion checks, with `changes`."""
    return PromotionParams.model_validate(yaml.safe_load(read_template("params.yaml"))["promotion"] | changes)


@dataclass(frozen=True)
class Nights:
    """A hold-out and a newest split, and the properties that candidates of successive nights share.

    The score of an answer is the mean of its class plus noise. Within a class the scores of the champion and of a
    candidate have the correlation `shared` (0.643 corresponds to 0.7 over all scores); the rest of a candidate's score
    has the correlation `carried` with that of the night before. `correlation` is the latent correlation of two answers
    about one document, both of being correct and of the noise of the scores.
    """

    documents: int = 50
    answers: int = 20
    newest: int = 4
    correlation: float = 0.1
    shared: float = 0.643
    carried: float = 0.0
    auroc: float = 0.75
    auroc_gain: float = 0.0
    params: PromotionParams = field(default_factory=load_shipped_params)

    def make_decisions(self, nights: int, generator: np.random.Generator) -> Iterator[PromotionDecision]:
        """Yield one promotion decision a night; each spends one comparison."""
        draws = [self._make_draw(answers, generator) for answers in (self.answers, self.newest)]
        champion = self._find_threshold(self.auroc)
        threshold = self._find_threshold(self.auroc + self.auroc_gain)
        measurements = CandidateMeasurements(
            threshold, TARGET, parity=0.0, latency_p99_ms=1.0, champion_threshold=champion
        )
        for night in range(nights):
            holdout, newest = (draw() for draw in draws)
            budget = ComparisonBudget(night, night * get_comparison_alpha(self.params))
            yield check_candidate(
                holdout, newest, measurements, self.params, MIN_N_EFF, CHAMPION, same_holdout=True, budget=budget
            )

    def _make_draw(self, answers: int, generator: np.random.Generator) -> Callable[[], EvaluationSet]:
        """Return a function that draws the answers of an evaluation set; each call has another candidate."""
        shape = (self.documents, answers)
        correct = (self._draw_noise(shape, generator) < norm.ppf(BASE_RATE)).astype(int).ravel()
        groups = np.repeat(np.arange(self.documents), answers)
        products = np.array([f"product {group % PRODUCTS}" for group in groups])
        common = np.sqrt(self.shared) * generator.standard_normal(len(correct))
        independent = np.sqrt(1 - self.shared)
        champion = self._compute_confidence(
            self.auroc, correct, common + independent * self._draw_noise(shape, generator).ravel()
        )
        candidate_noise = self._draw_noise(shape, generator).ravel()

        def draw_night() -> EvaluationSet:
            nonlocal candidate_noise
            fresh_noise = self._draw_noise(shape, generator).ravel()
            candidate_noise = self.carried * candidate_noise + np.sqrt(1 - self.carried**2) * fresh_noise
            confidence = self._compute_confidence(
                self.auroc + self.auroc_gain, correct, common + independent * candidate_noise
            )
            return EvaluationSet(correct, groups, products, {CANDIDATE: confidence, CHAMPION: champion})

        return draw_night

    def _draw_noise(self, shape: tuple[int, int], generator: np.random.Generator) -> np.ndarray:
        shared = np.sqrt(self.correlation) * generator.standard_normal((shape[0], 1))
        return np.asarray(shared + np.sqrt(1 - self.correlation) * generator.standard_normal(shape))

    @staticmethod
    def _compute_confidence(auroc: float, correct: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return the probability of being correct, given a score with this AUROC."""
        separation = np.sqrt(2) * norm.ppf(auroc)
        log_odds = separation * (separation * correct + noise) - separation**2 / 2 + np.log(BASE_RATE / (1 - BASE_RATE))
        return np.asarray(1 / (1 + np.exp(-log_odds)))

    @staticmethod
    def _find_threshold(auroc: float) -> float:
        """Return the confidence from which on `REACHED` of the answers are correct."""
        separation = np.sqrt(2) * norm.ppf(auroc)

        def compute_shortfall(score: float) -> float:
            correct, incorrect = BASE_RATE * norm.sf(score - separation), (1 - BASE_RATE) * norm.sf(score)
            return float(correct / (correct + incorrect) - REACHED)

        log_odds = (
            separation * brentq(compute_shortfall, -6, 6) - separation**2 / 2 + np.log(BASE_RATE / (1 - BASE_RATE))
        )
        return float(1 / (1 + np.exp(-log_odds)))


@dataclass(frozen=True)
class Outcome:
    """Rates of many runs.

    Attributes:
        promotion_rate: Share of runs with a promotion on any night.
        degradation_rate: Share of decisions in which a check other than `better` failed.
        rate_by_check: The same share by check.
    """

    promotion_rate: float
    degradation_rate: float
    rate_by_check: dict[str, float]


def simulate(nights: Nights, number: int, runs: int, seed: int = 5) -> Outcome:
    """Simulate `runs` runs of `number` nights and return their rates."""
    n_promoted, n_decisions, n_degraded, count_by_check = 0, 0, 0, dict[str, int]()
    for run in range(runs):
        is_promoted = False
        for decision in nights.make_decisions(number, np.random.default_rng([seed, run])):
            failed = {check.name for check in decision.checks if check.passed is False}
            degradations = failed - {f"better than champion {CHAMPION}"}
            n_decisions += 1
            n_degraded += bool(degradations)
            for name in degradations:
                count_by_check[name.split(" product")[0]] = count_by_check.get(name.split(" product")[0], 0) + 1
            if decision.is_approved:
                is_promoted = True
                break
        n_promoted += is_promoted
    return Outcome(
        n_promoted / runs,
        n_degraded / n_decisions,
        {name: count / n_decisions for name, count in sorted(count_by_check.items())},
    )


def measure_rejection_rate(documents: int, answers: int, precision: float, runs: int, seed: int = 5) -> float:
    """Return the share of hold-outs that reject a guaranteed precision of `TARGET` if `precision` is the true one.

    About half of the answers are shown, and those about one document have a latent correlation of 0.1.
    """
    params = load_shipped_params()
    nights = Nights(documents, answers)
    n_rejected = 0
    for run in range(runs):
        generator = np.random.default_rng([seed, run])
        shape = (documents, answers)
        correct = (nights._draw_noise(shape, generator) < norm.ppf(precision)).astype(int).ravel()
        is_shown = generator.random(len(correct)) < 0.5
        groups = np.repeat(np.arange(documents), answers)
        holdout = EvaluationSet(correct, groups, groups, {CANDIDATE: is_shown.astype(float)})
        n_rejected += check_precision_guarantee(holdout, 1.0, TARGET, params, MIN_N_EFF).passed is False
    return n_rejected / runs


def print_rejection_rates(runs: int) -> None:
    """Print the share of hold-outs that reject the guarantee, by their size and the true precision."""
    shares = (TARGET, 0.75, 0.7, 0.65, 0.6)
    print("documents x answers |", " | ".join(f"{share:.2f}" for share in shares))
    for shape in ((10, 5), (10, 10), (25, 8), (50, 20), (200, 5)):
        print(
            f"{shape[0]} x {shape[1]} |",
            " | ".join(f"{measure_rejection_rate(*shape, share, runs):.1%}" for share in shares),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--documents", type=int, nargs="+", default=[50], help="that share 1,000 answers")
    parser.add_argument("--guarantee", action="store_true", help="how often a hold-out refutes a guarantee")
    options = parser.parse_args()
    degradation_checks.RESAMPLING = evaluation_set.RESAMPLING = BootstrapConfig(
        200, 3
    )  # fewer than in a promotion: many nights
    if options.guarantee:
        print_rejection_rates(options.runs)
        return
    print("documents x answers | correlation | carried | promoted in 60 nights | further checks reject | found in 5")
    for shape in ((documents, 1000 // documents) for documents in options.documents):
        for correlation in (0.0, 0.1):
            for carried in (0.0, 0.8):
                equal_nights = Nights(*shape, max(2, shape[1] // 5), correlation, carried=carried)
                equal_outcome = simulate(equal_nights, 60, options.runs)
                better_nights = Nights(*shape, max(2, shape[1] // 5), correlation, carried=carried, auroc_gain=0.05)
                better_outcome = simulate(better_nights, 5, 4 * options.runs)  # of a twelfth of the nights
                rates = ", ".join(f"{name} {share:.1%}" for name, share in equal_outcome.rate_by_check.items())
                print(
                    f"{shape[0]} x {shape[1]} | {correlation} | {carried} | {equal_outcome.promotion_rate:.1%} "
                    f"| {equal_outcome.degradation_rate:.1%} "
                    f"({rates}) | {better_outcome.promotion_rate:.1%}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
