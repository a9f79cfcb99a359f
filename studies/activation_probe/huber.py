"""The Huber term of eqs. 7 to 9 of Huang et al.: probes with several λ and δ against those without it, over seeds."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from abstain.config.params import Architecture, Params, ProbeParams
from abstain.learning.metrics.bootstrap import (
    RESAMPLING,
    Statistic,
    bootstrap,
    make_interval_columns,
    paired_difference,
)
from abstain.learning.metrics.weighted_metrics import Metric, auroc, ece, row_weights
from abstain.llm.features.feature_store import OnProgress
from abstain.stages.shared.states import load_labelled_states
from studies.activation_probe.sites import fit_and_predict, read_test_rows

WITHOUT = {"huber_lambda": 0.0}
METRICS: dict[str, Metric] = {"auroc": auroc, "ece": ece}


def list_terms(grid: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    """Return the keys of `probe` of every combination of `grid`, after those without the term."""
    return [WITHOUT, *(dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))]


def fit_term(
    term: Mapping[str, float], architecture: Architecture, seeds: Sequence[int], params: Params, progress: OnProgress
) -> dict[str, Any]:
    """Fit a probe for each seed on the states that the served probe reads.

    Args:
        term: Keys of `probe`.
        architecture: The probe.
        seeds: Seeds of weights and dropout; the folds are assigned by them, too.
        params: Parameters of the stages.
        progress: Called with the number of fitted probes and their total.

    Returns:
        `confidence` (seeds, test rows), and `correct`, `group` and `weight` of these rows.

    Raises:
        AbstainError: a probe cannot be fitted.
    """
    frame, states = load_labelled_states()
    confidence = []
    for done, seed in enumerate(seeds):
        progress(done, len(seeds))
        probe = ProbeParams.model_validate({**params.probe.model_dump(), **term, "seed": seed})
        (predicted,) = fit_and_predict(frame, states.subset, architecture, probe, "holdout")
        confidence.append(predicted.tolist())
    test = read_test_rows(frame)
    return {
        "confidence": confidence,
        "correct": test["correct"].astype(int).tolist(),
        "group": test["group"].tolist(),
        "weight": row_weights(test["inclusion_probability"].to_numpy(float)).tolist(),
    }


def compare_terms(results: Sequence[tuple[Mapping[str, float], Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Compare the fits of every term with those without it, on the same resamples of groups.

    Args:
        results: Term and result of `fit_term`; the first is without the term.

    Returns:
        A record for each term: its keys, and the mean of every metric over the seeds and its difference to the first
        one, each with a 95 % interval.
    """
    _, first = results[0]
    correct = np.array(first["correct"])
    statistics: dict[tuple[int, str], Statistic] = {
        (index, name): partial(_average_over_seeds, metric, correct, np.array(result["confidence"]))
        for index, (_, result) in enumerate(results)
        for name, metric in METRICS.items()
    }
    estimates = bootstrap(
        statistics,
        np.array(first["group"]),
        n_resamples=RESAMPLING.n_resamples,
        seed=RESAMPLING.seed,
        weight=np.array(first["weight"]),
    )
    records = []
    for index, (term, result) in enumerate(results):
        record: dict[str, Any] = {**term, "seeds": len(result["confidence"])}
        for name in METRICS:
            record |= make_interval_columns(name, estimates[index, name])
            if index:
                difference = paired_difference(estimates[index, name], estimates[0, name])
                record |= make_interval_columns(f"{name}_difference", difference)
        records.append(record)
    return records


def _average_over_seeds(metric: Metric, correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray) -> Any:
    return np.mean([metric(correct, of_seed, weight) for of_seed in confidence], axis=0)
