"""Milliseconds for one answer of every scorer on the leaderboard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from abstain.config.params import Params
from abstain.config.settings import Settings
from abstain.core import paths
from abstain.core.scorer_names import REGRESSORS
from abstain.llm.features.feature_store import OnProgress
from abstain.llm.signals.feature_plan import get_served_site
from abstain.stages.shared import artifacts
from benchmarks.latency import PERTURBATION, measure_latencies, name_site
from studies.leaderboard.results import select_answers


def measure_scorers(
    count: int, settings: Settings, board: Sequence[Mapping[str, Any]], params: Params, progress: OnProgress
) -> dict[str, float]:
    """Time `count` answers, one by one without the feature cache.

    Args:
        count: Number of answers.
        settings: Settings of this machine.
        board: Rows of `read_board`.
        params: Parameters of the stages.
        progress: Called with the number of timed scorers and their total.

    Returns:
        Mean milliseconds of the models of each scorer on the board; 0 if it needs none.
    """
    measured = measure_latencies(params, settings, select_answers(count), progress)
    return map_latencies(
        {name: latency.mean for name, latency in measured.items()},
        {row["scorer"]: row["kind"] for row in board},
        artifacts.read_json(paths.FEATURES_SUMMARY)["fusions"],
        name_site(get_served_site(params)),
    )


def map_latencies(
    measured: Mapping[str, float], kinds: Mapping[str, str], fusions: Mapping[str, Sequence[str]], site: str
) -> dict[str, float]:
    """Assign measured latencies to scorers.

    Args:
        measured: Mean milliseconds by name of `measure_latencies`.
        kinds: Kind of each scorer.
        fusions: Parts of each fusion.
        site: Name of the site that the probes read.

    Returns:
        Mean milliseconds by scorer; perturbed contexts count where they are read.
    """
    perturbed = measured.get(PERTURBATION, 0.0)
    latencies = {}
    for name, kind in kinds.items():
        if kind == "probe":
            latencies[name] = measured[site]
        elif kind == "regressor":
            latencies[name] = measured[REGRESSORS] + perturbed
        elif kind == "fusion":  # one of the probe and what costs nothing is not timed
            latencies[name] = measured.get(name, measured[site]) + (perturbed if REGRESSORS in fusions[name] else 0.0)
        else:
            latencies[name] = measured.get(name, 0.0)
    return latencies
