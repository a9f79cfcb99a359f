"""One scorer, slice by slice: by kind of answer, product, line of business, retrieved chunks and answer length.

A good overall figure may hide a product on which the scorer fails. A slice too small to evaluate is listed with the
reason in place of its figures.
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
    """Answers, and the scores of one scorer. All are (rows,).

    `correct` is 0/1; `confidence` raw, nan without a score; `probability` calibrated, nan there too;
    `shown` of bool, what the threshold shows; `weight` that of `metrics.row_weights`.
    """

    correct: np.ndarray
    confidence: np.ndarray
    probability: np.ndarray
    shown: np.ndarray
    groups: np.ndarray
    weight: np.ndarray

    def subset(self, rows: pd.Series) -> SliceInput:
        """The answers of the mask `rows`, (rows,) of bool."""
        mask = rows.to_numpy(bool)
        return SliceInput(*(getattr(self, field.name)[mask] for field in fields(self)))


def make_strata(
    products: Iterable[Any],
    lines_of_business: Iterable[Any],
    retrieved_chunks: np.ndarray,
    answer_characters: np.ndarray,
    refusals: np.ndarray,
) -> pd.DataFrame:
    """The strata of answers, a column each, (rows,): ordered categories whose values name the slices.

    A product or line of business is a text or null; `retrieved_chunks` and `answer_characters` are counts (rows,);
    `refusals`, (rows,) of bool, are a kind of answer apart: without any, there is no stratum of kinds.
    Lengths fall into the quartiles of these rows, fewer than four where many answers are equally long; a slice is named
    by the shortest and the longest of its answers.
    """
    quartiles = np.unique(np.quantile(answer_characters, [0.25, 0.5, 0.75])) if len(answer_characters) else np.array([])
    quartile = np.searchsorted(quartiles, answer_characters)
    lengths = {q: answer_characters[quartile == q] for q in np.unique(quartile)}
    names = {q: f"{length.min()} to {length.max()} characters" for q, length in lengths.items()}
    kinds = pd.Categorical(np.where(refusals, "refusals", "answers"), ["answers", "refusals"])
    return pd.DataFrame(
        ({KIND: kinds} if refusals.any() else {})
        | {
            "product": _named(products),
            "line of business": _named(lines_of_business),
            "retrieved chunks": pd.Categorical(
                [str(count) for count in retrieved_chunks], [str(count) for count in np.unique(retrieved_chunks)]
            ),
            "answer length": pd.Categorical([names[q] for q in quartile], list(names.values())),
        }
    )


def build_slice_table(
    scored: SliceInput, strata: pd.DataFrame, resamples: BootstrapConfig, min_rows: int
) -> pd.DataFrame:
    """One row a slice, weighted; `strata` (rows, strata) is what the function of that name makes.

    A slice with an effective sample size below `min_rows` is not judged; where that of the shown answers is below it,
    its precision is not.

    Returns `stratum`, `slice`, `rows`, `n_eff` (`metrics.effective_sample_size`), `base_rate`, `auroc` of the
    confidence with its 95 % interval by groups of the slice, `ece` and `brier` of the probability, `shown` (rows),
    `precision`, and `note`: why figures are nan, "" where no figure is.
    """
    return pd.DataFrame(
        [
            {"stratum": stratum, "slice": name} | _figures(scored.subset(strata[stratum] == name), resamples, min_rows)
            for stratum in strata.columns
            for name in strata[stratum].cat.categories
        ]
    )


def auroc_by_slice(
    correct: np.ndarray,
    scores: pd.DataFrame,
    groups: np.ndarray,
    weight: np.ndarray,
    stratum: pd.Series,
    resamples: BootstrapConfig,
    min_rows: int,
) -> list[dict[str, Any]]:
    """A row a slice of `stratum`, one of `strata`: its name, `rows`, `n_eff`, and `scorers`: name -> AUROC with its
    95 % interval by groups of the slice. A slice with an effective sample size below `min_rows` has no scorers.

    `scores`: (rows, scorers), nan without a score.
    """
    found = []
    for name in stratum.cat.categories:
        at = (stratum == name).to_numpy(bool)
        row = {"slice": name, "rows": int(at.sum()), "n_eff": metrics.effective_sample_size(weight[at]), "scorers": {}}
        if row["n_eff"] >= min_rows:
            figures = {one: partial(metrics.auroc, correct[at], scores[one].to_numpy(float)[at]) for one in scores}
            of_draws = bootstrap(figures, groups[at], resamples.draws, resamples.seed, weight[at])
            row["scorers"] = {str(one): make_interval_columns("auroc", estimate) for one, estimate in of_draws.items()}
        found.append(row)
    return found


def _figures(scored: SliceInput, resamples: BootstrapConfig, min_rows: int) -> dict[str, Any]:
    correct, weight, shown = scored.correct, scored.weight, scored.shown
    row = {
        "rows": len(correct),
        "n_eff": metrics.effective_sample_size(weight),
        "base_rate": metrics.weighted_mean(correct, weight),
    }
    row |= dict.fromkeys(("auroc", "auroc_low", "auroc_high", "ece", "brier"), np.nan)
    row |= {"shown": int(shown.sum()), "precision": np.nan}
    if row["n_eff"] < min_rows:
        return row | {"note": f"{_describe_too_few(row['rows'], min_rows)} answers: not judged"}
    figure = {"": partial(metrics.auroc, correct, scored.confidence)}
    auroc = bootstrap(figure, scored.groups, resamples.draws, resamples.seed, weight)[""]
    row |= make_interval_columns("auroc", auroc)
    row |= {"ece": metrics.ece(correct, scored.probability, weight)}
    row |= {"brier": metrics.brier(correct, scored.probability, weight)}
    notes = [why for why, holds in _undefined(scored).items() if holds]
    if not notes and np.isnan(row["auroc_low"]):
        notes.append("too few groups of both classes for an interval")
    if metrics.effective_sample_size(weight[shown]) < min_rows:
        notes.append(f"{_describe_too_few(row['shown'], min_rows)} shown answers: precision not judged")
    else:
        row["precision"] = metrics.weighted_mean(correct[shown], weight[shown])
    return row | {"note": "; ".join(notes)}


def _undefined(scored: SliceInput) -> dict[str, bool]:
    """Reasons for which a figure of a slice is undefined, and whether each applies."""
    return {
        "no answer has a score": bool(np.isnan(scored.confidence).all()),
        "no answer has a probability": bool(np.isnan(scored.probability).all()),
        "one class only": len(np.unique(scored.correct)) < 2,
        "one group only: no interval": len(np.unique(scored.groups)) < 2,
    }


def _describe_too_few(rows: int, min_rows: int) -> str:
    return f"fewer than {min_rows}" if rows < min_rows else f"effective sample size below {min_rows}"


def _named(values: Iterable[Any]) -> Any:
    names = [NOT_GIVEN if pd.isna(value) else str(value) for value in values]
    return pd.Categorical(names, sorted(set(names), key=lambda name: (name == NOT_GIVEN, name)))
