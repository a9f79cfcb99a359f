"""Ablations: probes of other layers and sites, and probes trained without one product.

Each is evaluated like the exported probe: trained on the training split, a threshold tuned on validation, measured on
the reviewed hold-out, weighted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from abstain.config.params import Architecture, ProbeParams, ThresholdParams
from abstain.core.errors import AbstainError
from abstain.data.store.splits import Split, select_reviewed, split_by_sampling
from abstain.learning.estimators.cross_validation import FittedProbe, fit_probe
from abstain.learning.estimators.probes.base import predict_confidence
from abstain.learning.estimators.training_rows import make_training_rows
from abstain.learning.evaluation.scorer_choice import compute_aurocs
from abstain.learning.evaluation.selective_prediction import ScoredAnswers, evaluate_at_tuned_threshold
from abstain.learning.metrics.bootstrap import BootstrapConfig, Estimate, Key, make_interval_columns, paired_difference
from abstain.learning.metrics.weighted_metrics import auroc, effective_sample_size, row_weights

ReadStates = Callable[[pd.Index], Sequence[Tensor]]
"""The states of some rows of the data set, in their order."""


def evaluate_site(
    frame: pd.DataFrame,
    take: ReadStates,
    architecture: Architecture,
    probe: ProbeParams,
    threshold: ThresholdParams,
    resamples: BootstrapConfig,
    rouge: np.ndarray,
) -> dict[str, Any]:
    """One row of the paper's table 4: a probe on the states of `take`, with the threshold tuned on validation.

    `frame`: the data set. `rouge`: of every row of `frame`, nan where there is no ideal answer. Where the target is out
    of reach on validation, there is a `note`, and no threshold.
    """
    train = frame[frame["split"] == "train"]
    fitted = fit_probe(architecture, make_training_rows(train, take), train["group"].to_numpy(), probe)
    judged, out_of_fold = _out_of_fold(train, fitted)
    row: dict[str, Any] = {"out_of_fold": auroc(_correct(judged), out_of_fold, _weight(judged))}
    validation, holdout = (_counted(frame, split) for split in ("validation", "holdout"))
    confidence, on_validation = (
        predict_confidence(fitted.probe, take(rows.index)).numpy() for rows in (holdout, validation)
    )
    row |= auroc_with_interval(holdout, confidence, resamples)
    return row | evaluate_at_tuned_threshold(
        ScoredAnswers(_correct(validation), on_validation, _weight(validation)),
        ScoredAnswers(_correct(holdout), confidence, _weight(holdout)),
        threshold,
        rouge[frame.index.get_indexer(holdout.index)],
    )


def out_of_fold_aurocs(
    train: pd.DataFrame,
    takes: Mapping[Key, ReadStates],
    architecture: Architecture,
    probe: ProbeParams,
    resamples: BootstrapConfig,
) -> dict[Key, Estimate]:
    """The out-of-fold AUROC of a probe on the states of each of `takes`, on the same resamples.

    `train`: the training split; thumbs are trained on, reviewed answers alone are judged. Raises `AbstainError` as
    `fit_probe`.
    """
    groups = train["group"].to_numpy()
    fits = {key: fit_probe(architecture, make_training_rows(train, take), groups, probe) for key, take in takes.items()}
    judged = select_reviewed(train)
    return compute_aurocs(judged, {key: _out_of_fold(train, fitted)[1] for key, fitted in fits.items()}, resamples)


def evaluate_left_out_products(
    frame: pd.DataFrame,
    take: ReadStates,
    architecture: Architecture,
    probe: ProbeParams,
    resamples: BootstrapConfig,
    min_rows: int,
    confidence: pd.Series,
) -> list[dict[str, Any]]:
    """One row a product of the hold-out: the AUROC there of a probe that was trained without that product.

    `confidence`: of the exported probe, by row of `frame`; its AUROC there is `auroc_trained_on_all`. `lost`, the
    paired difference on the same resamples, has its own interval. Too few answers to evaluate: a `note` instead.
    """
    holdout = _counted(frame, "holdout")
    rows = []
    for product in sorted(holdout["product"].dropna().unique()):
        judged = holdout[holdout["product"] == product]
        row: dict[str, Any] = {"product": product, "rows": len(judged)}
        train = frame[(frame["split"] == "train") & (frame["product"] != product)]
        if effective_sample_size(_weight(judged)) < min_rows:
            rows.append({**row, "note": f"fewer than {min_rows} answers: not judged"})
            continue
        if judged["correct"].nunique() < 2:
            rows.append({**row, "note": "one class only: no AUROC"})
            continue
        try:
            fitted = fit_probe(architecture, make_training_rows(train, take), train["group"].to_numpy(), probe)
        except AbstainError as error:
            rows.append({**row, "note": str(error)})
            continue
        of = {"without": predict_confidence(fitted.probe, take(judged.index)).numpy(), "all": confidence[judged.index]}
        found = compute_aurocs(judged, {name: np.asarray(values) for name, values in of.items()}, resamples)
        row |= make_interval_columns("auroc", found["without"]) | {"auroc_trained_on_all": found["all"].value}
        rows.append(
            {**row, **make_interval_columns("lost", paired_difference(found["all"], found["without"])), "note": ""}
        )
    return rows


def auroc_with_interval(rows: pd.DataFrame, confidence: np.ndarray, resamples: BootstrapConfig) -> dict[str, float]:
    """`auroc`, `auroc_low` and `auroc_high`, the 95 % interval by groups, of `confidence` (rows,)."""
    return make_interval_columns("auroc", compute_aurocs(rows, {"": confidence}, resamples)[""])


def _counted(frame: pd.DataFrame, split: Split) -> pd.DataFrame:
    """The reviewed answers of `split` that stand for all."""
    return split_by_sampling(select_reviewed(frame[frame["split"] == split]))[0]


def _out_of_fold(train: pd.DataFrame, fitted: FittedProbe) -> tuple[pd.DataFrame, np.ndarray]:
    """The reviewed rows of the training split, and their out-of-fold confidences (rows,)."""
    judged = select_reviewed(train)
    return judged, pd.Series(fitted.out_of_fold, train.index)[judged.index].to_numpy()


def _correct(rows: pd.DataFrame) -> np.ndarray:
    return rows["correct"].to_numpy(int)


def _weight(rows: pd.DataFrame) -> np.ndarray:
    return row_weights(rows["inclusion_probability"].to_numpy(float))
