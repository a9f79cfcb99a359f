"""DVC stage `choose_scorer`: the scorer that is served, and its confidences of all answers.

The cheapest of the best out of fold, among those within `serve.max_tokens`; the kind in production stays unless another
gains more than the error of the comparison.
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
from abstain.core.scorer_names import BASE_RATE, FUSION, PROBE, REGRESSORS
from abstain.data.store.splits import select_reviewed
from abstain.data.store.state_table import StateTable
from abstain.learning.estimators.fusion import Fusion
from abstain.learning.estimators.probe_registry import load_probe
from abstain.learning.estimators.probes.base import predict_confidence
from abstain.learning.evaluation.scorer_choice import choose_cheapest_of_best, compute_aurocs
from abstain.learning.metrics.bootstrap import RESAMPLES, Estimate, make_interval_columns
from abstain.stages.shared import artifacts
from abstain.stages.shared.states import load_labelled_states


def stage(params: Params) -> None:
    frame, states = load_labelled_states()
    kinds, costs, not_servable = _load_servable_scorers()
    fusions = {name: Fusion.from_dict(content) for name, content in artifacts.read_json(paths.FUSIONS).items()}
    kinds = {name: kind for name, kind in kinds.items() if kind != "fusion" or name in fusions}
    scores = _confidences(frame, states, {name: fusions[name] for name in kinds if name in fusions})
    judged = select_reviewed(frame[frame["split"] == "train"])
    found = compute_aurocs(judged, {name: scores.loc[judged.index, name].to_numpy(float) for name in kinds}, RESAMPLES)
    served = choose_served_scorer(params.serve, kinds, costs, found, not_servable)
    print(f"served: {served}, AUROC out of fold {found[served].value:.3f}, {costs[served]:.0f} tokens an answer")
    parts = fusions[served].names if served in fusions else (served,)
    artifacts.write_json(
        paths.SCORER_CHOICE,
        {
            "name": served,
            "kind": kinds[served],
            "asked_for": params.serve.scorer,
            "max_tokens": params.serve.max_tokens,
            "forward_tokens": costs[served],
            "parts": list(parts),
            "kinds": {name: kinds[name] for name in (served, *parts)},
            "candidates": [
                {
                    "scorer": name,
                    "kind": kinds[name],
                    "forward_tokens": costs[name],
                    **make_interval_columns("auroc", found[name]),
                }
                for name in sorted(kinds, key=lambda name: (costs[name], name))
            ],
            "not_servable": not_servable,
        },
    )
    kept = frame[["interaction_id"]].assign(confidence=scores[served].astype(float))
    write_atomically(paths.SERVED_SCORES, kept.to_parquet(index=False))


def _load_servable_scorers() -> tuple[dict[str, str], dict[str, float], dict[str, str]]:
    """Kind and forward tokens of every scorer that can be served, and why others cannot be."""
    features, regressors = (artifacts.read_json(file) for file in (paths.FEATURES_SUMMARY, paths.REGRESSOR_SUMMARY))
    choice, tokens = artifacts.read_json(paths.PROBE_CHOICE), features["forward_tokens"]
    kinds, costs, reasons = dict(features["servable"]), dict(tokens), dict(features["not_servable"])
    fitted = list(regressors["regressors"])
    if kinds.pop(REGRESSORS, None):
        kinds |= dict.fromkeys(fitted, "regressor")
        costs |= dict.fromkeys(fitted, tokens[REGRESSORS])
    elif why := reasons.pop(REGRESSORS, None):
        reasons |= dict.fromkeys(fitted, why)
    reasons |= features["skipped_scorers"] | regressors["skipped"] | {BASE_RATE: "it is a baseline"}
    others = [name for name in choice["out_of_fold"] if name != choice["exported"]]
    reasons |= dict.fromkeys(others, "one probe is exported: name another in probe.export")
    reasons[choice["exported"]] = f"it is the exported probe: its name is {PROBE}"
    return kinds, costs, reasons | {FUSION: "it may use scorers that cannot be served"}


def _confidences(frame: pd.DataFrame, states: StateTable, fusions: Mapping[str, Fusion]) -> pd.DataFrame:
    """(rows, scorers) of every row of `frame`; of training answers, out of fold."""
    train = frame["split"] == "train"
    probe = load_probe(paths.PROBE)
    own = np.empty(len(frame))
    own[train] = _of_train(paths.OUT_OF_FOLD, frame[train])[probe.architecture]
    others = frame.index[~train]
    own[others] = predict_confidence(probe, states.subset(others)).numpy()
    scores = artifacts.read_signals("asked").reindex(frame["interaction_id"]).set_axis(frame.index)
    scores[PROBE] = own
    of_train = _of_train(paths.FUSION_OUT_OF_FOLD, frame[train])
    for name, fusion in fusions.items():
        confidence = fusion.score(scores)
        confidence[train] = of_train[name]
        scores[name] = confidence
    return scores


def _of_train(file: Path, train: pd.DataFrame) -> pd.DataFrame:
    return pd.read_parquet(file).set_index("interaction_id").loc[train["interaction_id"]]


def choose_served_scorer(
    serve: ServeParams,
    kinds: Mapping[str, str],
    costs: Mapping[str, float],
    aurocs: Mapping[str, Estimate],
    not_servable: Mapping[str, str],
) -> str:
    """The name of the scorer to serve, by `kinds` and forward tokens (`costs`) of those that can be, and their AUROCs.

    Raises `AbstainError` for a scorer that cannot be served, naming why, and for a budget below every cost.
    """
    if serve.scorer != "best":
        if serve.scorer in kinds:
            return serve.scorer
        why = not_servable.get(serve.scorer, "there is no such scorer in this run")
        raise AbstainError(
            Code.UNKNOWN_NAME, f"serve.scorer: {serve.scorer} is not servable, {why}: take one of {', '.join(kinds)}"
        )
    most = math.inf if serve.max_tokens is None else serve.max_tokens
    affordable = [name for name in kinds if costs[name] <= most]
    if not affordable:
        cheapest = min(kinds, key=lambda name: costs[name])
        raise AbstainError(
            Code.BAD_SETTING,
            f"serve.max_tokens: {serve.max_tokens} is less than any scorer reads for an answer: raise it to "
            f"{math.ceil(costs[cheapest])}, for {cheapest}",
        )
    known = {name: aurocs[name] for name in affordable if not math.isnan(aurocs[name].value)}
    in_use = [name for name in affordable if kinds[name] == serve.in_production]
    if not known:  # the reviewed training answers are all correct, or all incorrect
        return next(name for name in (*in_use, PROBE, *affordable) if name in affordable)
    return choose_cheapest_of_best(known, costs, in_use)


if __name__ == "__main__":
    artifacts.run_stage(stage)
