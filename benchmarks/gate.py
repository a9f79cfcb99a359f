"""How often the gate promotes what is no better, and how soon what is better, night after night, by simulation.

    python -m benchmarks.gate --runs 200
    python -m benchmarks.gate --guarantee

Every night a new challenger is judged by the whole gate on the same hold-out of answers about documents that err
together. "Promoted": the share of runs in which an equal challenger was promoted on any of the nights. "Found": the
share of those in which one that is better from the first night on was promoted within five. Every look has the same
level, so it is the same from any later night on that leaves five looks.

`--guarantee`: how often a hold-out refutes a guarantee, by the true precision of what is shown.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import yaml
from scipy.optimize import brentq
from scipy.stats import norm

from abstain.config.params import GateParams
from abstain.config.template import template
from abstain.learning.metrics.bootstrap import BootstrapConfig
from abstain.release import degradation_checks as drops
from abstain.release import evaluation_set as evaluation_window
from abstain.release.champion_comparison import ComparisonBudget
from abstain.release.evaluation_set import CANDIDATE, EvaluationSet
from abstain.release.holdout_guarantee import check_precision_guarantee
from abstain.release.promotion_check import CandidateMeasurements, PromotionDecision, check_candidate

CHAMPION = "v1.0.0"
BASE_RATE, TARGET, REACHED = 0.7, 0.8, 0.82
"""The share of correct answers; the guaranteed precision; that at the tuned threshold, which has some margin."""
PRODUCTS = 5


def shipped(**changes: object) -> GateParams:
    return GateParams.model_validate(yaml.safe_load(template("params.yaml"))["gate"] | changes)


@dataclass(frozen=True)
class Nights:
    """A hold-out and a newest window, and what challengers of successive nights have in common.

    An answer's score is its class's mean plus noise. Within a class the champion's and a challenger's scores have the
    correlation `shared` (0.643 is one of 0.7 of all scores); the rest of a challenger's has the correlation `carried`
    with that of the night before.
    `correlation` is the latent one of two answers about one document: of being correct, and of the scores' own noise.
    """

    documents: int = 50
    answers: int = 20
    newest: int = 4
    correlation: float = 0.1
    shared: float = 0.643
    carried: float = 0.0
    auroc: float = 0.75
    better: float = 0.0
    params: GateParams = field(default_factory=shipped)

    def decisions(self, nights: int, generator: np.random.Generator) -> Iterator[PromotionDecision]:
        """One decision a night; a look is spent each."""
        windows = [self._window(answers, generator) for answers in (self.answers, self.newest)]
        champion = self._threshold(self.auroc)
        threshold = self._threshold(self.auroc + self.better)
        measured = CandidateMeasurements(threshold, TARGET, parity=0.0, latency_p99_ms=1.0, champion_threshold=champion)
        for night in range(nights):
            holdout, newest = (draw() for draw in windows)
            looks = ComparisonBudget(night, night * self.params.false_promotions / self.params.looks)
            yield check_candidate(holdout, newest, measured, self.params, CHAMPION, same_holdout=True, budget=looks)

    def _window(self, answers: int, generator: np.random.Generator) -> Callable[[], EvaluationSet]:
        """Draws the window's answers; each call is a night with another challenger."""
        shape = (self.documents, answers)
        correct = (self._noise(shape, generator) < norm.ppf(BASE_RATE)).astype(int).ravel()
        groups = np.repeat(np.arange(self.documents), answers)
        products = np.array([f"product {group % PRODUCTS}" for group in groups])
        common = np.sqrt(self.shared) * generator.standard_normal(len(correct))
        own = np.sqrt(1 - self.shared)
        champion = self._confidence(self.auroc, correct, common + own * self._noise(shape, generator).ravel())
        challenger = self._noise(shape, generator).ravel()

        def night() -> EvaluationSet:
            nonlocal challenger
            new = self._noise(shape, generator).ravel()
            challenger = self.carried * challenger + np.sqrt(1 - self.carried**2) * new
            confidence = self._confidence(self.auroc + self.better, correct, common + own * challenger)
            return EvaluationSet(correct, groups, products, {CANDIDATE: confidence, CHAMPION: champion})

        return night

    def _noise(self, shape: tuple[int, int], generator: np.random.Generator) -> np.ndarray:
        shared = np.sqrt(self.correlation) * generator.standard_normal((shape[0], 1))
        return np.asarray(shared + np.sqrt(1 - self.correlation) * generator.standard_normal(shape))

    @staticmethod
    def _confidence(auroc: float, correct: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """The probability of being correct, given a score with this AUROC."""
        apart = np.sqrt(2) * norm.ppf(auroc)
        log_odds = apart * (apart * correct + noise) - apart**2 / 2 + np.log(BASE_RATE / (1 - BASE_RATE))
        return np.asarray(1 / (1 + np.exp(-log_odds)))

    @staticmethod
    def _threshold(auroc: float) -> float:
        """The confidence from which on `REACHED` of the answers are correct."""
        apart = np.sqrt(2) * norm.ppf(auroc)

        def short(score: float) -> float:
            correct, wrong = BASE_RATE * norm.sf(score - apart), (1 - BASE_RATE) * norm.sf(score)
            return float(correct / (correct + wrong) - REACHED)

        log_odds = apart * brentq(short, -6, 6) - apart**2 / 2 + np.log(BASE_RATE / (1 - BASE_RATE))
        return float(1 / (1 + np.exp(-log_odds)))


@dataclass(frozen=True)
class Outcome:
    """Shares of runs: with a promotion on any night; and of all decisions: with a check that failed beside `better`."""

    promoted: float
    refused: float
    by: dict[str, float]


def simulate(nights: Nights, number: int, runs: int, seed: int = 5) -> Outcome:
    promoted, decided, refused, by = 0, 0, 0, dict[str, int]()
    for run in range(runs):
        found = False
        for decision in nights.decisions(number, np.random.default_rng([seed, run])):
            failed = {check.name for check in decision.checks if check.passed is False}
            further = failed - {f"better than champion {CHAMPION}"}
            decided += 1
            refused += bool(further)
            for name in further:
                by[name.split(" product")[0]] = by.get(name.split(" product")[0], 0) + 1
            if decision.approved:
                found = True
                break
        promoted += found
    return Outcome(promoted / runs, refused / decided, {name: count / decided for name, count in sorted(by.items())})


def refuted(documents: int, answers: int, precision: float, runs: int, seed: int = 5) -> float:
    """The share of hold-outs that refute a guaranteed precision of `TARGET` where `precision` is the true one; about
    half of the answers are shown, and those about one document have a latent correlation of 0.1."""
    params = shipped()
    nights = Nights(documents, answers)
    found = 0
    for run in range(runs):
        generator = np.random.default_rng([seed, run])
        shape = (documents, answers)
        correct = (nights._noise(shape, generator) < norm.ppf(precision)).astype(int).ravel()
        shown = generator.random(len(correct)) < 0.5
        groups = np.repeat(np.arange(documents), answers)
        window = EvaluationSet(correct, groups, groups, {CANDIDATE: shown.astype(float)})
        found += check_precision_guarantee(window, 1.0, TARGET, params).passed is False
    return found / runs


def print_refuted(runs: int) -> None:
    shares = (TARGET, 0.75, 0.7, 0.65, 0.6)
    print("documents x answers |", " | ".join(f"{share:.2f}" for share in shares))
    for shape in ((10, 5), (10, 10), (25, 8), (50, 20), (200, 5)):
        print(f"{shape[0]} x {shape[1]} |", " | ".join(f"{refuted(*shape, share, runs):.1%}" for share in shares))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--documents", type=int, nargs="+", default=[50], help="that share 1,000 answers")
    parser.add_argument("--guarantee", action="store_true", help="how often a hold-out refutes a guarantee")
    chosen = parser.parse_args()
    drops.RESAMPLES = evaluation_window.RESAMPLES = BootstrapConfig(200, 3)  # fewer than the gate's own: many nights
    if chosen.guarantee:
        print_refuted(chosen.runs)
        return
    print("documents x answers | correlation | carried | promoted in 60 nights | further checks refuse | found in 5")
    for shape in ((documents, 1000 // documents) for documents in chosen.documents):
        for correlation in (0.0, 0.1):
            for carried in (0.0, 0.8):
                equal = Nights(*shape, max(2, shape[1] // 5), correlation, carried=carried)
                false = simulate(equal, 60, chosen.runs)
                better = Nights(*shape, max(2, shape[1] // 5), correlation, carried=carried, better=0.05)
                found = simulate(better, 5, 4 * chosen.runs)  # of a twelfth of the nights
                refused = ", ".join(f"{name} {share:.1%}" for name, share in false.by.items())
                print(
                    f"{shape[0]} x {shape[1]} | {correlation} | {carried} | {false.promoted:.1%} | {false.refused:.1%} "
                    f"({refused}) | {found.promoted:.1%}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
