"""What the alarms of monitoring are worth, by simulation: `python -m benchmarks.monitoring`.

Promises: a year of daily looks at the reviews of shown answers. "False alarms": the share of years in which a promise
of .90 that is kept was called broken, "delay": the reviews until one that is truly .85 was, median and nine years in
ten.

Windows: vectors of answers about ten products with ten documents each; a row is its product's vector, its document's
and its own. "Unshifted" windows are drawn as the reference is; in the others one product's documents were rewritten, or
a share of the questions is about a product that no document is about.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from abstain.monitoring import live_guarantee as promise_test
from abstain.monitoring.drift import classifier_two_sample_test, combine_p_values, measure_novelty, permutation_test
from abstain.monitoring.expected_precision import check_calibration
from abstain.monitoring.live_guarantee import GuaranteedTarget, ReviewBatch
from benchmarks.guarantee import Population

DAYS = 365
LEVEL = 0.05
TARGET, BROKEN = 0.9, 0.85
FEW = 50
"""Documents that are asked about all year."""


@dataclass(frozen=True)
class Reviews:
    """The reviews of a year: about `documents` new ones a day, or about the same `FEW` all year (None)."""

    name: str
    documents: int | None
    answers: int
    correlation: float = 0.0
    liked_often: float = 1.0
    coverage: float | None = None
    """The share shown, of a promise of an error rate; None: the promise is a precision."""

    @property
    def promise(self) -> GuaranteedTarget:
        if self.coverage is None:
            return GuaranteedTarget("precision", TARGET)
        return GuaranteedTarget("error_rate", self.coverage * (1 - TARGET))

    def population(self, precision: float) -> Population:
        """Answers that are correct with the probability `precision`; their confidences are not looked at."""
        return Population(0.503, self.correlation, self.liked_often, precision)

    def year(self, population: Population, generator: np.random.Generator) -> list[ReviewBatch]:
        """A batch a day."""
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

    def reviews_until_alarm(self, precision: float, years: int, seed: int = 17) -> np.ndarray:
        """The reviews until a promise was called broken, inf where it never was; (years,)."""
        found, population = np.full(years, np.inf), self.population(precision)
        for year in range(years):
            batches = self.year(population, np.random.default_rng([seed, year]))
            days = promise_test.find_alarm_batches(batches, self.promise, LEVEL)
            if len(days):
                found[year] = sum(len(batch.correct) for batch in batches[: days[0] + 1])
        return found


def reviews() -> Iterator[Reviews]:
    yield Reviews("independent", 8, 1)
    for often in (1.0, 4.0, 0.25):
        yield Reviews("new documents each day", 4, 2, 0.1, often)
        yield Reviews(f"the same {FEW} all year", None, 8, 0.1, often)
    yield Reviews("independent, error rate", 8, 1, coverage=0.8)


Recurring = Literal["all", "half", "none"]


@dataclass(frozen=True)
class Traffic:
    """Answers about documents, of which all, half or none are those of other windows."""

    recurring: Recurring = "all"
    seed: int = 0
    products: int = 10
    documents: int = 10
    size: int = 128

    def rows(
        self, count: int, window: int, rewritten: float = 0.0, new_topic: float = 0.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Vectors (count, size) and document ids (count,) of one `window`.

        rewritten: how far the texts of one product have moved, in units of how far products are apart. new_topic: the
        share of the rows about a product that is not among those of other windows; to them a random document was found.
        """
        generator = np.random.default_rng([self.seed, window])
        product, number = generator.integers(self.products, size=count), generator.integers(self.documents, size=count)
        own = {"all": 0, "half": self.documents // 2, "none": self.documents}[self.recurring]
        document = product * self.documents + number
        document = np.where(number < own, document + (1 + window) * self.products * self.documents, document)
        topic = np.where(np.arange(count) < new_topic * count, self.products, product)
        names, at = np.unique(document, return_inverse=True)
        centres = np.stack([self._vectors(1 + int(name)) for name in names])
        vectors = self._vectors(0, self.products + 2)
        found = vectors[topic] + centres[at] + self._scaled(generator.standard_normal((count, self.size)))
        return found + rewritten * (product == 0)[:, None] * vectors[-1], document

    def _vectors(self, key: int, count: int | None = None) -> np.ndarray:
        generator = np.random.default_rng([self.seed, 1, key, 1])
        return self._scaled(generator.standard_normal(self.size if count is None else (count, self.size)))

    def _scaled(self, normal: np.ndarray) -> np.ndarray:
        """A few directions vary much more than the others, as they do in embeddings."""
        return np.asarray(normal / np.sqrt(1 + np.arange(self.size) / 8))


@dataclass(frozen=True)
class Shift:
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


def drift_alarms(traffic: Traffic, shift: Shift, sizes: tuple[int, int], windows: int, seeds: int) -> np.ndarray:
    """The share of windows with an alarm of each of `ALARMS`; each seed has products and documents of its own."""
    raised = []
    for seed in range(seeds):
        world = replace(traffic, seed=seed)
        for window in range(windows):
            before, groups = world.rows(sizes[0], 2 * window)
            now, own = world.rows(sizes[1], 2 * window + 1, shift.rewritten, shift.new_topic)
            means, classifier, new = (test(before, now, groups, own, seed).p_value for test in DRIFT_TESTS)
            raised.append([means, classifier, combine_p_values([means, classifier]), new])
    return np.asarray((np.array(raised) <= LEVEL).mean(axis=0))


def calibration_alarms(population: Population, documents: int, answers: int, off: float, windows: int) -> float:
    """The share of windows of reviews with an alarm, where the probabilities are `off` too high."""
    raised = 0
    for window in range(windows):
        rows = population.draw(documents, answers, np.random.default_rng([23, window]))
        probability = np.clip(rows.confidence + off, 0, 1)
        found = check_calibration(probability, rows.correct, np.asarray(rows.weight), np.asarray(rows.groups))
        raised += found.p_value <= LEVEL
    return raised / windows


def promises(years: int) -> None:
    print(
        "documents | correlation | liked reviewed | false alarms a year | reviews until noticed | in nine of ten years"
    )
    for cell in reviews():
        false, noticed = (cell.reviews_until_alarm(precision, years) for precision in (TARGET, BROKEN))
        median, most = np.quantile(noticed, [0.5, 0.9], method="higher")
        print(
            f"{cell.name} | {cell.correlation:g} | {cell.liked_often:g} | {np.isfinite(false).mean():.1%} | "
            f"{median:.0f} | {most:.0f}",
            flush=True,
        )


def calibration(windows: int) -> None:
    print("documents x reviews | correlation | liked reviewed | false alarms | noticed: 0.15 too high")
    for often in (1.0, 4.0, 0.25):
        for correlation in (0.0, 0.1):
            for documents, answers in ((50, 1), (10, 5), (40, 5)):
                population = Population(0.75, correlation, often, base_rate=0.85)
                shares = [calibration_alarms(population, documents, answers, off, windows) for off in (0.0, 0.15)]
                print(
                    f"{documents} x {answers} | {correlation:g} | {often:g} | {shares[0]:.1%} | {shares[1]:.0%}",
                    flush=True,
                )


def drifts(windows: int, seeds: int) -> None:
    print("documents that recur | rows before, in the window | shift | " + " | ".join(ALARMS))
    recurring: tuple[Recurring, ...] = ("all", "half", "none")
    for which in recurring:
        for sizes in ((600, 300), (1500, 1000)):
            for shift in SHIFTS:
                shares = drift_alarms(Traffic(which), shift, sizes, windows if shift == SHIFTS[0] else 2, seeds)
                figures = " | ".join(f"{share:.1%}" for share in shares)
                print(f"{which} | {sizes[0]}, {sizes[1]} | {shift.name} | {figures}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--years", type=int, default=1000)
    parser.add_argument("--windows", type=int, default=20, help="of each seed; 2 where they are shifted")
    parser.add_argument("--seeds", type=int, default=20)
    tables: dict[str, Callable[[argparse.Namespace], None]] = {
        "promises": lambda chosen: promises(chosen.years),
        "calibration": lambda chosen: calibration(chosen.windows * chosen.seeds),
        "drift": lambda chosen: drifts(chosen.windows, chosen.seeds),
    }
    parser.add_argument("--only", choices=tables)
    chosen = parser.parse_args(arguments)
    for name, table in tables.items():
        if chosen.only in (None, name):
            table(chosen)


if __name__ == "__main__":
    main()
