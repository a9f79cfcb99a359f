"""How near calibrated confidences come to the true probabilities, by method and number of reviews.

The table of docs/studies/thresholds.md: `python -m benchmarks.calibration 100`.
"""

from __future__ import annotations

import sys

import numpy as np
from scipy.stats import beta

from abstain.learning.metrics.calibration import Method, fit_calibrator

FITTED: tuple[Method, ...] = ("temperature", "isotonic", "venn_abers")


def draw_biased(rows: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Confidences that say too little of liked answers, and the probabilities that they stand for."""
    liked = generator.random(rows) < 0.7
    confidence = np.where(liked, generator.beta(5, 2, rows), generator.beta(3, 3, rows))
    of_liked, of_others = 0.7 * beta.pdf(confidence, 5, 2), 0.3 * beta.pdf(confidence, 3, 3)
    right = of_liked * (0.25 + 0.75 * confidence**0.8) + of_others * (0.05 + 0.85 * confidence)
    return confidence, right / (of_liked + of_others)


def draw_scaled(rows: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Confidences whose logit is 2.5 times too large, and the probabilities that they stand for."""
    logit = generator.normal(0.5, 2.5, rows)
    return 1 / (1 + np.exp(-logit)), 1 / (1 + np.exp(-0.4 * logit))


def main(samples: int) -> None:
    """Print each method's root mean squared distance to the true probability, and the width of Venn-Abers' interval."""
    for name, draw in (("overconfident", draw_scaled), ("biased", draw_biased)):
        new, truth = draw(20_000, np.random.default_rng(99))
        print(f"| {name} | raw | {np.sqrt(np.mean((new - truth) ** 2)):.3f} |")
        for rows in (50, 100, 200, 500, 1000, 5000):
            errors: dict[str, list[float]] = {method: [] for method in FITTED}
            widths = []
            for sample in range(samples):
                generator = np.random.default_rng([rows, sample])
                confidence, probability = draw(rows, generator)
                correct = (generator.random(rows) < probability).astype(int)
                if not 10 <= correct.sum() <= rows - 10:
                    continue
                for method in FITTED:
                    calibrator = fit_calibrator(method, confidence, correct)
                    errors[method].append(float(np.sqrt(np.mean((calibrator.apply(new) - truth) ** 2))))
                low, high = calibrator.compute_interval(new) or (new, new)
                widths.append(float(np.mean(high - low)))
            columns = " | ".join(f"{np.mean(values):.3f}" for values in errors.values())
            print(f"| {name} | {rows} | {columns} | {np.mean(widths):.2f} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
