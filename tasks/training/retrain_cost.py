"""The model requests of a retrain: those of all labelled answers, and those that are not cached."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from abstain.config.params import Params, load_params
from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.core.contracts import Interaction
from abstain.data.labels.training_table import read_training_table
from abstain.data.store.dataset import DataStore
from abstain.data.store.splits import select_reviewed_holdout
from abstain.llm.engine.loading import find_model, read_layer_count
from abstain.llm.features.feature_store import FeatureStore
from abstain.llm.signals.compute_features import expand_requests
from abstain.llm.signals.feature_plan import (
    LabelledAnswers,
    list_candidate_sites,
    plan_features,
    plan_nll_features,
    plan_site_choice,
)
from abstain.llm.signals.registry import build_scorers
from abstain_tasks.runs.workspace import Workspace


@dataclass(frozen=True)
class RetrainCost:
    """The model requests of a retrain.

    Attributes:
        answers: Number of labelled answers.
        requests: Number of requests about them, including audits and perturbed contexts.
        missing: Number of requests without a cached result.
        tokens: Stage -> tokens that the base model has to read for these.
    """

    answers: int
    requests: int
    missing: int
    tokens: dict[str, int]


def estimate_retrain_cost(workspace: Workspace) -> RetrainCost:
    """Count the requests that are not in the feature cache, and their tokens; no model is loaded.

    Args:
        workspace: The workspace.

    Returns:
        The cost.
    """
    settings = load_settings()
    params, labelled, train = read_labelled(workspace)
    scorers = build_scorers(params, settings).scorers
    work = []
    if params.llm.layer == "auto":  # the choice reads all candidates; the rest, at most as deep as the deepest
        sites = list_candidate_sites(read_layer_count(find_model(params.llm.model, settings)))
        work = plan_site_choice(params, scorers, train, sites)
        params = params.model_copy(update={"llm": params.llm.model_copy(update={"layer": sites[-1].layer})})
    requests = expand_requests(params.llm, settings, [*work, *plan_features(params, scorers, labelled)])
    store = FeatureStore(params.llm.model, settings)
    nll_plan, rows = plan_nll_features(params, settings, labelled)
    n_nll, n_nll_missing = nll_plan.count_missing(rows)
    tokens = {"features": store.count_missing_tokens(requests), "nll_features": nll_plan.count_missing_tokens(rows)}
    return RetrainCost(len(labelled.rows), len(requests) + n_nll, store.count_missing(requests) + n_nll_missing, tokens)


def read_labelled(workspace: Workspace) -> tuple[Params, LabelledAnswers, list[Interaction]]:
    """Read the labelled answers of a workspace.

    Args:
        workspace: The workspace.

    Returns:
        The parameters, the interactions that have a label under them, and those of the training split.
    """
    params = load_params(workspace.path / paths.PARAMS)
    store = DataStore(workspace.path / paths.DATA).require_interactions()
    table, _ = read_training_table(store, params.labels, params.split)
    rows = store.read_interactions(table["interaction_id"])
    train = [rows[index] for index in np.flatnonzero(table["split"] == "train").tolist()]
    return params, LabelledAnswers(rows, select_reviewed_holdout(table, rows), params.audits.enabled), train
