"""Ablations: probes of other layers and sites, and probes trained without one product.

Each is evaluated like the exported probe: trained on the training split, with a threshold tuned on validation, measured
on the reviewed hold-out, weighted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
from torch import Tensor

from abstain.config.params import Architecture, ProbeParams, ThresholdParams
from abstain.core.errors import AbstainError
from abstain.data.store.splits import Split, select_reviewed, split_by_sampling
from abstain.learning.estimators.cross_validation import FittedProbe, fit_probe
from abstain.learning.estimators.probes.base import predict_confidence
from abstain.learning.estimators.training_rows import make_training_rows
from abstain.learning.evaluation.records import ProductLeftOut, SiteMetrics
from abstain.learning.evaluation.scorer_choice import compute_aurocs
from abstain.learning.evaluation.selective_prediction import ScoredAnswers, evaluate_at_tuned_threshold
from abstain.learning.metrics.bootstrap import BootstrapConfig, Estimate, Key, make_interval_columns, paired_difference
from abstain.learning.metrics.weighted_metrics import auroc, effective_sample_size, row_weights

ReadStates = Callable[[pd.Index], Sequence[Tensor]]
"""Returns the states of some rows of the data set, in their order."""


def evaluate_site(
    frame: pd.DataFrame,
    read_states: ReadStates,
    architecture: Architecture,
    probe: ProbeParams,
    threshold: ThresholdParams,
    resampling: BootstrapConfig,
    rouge: np.ndarray,
) -> SiteMetrics:
    """Evaluate a probe on the states of one site, a row of table 4 of Huang et al.

    Args:
        frame: The data set.
        read_states: Reads the states of that site.
        architecture: Key of `PROBES`.
        probe: Hyperparameters of the probe.
        threshold: Target of the threshold, which is tuned on validation.
        resampling: Number of resamples and seed.
        rouge: (rows of `frame`,) ROUGE-L against the ideal answer; nan without one.

    Returns:
        The metrics. If the target cannot be met on validation, there is a `note` and no threshold.

    Raises:
        AbstainError: The probe cannot be fitted (`fit_probe`).
    """
    train = frame[frame["split"] == "train"]
    fitted = fit_probe(architecture, make_training_rows(train, read_states), train["group"].to_numpy(), probe)
    reviewed, out_of_fold = _get_out_of_fold(train, fitted)
    validation, holdout = (_select_representative(frame, split) for split in ("validation", "holdout"))
    confidence, validation_confidence = (
        predict_confidence(fitted.probe, read_states(rows.index)).numpy() for rows in (holdout, validation)
    )
    at_threshold = evaluate_at_tuned_threshold(
        ScoredAnswers(_get_correct(validation), validation_confidence, _get_weights(validation)),
        ScoredAnswers(_get_correct(holdout), confidence, _get_weights(holdout)),
        threshold,
        rouge[frame.index.get_indexer(holdout.index)],
    )
    return SiteMetrics(
        out_of_fold=auroc(_get_correct(reviewed), out_of_fold, _get_weights(reviewed)),
        **make_interval_columns("auroc", compute_aurocs(holdout, {"": confidence}, resampling)[""]),
        **at_threshold.to_dict(),
    )


def compute_out_of_fold_aurocs(
    train: pd.DataFrame,
    read_states_by_key: Mapping[Key, ReadStates],
    architecture: Architecture,
    probe: ProbeParams,
    resampling: BootstrapConfig,
) -> dict[Key, Estimate]:
    """Compute the out-of-fold AUROC of a probe on the states of several sites, on the same resamples.

    Args:
        train: The training split. Thumbs are fitted, but only reviewed answers are evaluated.
        read_states_by_key: Key of a site -> its states.
        architecture: Key of `PROBES`.
        probe: Hyperparameters of the probe.
        resampling: Number of resamples and seed.

    Returns:
        Key -> AUROC.

    Raises:
        AbstainError: A probe cannot be fitted (`fit_probe`).
    """
    groups = train["group"].to_numpy()
    fits = {
        key: fit_probe(architecture, make_training_rows(train, take), groups, probe)
        for key, take in read_states_by_key.items()
    }
    reviewed = select_reviewed(train)
    return compute_aurocs(
        reviewed, {key: _get_out_of_fold(train, fitted)[1] for key, fitted in fits.items()}, resampling
    )


def evaluate_left_out_products(
    frame: pd.DataFrame,
    read_states: ReadStates,
    architecture: Architecture,
    probe: ProbeParams,
    resampling: BootstrapConfig,
    min_n_eff: int,
    confidence: pd.Series,
) -> list[ProductLeftOut]:
    """Evaluate on each product a probe that was trained without that product.

    Args:
        frame: The data set.
        read_states: Reads the states of the exported probe's site.
        architecture: Key of `PROBES`.
        probe: Hyperparameters of the probe.
        resampling: Number of resamples and seed.
        min_n_eff: Smallest effective sample size of a product to evaluate.
        confidence: Confidences of the exported probe, by row of `frame`.

    Returns:
        A row for each product of the hold-out. A product with too few answers has only a `note`.
    """
    holdout = _select_representative(frame, "holdout")
    results = []
    for product in sorted(holdout["product"].dropna().unique()):
        reviewed = holdout[holdout["product"] == product]
        make_result = partial(ProductLeftOut, product=product, rows=len(reviewed))
        train = frame[(frame["split"] == "train") & (frame["product"] != product)]
        if effective_sample_size(_get_weights(reviewed)) < min_n_eff:
            results.append(make_result(note=f"fewer than {min_n_eff} answers: not judged"))
            continue
        if reviewed["correct"].nunique() < 2:
            results.append(make_result(note="one class only: no AUROC"))
            continue
        try:
            fitted = fit_probe(architecture, make_training_rows(train, read_states), train["group"].to_numpy(), probe)
        except AbstainError as error:
            results.append(make_result(note=str(error)))
            continue
        confidences = {
            "without": predict_confidence(fitted.probe, read_states(reviewed.index)).numpy(),
            "all": confidence[reviewed.index].to_numpy(),
        }
        aurocs = compute_aurocs(reviewed, confidences, resampling)
        results.append(
            make_result(
                note="",
                auroc_trained_on_all=aurocs["all"].value,
                **make_interval_columns("auroc", aurocs["without"]),
                **make_interval_columns("lost", paired_difference(aurocs["all"], aurocs["without"])),
            )
        )
    return results


def _select_representative(frame: pd.DataFrame, split: Split) -> pd.DataFrame:
    """Select the reviewed answers of a split that represent all of its answers."""
    return split_by_sampling(select_reviewed(frame[frame["split"] == split]))[0]


def _get_out_of_fold(train: pd.DataFrame, fitted: FittedProbe) -> tuple[pd.DataFrame, np.ndarray]:
    """Return the reviewed rows of the training split, and their out-of-fold confidences (rows,)."""
    reviewed = select_reviewed(train)
    return reviewed, pd.Series(fitted.out_of_fold, train.index)[reviewed.index].to_numpy()


def _get_correct(rows: pd.DataFrame) -> np.ndarray:
    return rows["correct"].to_numpy(int)


def _get_weights(rows: pd.DataFrame) -> np.ndarray:
    return row_weights(rows["inclusion_probability"].to_numpy(float))
