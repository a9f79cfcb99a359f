"""One scorer, slice by slice: by kind of answer, product, line of business, retrieved chunks and answer length.

A good overall metric may hide a product on which the scorer fails. A slice that is too small to evaluate is listed with
the reason instead of metrics.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import BootstrapConfig, bootstrap, make_interval_columns

NOT_GIVEN = "not given"
KIND = "kind of answer"


@dataclass(frozen=True)
class SliceInput:
    """Answers with the scores of one scorer. All arrays are (rows,).

    Attributes:
        correct: 0 or 1.
        confidence: Raw confidence; nan without a score.
        probability: Calibrated probability; nan without a score.
        shown: bool, whether the threshold shows the answer.
        groups: Group ids.
        weight: Sampling weights (`weighted_metrics.row_weights`).
    """

    correct: np.ndarray
    confidence: np.ndarray
    probability: np.ndarray
    shown: np.ndarray
    groups: np.ndarray
    weight: np.ndarray

    def subset(self, rows: pd.Series) -> SliceInput:
        """Select answers.

        Args:
            rows: bool (rows,) mask.

        Returns:
            The selected answers.
        """
        mask = rows.to_numpy(bool)
        return SliceInput(*(getattr(self, field.name)[mask] for field in fields(self)))


def make_strata(
    products: Iterable[Any],
    lines_of_business: Iterable[Any],
    retrieved_chunks: np.ndarray,
    answer_characters: np.ndarray,
    refusals: np.ndarray,
) -> pd.DataFrame:
    """Divide answers into strata, each a partition into slices.

    Lengths are divided at the quartiles of these rows, into fewer than four slices if many answers are equally long;
    such a slice is named by its shortest and its longest answer.

    Args:
        products: (rows,) texts, or null.
        lines_of_business: (rows,) texts, or null.
        retrieved_chunks: int (rows,) numbers of chunks.
        answer_characters: int (rows,) lengths of the answers.
        refusals: bool (rows,) "I don't know" answers, a separate kind of answer. Without any there is no stratum of
            kinds.

    Returns:
        (rows, strata), ordered categories whose values name the slices.
    """
    quartiles = np.unique(np.quantile(answer_characters, [0.25, 0.5, 0.75])) if len(answer_characters) else np.array([])
    quartile = np.searchsorted(quartiles, answer_characters)
    lengths = {q: answer_characters[quartile == q] for q in np.unique(quartile)}
    names = {q: f"{length.min()} to {length.max()} characters" for q, length in lengths.items()}
    kinds = pd.Categorical(np.where(refusals, "refusals", "answers"), ["answers", "refusals"])
    return pd.DataFrame(
        ({KIND: kinds} if refusals.any() else {})
        | {
            "product": _make_categories(products),
            "line of business": _make_categories(lines_of_business),
            "retrieved chunks": pd.Categorical(
                [str(count) for count in retrieved_chunks], [str(count) for count in np.unique(retrieved_chunks)]
            ),
            "answer length": pd.Categorical([names[q] for q in quartile], list(names.values())),
        }
    )


def build_slice_table(
    scored: SliceInput, strata: pd.DataFrame, resampling: BootstrapConfig, min_n_eff: int
) -> pd.DataFrame:
    """Evaluate a scorer on every slice, weighted.

    Args:
        scored: Answers with the scores of one scorer.
        strata: (rows, strata) from `make_strata`.
        resampling: Number of resamples and seed.
        min_n_eff: Smallest effective sample size. A smaller slice is not evaluated; with fewer shown answers, its
            precision is not.

    Returns:
        A row for each slice: `stratum`, `slice`, `rows`, `n_eff`, `base_rate`, `auroc` of the confidence with its 95 %
        interval by groups of the slice, `ece` and `brier` of the probability, `shown` (rows), `precision`, and
        `note`, the reason for nan values or "".
    """
    return pd.DataFrame(
        [
            {"stratum": stratum, "slice": name}
            | _evaluate_slice(scored.subset(strata[stratum] == name), resampling, min_n_eff)
            for stratum in strata.columns
            for name in strata[stratum].cat.categories
        ]
    )


def compute_auroc_by_slice(
    correct: np.ndarray,
    scores: pd.DataFrame,
    groups: np.ndarray,
    weight: np.ndarray,
    stratum: pd.Series,
    resampling: BootstrapConfig,
    min_n_eff: int,
) -> list[dict[str, Any]]:
    """Compute the AUROC of every scorer on each slice of one stratum.

    Args:
        correct: (rows,) 0 or 1.
        scores: (rows, scorers) confidences; nan without a score.
        groups: (rows,) group ids of the bootstrap.
        weight: (rows,) sampling weights.
        stratum: (rows,) a column of `make_strata`.
        resampling: Number of resamples and seed.
        min_n_eff: Smallest effective sample size of a slice to evaluate.

    Returns:
        A row for each slice: `slice`, `rows`, `n_eff`, and `scorers`, scorer -> AUROC with its 95 % interval by groups
        of the slice; empty if the slice is too small.
    """
    rows = []
    for name in stratum.cat.categories:
        mask = (stratum == name).to_numpy(bool)
        row = {
            "slice": name,
            "rows": int(mask.sum()),
            "n_eff": metrics.effective_sample_size(weight[mask]),
            "scorers": {},
        }
        if row["n_eff"] >= min_n_eff:
            statistics = {
                scorer: partial(metrics.auroc, correct[mask], scores[scorer].to_numpy(float)[mask]) for scorer in scores
            }
            estimates = bootstrap(
                statistics, groups[mask], n_resamples=resampling.n_resamples, seed=resampling.seed, weight=weight[mask]
            )
            row["scorers"] = {
                str(scorer): make_interval_columns("auroc", estimate) for scorer, estimate in estimates.items()
            }
        rows.append(row)
    return rows


def _evaluate_slice(scored: SliceInput, resampling: BootstrapConfig, min_n_eff: int) -> dict[str, Any]:
    correct, weight, shown = scored.correct, scored.weight, scored.shown
    row = {
        "rows": len(correct),
        "n_eff": metrics.effective_sample_size(weight),
        "base_rate": metrics.weighted_mean(correct, weight),
    }
    row |= dict.fromkeys(("auroc", "auroc_low", "auroc_high", "ece", "brier"), np.nan)
    row |= {"shown": int(shown.sum()), "precision": np.nan}
    if row["n_eff"] < min_n_eff:
        return row | {"note": f"{_describe_too_few(row['rows'], min_n_eff)} answers: not judged"}
    statistics = {"": partial(metrics.auroc, correct, scored.confidence)}
    auroc = bootstrap(
        statistics, scored.groups, n_resamples=resampling.n_resamples, seed=resampling.seed, weight=weight
    )[""]
    row |= make_interval_columns("auroc", auroc)
    row |= {"ece": metrics.ece(correct, scored.probability, weight)}
    row |= {"brier": metrics.brier(correct, scored.probability, weight)}
    notes = [reason for reason, holds in _check_undefined(scored).items() if holds]
    if not notes and np.isnan(row["auroc_low"]):
        notes.append("too few groups of both classes for an interval")
    if metrics.effective_sample_size(weight[shown]) < min_n_eff:
        notes.append(f"{_describe_too_few(row['shown'], min_n_eff)} shown answers: precision not judged")
    else:
        row["precision"] = metrics.weighted_mean(correct[shown], weight[shown])
    return row | {"note": "; ".join(notes)}


def _check_undefined(scored: SliceInput) -> dict[str, bool]:
    """Return the possible reasons for an undefined metric of a slice, and whether each applies."""
    return {
        "no answer has a score": bool(np.isnan(scored.confidence).all()),
        "no answer has a probability": bool(np.isnan(scored.probability).all()),
        "one class only": len(np.unique(scored.correct)) < 2,
        "one group only: no interval": len(np.unique(scored.groups)) < 2,
    }


def _describe_too_few(rows: int, min_n_eff: int) -> str:
    return f"fewer than {min_n_eff}" if rows < min_n_eff else f"effective sample size below {min_n_eff}"


def _make_categories(values: Iterable[Any]) -> Any:
    names = [NOT_GIVEN if pd.isna(value) else str(value) for value in values]
    return pd.Categorical(names, sorted(set(names), key=lambda name: (name == NOT_GIVEN, name)))
