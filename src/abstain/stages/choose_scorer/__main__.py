"""DVC stage `choose_scorer`: the served scorer, and its confidences of all answers.

It is the cheapest of the best out of fold, among those within `serve.max_forward_tokens`; the scorer in production
stays unless another gains more than the error of the comparison.
"""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from abstain.config.params import Params, ServeParams
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from abstain.core.scorer_names import NOT_SERVED, PROBE, REGRESSORS
from abstain.data.store.splits import select_reviewed
from abstain.data.store.state_table import StateTable
from abstain.learning.estimators.fusion import Fusion
from abstain.learning.estimators.probe_registry import load_probe
from abstain.learning.estimators.probes.base import predict_confidence
from abstain.learning.estimators.summaries import Candidate, ScorerChoice
from abstain.learning.evaluation.scorer_choice import choose_cheapest_of_best, compute_aurocs
from abstain.learning.metrics.bootstrap import RESAMPLING, Estimate, make_interval_columns
from abstain.stages.shared import artifacts
from abstain.stages.shared.states import load_labelled_states


def stage(params: Params) -> None:
    """Choose the served scorer, and write its confidences."""
    frame, states = load_labelled_states()
    fusions = {name: Fusion.from_dict(content) for name, content in artifacts.read_json(paths.FUSIONS).items()}
    costs = _load_costs(fusions)
    scores = _compute_confidences(frame, states, fusions)
    reviewed = select_reviewed(frame[frame["split"] == "train"])
    aurocs = compute_aurocs(
        reviewed, {name: scores.loc[reviewed.index, name].to_numpy(float) for name in costs}, RESAMPLING
    )
    served = choose_served_scorer(params.serve, costs, aurocs, _explain_exclusions())
    print(f"served: {served}, AUROC out of fold {aurocs[served].value:.3f}, {costs[served]:.0f} tokens an answer")
    components = fusions[served].names if served in fusions else (served,)
    candidates = [
        Candidate(
            scorer=name,
            forward_tokens=costs[name],
            **make_interval_columns("auroc", aurocs[name]),
        )
        for name in sorted(costs, key=lambda name: (costs[name], name))
    ]
    choice = ScorerChoice(
        name=served,
        requested=params.serve.scorer,
        max_forward_tokens=params.serve.max_forward_tokens,
        forward_tokens=costs[served],
        components=list(components),
        candidates=candidates,
    )
    artifacts.write_json(paths.SCORER_CHOICE, choice.to_dict())
    served_scores = frame[["interaction_id"]].assign(confidence=scores[served].astype(float))
    write_atomically(paths.SERVED_SCORES, served_scores.to_parquet(index=False))


def _load_costs(fusions: Mapping[str, Fusion]) -> dict[str, float]:
    """Return the forward tokens of every scorer that can decide: all of this run but the baselines."""
    features, regressors = (artifacts.read_json(file) for file in (paths.FEATURES_SUMMARY, paths.REGRESSOR_SUMMARY))
    copies = artifacts.read_json(paths.NLL_SUMMARY)["forward_tokens_of_copies"]
    costs: dict[str, float] = {}
    for name, tokens in features["forward_tokens"].items():
        parts = features["fusions"].get(name, [name])
        if parts == [name] or name in fusions:
            costs[name] = tokens + (copies if REGRESSORS in parts else 0.0)
    of_regressors = costs.pop(REGRESSORS, 0.0)
    return costs | dict.fromkeys(regressors["regressors"], of_regressors)


def _explain_exclusions() -> dict[str, str]:
    """Return the reasons for which scorers that a user may name cannot decide."""
    features, regressors = (artifacts.read_json(file) for file in (paths.FEATURES_SUMMARY, paths.REGRESSOR_SUMMARY))
    choice = artifacts.read_json(paths.PROBE_CHOICE)
    reasons: dict[str, str] = dict.fromkeys(
        choice["out_of_fold"], "one probe is exported: name another in probe.export"
    )
    reasons[choice["exported"]] = f"it is the exported probe: its name is {PROBE}"
    reasons |= NOT_SERVED | features["skipped_scorers"] | regressors["skipped"]
    return reasons


def _compute_confidences(frame: pd.DataFrame, states: StateTable, fusions: Mapping[str, Fusion]) -> pd.DataFrame:
    """Compute (rows, scorers) for every row of `frame`; out of fold for training answers."""
    train = frame["split"] == "train"
    probe = load_probe(paths.PROBE)
    probe_scores = np.empty(len(frame))
    probe_scores[train] = _read_training_scores(paths.OUT_OF_FOLD, frame[train])[probe.architecture]
    unfitted = frame.index[~train]
    probe_scores[unfitted] = predict_confidence(probe, states.subset(unfitted)).numpy()
    scores = artifacts.read_signals("asked").reindex(frame["interaction_id"]).set_axis(frame.index)
    scores[PROBE] = probe_scores
    fusion_out_of_fold = _read_training_scores(paths.FUSION_OUT_OF_FOLD, frame[train])
    for name, fusion in fusions.items():
        confidence = fusion.score(scores)
        confidence[train] = fusion_out_of_fold[name]
        scores[name] = confidence
    return scores


def _read_training_scores(file: Path, train: pd.DataFrame) -> pd.DataFrame:
    return pd.read_parquet(file).set_index("interaction_id").loc[train["interaction_id"]]


def choose_served_scorer(
    serve: ServeParams, costs: Mapping[str, float], aurocs: Mapping[str, Estimate], exclusions: Mapping[str, str]
) -> str:
    """Choose the scorer to serve.

    Args:
        serve: The wanted scorer, the budget and the scorer in production.
        costs: Scorer -> forward tokens per answer.
        aurocs: Scorer -> out-of-fold AUROC.
        exclusions: Scorer that cannot decide -> reason.

    Returns:
        The name of the scorer.

    Raises:
        AbstainError: The wanted scorer cannot decide, or the budget is below every cost.
    """
    if serve.scorer != "best":
        if serve.scorer in costs:
            return serve.scorer
        reason = exclusions.get(serve.scorer, "there is no such scorer in this run")
        raise AbstainError(
            Code.UNKNOWN_NAME, f"serve.scorer: {serve.scorer} cannot decide, {reason}: take one of {', '.join(costs)}"
        )
    budget = math.inf if serve.max_forward_tokens is None else serve.max_forward_tokens
    affordable = [name for name in costs if costs[name] <= budget]
    if not affordable:
        cheapest = min(costs, key=lambda name: costs[name])
        raise AbstainError(
            Code.BAD_SETTING,
            f"serve.max_forward_tokens: {serve.max_forward_tokens} is less than any scorer reads for an answer: raise "
            f"it to {math.ceil(costs[cheapest])}, for {cheapest}",
        )
    comparable = {name: aurocs[name] for name in affordable if not math.isnan(aurocs[name].value)}
    in_use = [name for name in affordable if name == serve.current_scorer]
    if not comparable:  # the reviewed training answers are all correct, or all incorrect
        return next(name for name in (*in_use, PROBE, *affordable) if name in affordable)
    return choose_cheapest_of_best(comparable, costs, in_use)


if __name__ == "__main__":
    artifacts.run_stage(stage)
