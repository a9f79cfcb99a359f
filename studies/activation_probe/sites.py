"""Tables 4 and 5 of Huang et al.: a probe at every layer, each with several numbers of chunks in the prompt."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from abstain.config.params import Architecture, Params, ProbeParams
from abstain.config.settings import Settings
from abstain.core import paths
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.data.store.dataset import DataStore
from abstain.data.store.splits import select_reviewed, split_by_sampling
from abstain.data.store.state_table import StateTable
from abstain.learning.estimators.cross_validation import fit_probe
from abstain.learning.estimators.probes.base import predict_confidence
from abstain.learning.estimators.training_rows import make_training_rows
from abstain.learning.evaluation.ablation import ReadStates
from abstain.learning.evaluation.scorer_choice import compute_aurocs
from abstain.learning.metrics.bootstrap import RESAMPLING, make_interval_columns
from abstain.learning.metrics.weighted_metrics import row_weights
from abstain.learning.thresholds.selection import tune_threshold
from abstain.llm.features.extraction import FeatureSource
from abstain.llm.features.feature_store import OnProgress
from abstain.llm.features.shard_job import ShardRunner
from abstain.llm.signals.compute_features import compute_missing
from abstain.llm.signals.feature_plan import ProbeSite
from abstain.stages.shared.ideal_answers import read_rouge
from abstain.stages.shared.states import load_labelled_states
from benchmarks.latency import measure_site_latencies
from studies.activation_probe.thresholds import make_threshold_rows

AT = 0.5
"""The threshold at which every site is compared, beside its tuned one."""


def read_test_rows(frame: pd.DataFrame, split: str = "holdout") -> pd.DataFrame:
    """Return the reviewed rows of a split that represent all of its answers."""
    return split_by_sampling(select_reviewed(frame[frame["split"] == split]))[0]


def fit_and_predict(
    frame: pd.DataFrame, read_states: ReadStates, architecture: Architecture, probe: ProbeParams, *splits: str
) -> list[np.ndarray]:
    """Fit a probe on the training split, and return its confidences (rows,) of the test rows of `splits`.

    Raises:
        AbstainError: the probe cannot be fitted.
    """
    train = frame[frame["split"] == "train"]
    fitted = fit_probe(architecture, make_training_rows(train, read_states), train["group"].to_numpy(), probe)
    return [
        predict_confidence(fitted.probe, read_states(read_test_rows(frame, split).index)).numpy().astype(float)
        for split in splits
    ]


def compute_sites(
    sites: Sequence[ProbeSite],
    architecture: Architecture,
    settings: Settings,
    runner: ShardRunner | None,
    params: Params,
    progress: OnProgress,
) -> dict[str, Any]:
    """Return the rows of table 4, except for numbers of chunks that no answer exceeds.

    The states of all layers are read in one pass for each number of chunks.

    Raises:
        AbstainError: a probe cannot be fitted.
    """
    frame, _ = load_labelled_states()
    interactions = DataStore(paths.DATA).read_interactions(frame["interaction_id"])
    most_chunks = max(len(interaction.contexts) for interaction in interactions)
    sites = [site for site in sites if site.chunks is None or site.chunks < most_chunks]  # as many are all of them
    requests = [site.make_feature_request(params.llm) for site in sites]
    compute_missing(params.llm, settings, [(interactions, requests)], progress, runner)
    rouge = read_rouge(read_test_rows(frame))
    rows = []
    for site in sites:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "states.npy"
            FeatureSource(params.llm, settings, site.make_feature_request(params.llm)).save(interactions, file)
            rows.append(_evaluate_site(frame, StateTable(file).subset, architecture, params, rouge, site))
    return {"rows": rows}


def _evaluate_site(
    frame: pd.DataFrame,
    read_states: ReadStates,
    architecture: Architecture,
    params: Params,
    rouge: np.ndarray,
    site: ProbeSite,
) -> dict[str, Any]:
    validation, test = read_test_rows(frame, "validation"), read_test_rows(frame)
    tuning, confidence = fit_and_predict(frame, read_states, architecture, params.probe, "validation", "holdout")
    weight = row_weights(validation["inclusion_probability"].to_numpy(float))
    marked, note = {str(AT): AT}, ""
    try:
        marked["tuned"] = tune_threshold(
            tuning, validation["correct"].to_numpy(int), params.threshold, weight
        ).threshold
    except AbstainError as error:
        note = str(error)
    table = make_threshold_rows(test, confidence, rouge, marked)
    auroc = compute_aurocs(test, {"": confidence}, RESAMPLING)[""]
    return {
        "layer": site.layer,
        "site": site.site,
        "chunks": site.chunks,
        **make_interval_columns("auroc", auroc),
        "thresholds": [row for row in table if row["mark"]],
        "note": note,
    }


def compute_latency(
    sites: Sequence[ProbeSite], answers: Sequence[Interaction], runs: int, settings: Settings, params: Params
) -> dict[str, Any]:
    """Return the rows of table 5: mean and P99 of each run over `answers`, in milliseconds."""
    measured = [measure_site_latencies(params, settings, answers, sites) for _ in range(runs)]
    return {
        "rows": [
            {
                "layer": site.layer,
                "chunks": site.chunks,
                "mean": [latencies[site].mean for latencies in measured],
                "p99": [latencies[site].p99 for latencies in measured],
            }
            for site in sites
        ],
        "answers": len(answers),
    }
