"""How reliable the alarms of monitoring are, by simulation: `python -m benchmarks.monitoring`.

Guarantees: a year of daily tests on the reviews of shown answers. "False alarms": the share of years in which a
guarantee of .90 that holds was called violated, "delay": the reviews until one whose true precision is .85 was, median
and nine years in ten.

Windows: vectors of answers about ten products with ten documents each; a row is the sum of its product's vector, its
document's and its own. "Unshifted" windows are drawn like the reference; in the others the documents of one product
were rewritten, or a share of the questions is about a product that no document is about.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from abstain.monitoring import live_guarantee
from abstain.monitoring.drift import classifier_two_sample_test, combine_p_values, measure_novelty, permutation_test
from abstain.monitoring.expected_precision import check_calibration
from abstain.monitoring.live_guarantee import GuaranteedTarget, ReviewBatch
from benchmarks.guarantee import Population

DAYS = 365
ALPHA = 0.05
TARGET, VIOLATED = 0.9, 0.85
FEW = 50
"""Documents that are asked about all year."""


@dataclass(frozen=True)
class Reviews:
    """The reviews of a year: about `documents` new ones a day, or about the same `FEW` all year (None)."""

    name: str
    documents: int | None
    answers: int
    correlation: float = 0.0
    review_ratio: float = 1.0
    coverage: float | None = None
    """The share shown, for a guaranteed error rate; None: a precision is guaranteed."""

    @property
    def guarantee(self) -> GuaranteedTarget:
        """Guarantee that the reviews test."""
        if self.coverage is None:
            return GuaranteedTarget("precision", TARGET)
        return GuaranteedTarget("error_rate", self.coverage * (1 - TARGET))

    def make_population(self, precision: float) -> Population:
        """Return answers that are correct with the probability `precision`; their confidences are not used."""
        return Population(0.503, self.correlation, self.review_ratio, precision)

    def draw_year(self, population: Population, generator: np.random.Generator) -> list[ReviewBatch]:
        """Draw the reviews of a year, one batch a day."""
        if self.documents is None:
            rows = population.draw(FEW, DAYS * self.answers // FEW, generator)
        else:
            rows = population.draw(DAYS * self.documents, self.answers, generator)
        groups, weight = np.asarray(rows.groups), np.asarray(rows.weight)
        day = generator.integers(DAYS, size=len(groups)) if self.documents is None else groups // self.documents
        order = np.argsort(day, kind="stable")
        cuts = np.searchsorted(day[order], np.arange(1, DAYS))
        parts = (np.split(values[order], cuts) for values in (rows.correct, weight, groups))
        return [ReviewBatch(*part, coverage=self.coverage or 1.0) for part in zip(*parts, strict=True)]

    def count_reviews_until_alarm(self, precision: float, years: int, seed: int = 17) -> np.ndarray:
        """Return the reviews until the guarantee was called violated, inf if it never was, (years,)."""
        counts, population = np.full(years, np.inf), self.make_population(precision)
        for year in range(years):
            batches = self.draw_year(population, np.random.default_rng([seed, year]))
            days = live_guarantee.find_alarm_batches(batches, self.guarantee, ALPHA)
            if len(days):
                counts[year] = sum(len(batch.correct) for batch in batches[: days[0] + 1])
        return counts


def make_review_cells() -> Iterator[Reviews]:
    """Yield the rows of the table."""
    yield Reviews("independent", 8, 1)
    for review_ratio in (1.0, 4.0, 0.25):
        yield Reviews("new documents each day", 4, 2, 0.1, review_ratio)
        yield Reviews(f"the same {FEW} all year", None, 8, 0.1, review_ratio)
    yield Reviews("independent, error rate", 8, 1, coverage=0.8)


Recurring = Literal["all", "half", "none"]


@dataclass(frozen=True)
class Traffic:
    """Answers about documents, of which all, half or none recur in other windows."""

    recurring: Recurring = "all"
    seed: int = 0
    products: int = 10
    documents: int = 10
    size: int = 128

    def draw_rows(
        self, count: int, window: int, rewritten: float = 0.0, new_topic: float = 0.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw vectors (count, size) and document ids (count,) of one `window`.

        Args:
            count: Number of rows.
            window: Number of the window, which seeds the draw.
            rewritten: Shift of one product's texts, in units of the distance between products.
            new_topic: Share of rows about a product that other windows lack; their documents are random ones.

        Returns:
            Vectors and document ids.
        """
        generator = np.random.default_rng([self.seed, window])
        product, number = generator.integers(self.products, size=count), generator.integers(self.documents, size=count)
        n_fresh = {"all": 0, "half": self.documents // 2, "none": self.documents}[self.recurring]
        document = product * self.documents + number
        document = np.where(number < n_fresh, document + (1 + window) * self.products * self.documents, document)
        topic = np.where(np.arange(count) < new_topic * count, self.products, product)
        names, indices = np.unique(document, return_inverse=True)
        centres = np.stack([self._draw_vectors(1 + int(name)) for name in names])
        vectors = self._draw_vectors(0, self.products + 2)
        answers = (
            vectors[topic] + centres[indices] + self._scale_directions(generator.standard_normal((count, self.size)))
        )
        return answers + rewritten * (product == 0)[:, None] * vectors[-1], document

    def _draw_vectors(self, key: int, count: int | None = None) -> np.ndarray:
        generator = np.random.default_rng([self.seed, 1, key, 1])
        return self._scale_directions(generator.standard_normal(self.size if count is None else (count, self.size)))

    def _scale_directions(self, normal: np.ndarray) -> np.ndarray:
        """Let a few directions vary much more than the others, as they do in embeddings."""
        return np.asarray(normal / np.sqrt(1 + np.arange(self.size) / 8))


@dataclass(frozen=True)
class Shift:
    """A shift of a window."""

    name: str
    rewritten: float = 0.0
    new_topic: float = 0.0


SHIFTS = (
    Shift("none"),
    Shift("one of ten products rewritten", rewritten=1.0),
    Shift("10 % on a new topic", new_topic=0.1),
)
DRIFT_TESTS = (permutation_test, classifier_two_sample_test, measure_novelty)
ALARMS = ("permutation", "classifier", "inputs (both)", "new topics")


def measure_drift_alarms(
    traffic: Traffic, shift: Shift, sizes: tuple[int, int], windows: int, seeds: int
) -> np.ndarray:
    """Return the share of windows with an alarm of each of `ALARMS`; each seed has its own products and documents."""
    p_values = []
    for seed in range(seeds):
        seeded_traffic = replace(traffic, seed=seed)
        for window in range(windows):
            reference, groups = seeded_traffic.draw_rows(sizes[0], 2 * window)
            vectors, window_groups = seeded_traffic.draw_rows(
                sizes[1], 2 * window + 1, shift.rewritten, shift.new_topic
            )
            permutation, classifier, novelty = (
                test(reference, vectors, groups, window_groups, seed).p_value for test in DRIFT_TESTS
            )
            p_values.append([permutation, classifier, combine_p_values([permutation, classifier]), novelty])
    return np.asarray((np.array(p_values) <= ALPHA).mean(axis=0))


def measure_calibration_alarms(
    population: Population, documents: int, answers: int, excess: float, windows: int
) -> float:
    """Return the share of windows with an alarm if the probabilities are `excess` too high."""
    n_alarms = 0
    for window in range(windows):
        rows = population.draw(documents, answers, np.random.default_rng([23, window]))
        probability = np.clip(rows.confidence + excess, 0, 1)
        check = check_calibration(probability, rows.correct, np.asarray(rows.weight), np.asarray(rows.groups))
        n_alarms += check.p_value <= ALPHA
    return n_alarms / windows


def print_guarantees(years: int) -> None:
    """Print the table of guarantees."""
    print(
        "documents | correlation | liked reviewed | false alarms a year | reviews until noticed | in nine of ten years"
    )
    for cell in make_review_cells():
        false_alarms, true_alarms = (
            cell.count_reviews_until_alarm(precision, years) for precision in (TARGET, VIOLATED)
        )
        median, ninth_decile = np.quantile(true_alarms, [0.5, 0.9], method="higher")
        print(
            f"{cell.name} | {cell.correlation:g} | {cell.review_ratio:g} | {np.isfinite(false_alarms).mean():.1%} | "
            f"{median:.0f} | {ninth_decile:.0f}",
            flush=True,
        )


def print_calibration(windows: int) -> None:
    """Print the table of calibration."""
    print("documents x reviews | correlation | liked reviewed | false alarms | noticed: 0.15 too high")
    for review_ratio in (1.0, 4.0, 0.25):
        for correlation in (0.0, 0.1):
            for documents, answers in ((50, 1), (10, 5), (40, 5)):
                population = Population(0.75, correlation, review_ratio, base_rate=0.85)
                shares = [
                    measure_calibration_alarms(population, documents, answers, excess, windows)
                    for excess in (0.0, 0.15)
                ]
                print(
                    f"{documents} x {answers} | {correlation:g} | {review_ratio:g} | {shares[0]:.1%} | {shares[1]:.0%}",
                    flush=True,
                )


def print_drifts(windows: int, seeds: int) -> None:
    """Print the table of drift."""
    print("documents that recur | rows before, in the window | shift | " + " | ".join(ALARMS))
    recurring: tuple[Recurring, ...] = ("all", "half", "none")
    for recurrence in recurring:
        for sizes in ((600, 300), (1500, 1000)):
            for shift in SHIFTS:
                shares = measure_drift_alarms(
                    Traffic(recurrence), shift, sizes, windows if shift == SHIFTS[0] else 2, seeds
                )
                cells = " | ".join(f"{share:.1%}" for share in shares)
                print(f"{recurrence} | {sizes[0]}, {sizes[1]} | {shift.name} | {cells}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--years", type=int, default=1000)
    parser.add_argument("--windows", type=int, default=20, help="of each seed; 2 where they are shifted")
    parser.add_argument("--seeds", type=int, default=20)
    tables: dict[str, Callable[[argparse.Namespace], None]] = {
        "guarantees": lambda options: print_guarantees(options.years),
        "calibration": lambda options: print_calibration(options.windows * options.seeds),
        "drift": lambda options: print_drifts(options.windows, options.seeds),
    }
    parser.add_argument("--only", choices=tables)
    options = parser.parse_args(arguments)
    for name, table in tables.items():
        if options.only in (None, name):
            table(options)


if __name__ == "__main__":
    main()
