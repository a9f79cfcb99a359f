"""One scorer, slice by slice: by kind of answer, product, line of business, retrieved chunks and answer length.

A good overall metric may hide a product on which the scorer fails. A slice that is too small to evaluate is listed with
the reason instead of metrics.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from abstain.core.result_record import Auroc
from abstain.learning.evaluation.records import KindSlice, Slice
from abstain.learning.evaluation.reviewed_split import ReviewedSplit
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import BootstrapConfig, Estimate, make_interval_columns

NOT_GIVEN = "not given"
KIND = "kind of answer"


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


def evaluate_slices(
    reviewed: ReviewedSplit,
    scorer: str,
    threshold: float,
    strata: pd.DataFrame,
    resampling: BootstrapConfig,
    min_n_eff: int,
) -> list[Slice]:
    """Evaluate a scorer on every slice, weighted.

    Args:
        reviewed: The evaluated answers.
        scorer: Name of the scorer.
        threshold: Answers with confidence >= `threshold` are shown.
        strata: (rows, strata) from `make_strata`.
        resampling: Number of resamples and seed; the intervals are by groups of the slice.
        min_n_eff: Smallest effective sample size. A smaller slice is not evaluated; with fewer shown answers, its
            precision is not.

    Returns:
        A row for each slice.
    """
    return [
        _evaluate_slice(
            str(stratum),
            name,
            reviewed.subset((strata[stratum] == name).to_numpy()),
            scorer,
            threshold,
            resampling,
            min_n_eff,
        )
        for stratum in strata.columns
        for name in strata[stratum].cat.categories
    ]


def compute_auroc_by_slice(
    reviewed: ReviewedSplit, stratum: pd.Series, resampling: BootstrapConfig, min_n_eff: int
) -> list[KindSlice]:
    """Compute the AUROC of every scorer on each slice of one stratum.

    Args:
        reviewed: The evaluated answers.
        stratum: (rows,) a column of `make_strata`.
        resampling: Number of resamples and seed; the intervals are by groups of the slice.
        min_n_eff: Smallest effective sample size of a slice to evaluate.

    Returns:
        A row for each slice.
    """
    slices = []
    for name in stratum.cat.categories:
        rows = reviewed.subset((stratum == name).to_numpy())
        n_eff, names = rows.counts.effective_sample_size, map(str, rows.scores)
        estimates: dict[str, Estimate] = {}
        if n_eff >= min_n_eff:
            statistics = {scorer: partial(metrics.auroc, rows.correct, rows.get_raw_scores(scorer)) for scorer in names}
            estimates = rows.bootstrap(statistics, resampling)
        aurocs = {scorer: Auroc(**make_interval_columns("auroc", estimate)) for scorer, estimate in estimates.items()}
        slices.append(KindSlice(slice=name, rows=len(rows.rows), n_eff=n_eff, scorers=aurocs))
    return slices


def _evaluate_slice(
    stratum: str,
    name: str,
    rows: ReviewedSplit,
    scorer: str,
    threshold: float,
    resampling: BootstrapConfig,
    min_n_eff: int,
) -> Slice:
    correct, weight, n_eff = rows.correct, rows.weight, rows.counts.effective_sample_size
    confidence, probability = rows.get_raw_scores(scorer), rows.get_probabilities(scorer)
    shown = confidence >= threshold
    values = dict.fromkeys(("auroc", "auroc_low", "auroc_high", "ece", "brier", "precision"), np.nan)
    if n_eff < min_n_eff:
        notes = [f"{_describe_too_few(len(correct), min_n_eff)} answers: not judged"]
    else:
        estimate = rows.bootstrap({"": partial(metrics.auroc, correct, confidence)}, resampling)[""]
        values |= make_interval_columns("auroc", estimate)
        values["ece"] = metrics.ece(correct, probability, weight)
        values["brier"] = metrics.brier(correct, probability, weight)
        reasons = {
            "no answer has a score": np.isnan(confidence).all(),
            "no answer has a probability": np.isnan(probability).all(),
            "one class only": len(np.unique(correct)) < 2,
            "one group only: no interval": len(np.unique(rows.groups)) < 2,
        }
        notes = [reason for reason, applies in reasons.items() if applies]
        if not notes and np.isnan(values["auroc_low"]):
            notes = ["too few groups of both classes for an interval"]
        if metrics.effective_sample_size(weight[shown]) >= min_n_eff:
            values["precision"] = metrics.weighted_mean(correct[shown], weight[shown])
        else:
            notes.append(f"{_describe_too_few(int(shown.sum()), min_n_eff)} shown answers: precision not judged")
    return Slice(
        by=stratum,
        slice=name,
        rows=len(correct),
        n_eff=n_eff,
        base_rate=metrics.weighted_mean(correct, weight),
        shown=int(shown.sum()),
        note="; ".join(notes),
        **values,
    )


def _describe_too_few(rows: int, min_n_eff: int) -> str:
    return f"fewer than {min_n_eff}" if rows < min_n_eff else f"effective sample size below {min_n_eff}"


def _make_categories(values: Iterable[Any]) -> Any:
    names = [NOT_GIVEN if pd.isna(value) else str(value) for value in values]
    return pd.Categorical(names, sorted(set(names), key=lambda name: (name == NOT_GIVEN, name)))
