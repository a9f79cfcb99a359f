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
    candidate_sites,
    plan_features,
    plan_nll_features,
    plan_site_choice,
)
from abstain.llm.signals.registry import build_scorers
from tasks.runs.workspace import Workspace


@dataclass(frozen=True)
class RetrainCost:
    """Requests about `answers` labelled answers, the audits and the perturbed contexts included; `missing`: those whose
    result the cache does not have; `tokens`: stage -> the tokens that the base model has to read for these."""

    answers: int
    requests: int
    missing: int
    tokens: dict[str, int]


def estimate_retrain_cost(workspace: Workspace) -> RetrainCost:
    """Count the requests that are not in the feature cache, and their tokens; no model is loaded."""
    settings = load_settings()
    params, labelled, train = read_labelled(workspace)
    scorers = build_scorers(params, settings).scorers
    asked = []
    if params.llm.layer == "auto":  # the choice reads all candidates; the rest, at most as deep as the deepest
        sites = candidate_sites(read_layer_count(find_model(params.llm.model, settings)))
        asked = plan_site_choice(params, scorers, train, sites)
        params = params.model_copy(update={"llm": params.llm.model_copy(update={"layer": sites[-1].layer})})
    requests = expand_requests(params.llm, settings, [*asked, *plan_features(params, scorers, labelled)])
    store = FeatureStore(params.llm.model, settings)
    read, rows = plan_nll_features(params, settings, labelled)
    more, more_missing = read.missing(rows)
    tokens = {"features": store.missing_tokens(requests), "nll_features": read.missing_tokens(rows)}
    return RetrainCost(len(labelled.rows), len(requests) + more, store.missing(requests) + more_missing, tokens)


def read_labelled(workspace: Workspace) -> tuple[Params, LabelledAnswers, list[Interaction]]:
    """The workspace's parameters, the interactions that have a label under them, and those that are trained on."""
    params = load_params(workspace.path / paths.PARAMS)
    store = DataStore(workspace.path / paths.DATA).require_interactions()
    table, _ = read_training_table(store, params.labels, params.split)
    rows = store.interactions(table["interaction_id"])
    train = [rows[at] for at in np.flatnonzero(table["split"] == "train").tolist()]
    return params, LabelledAnswers(rows, select_reviewed_holdout(table, rows), params.audits.run), train
