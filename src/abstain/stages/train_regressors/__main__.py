"""DVC stage `train_regressors`: fit correctness regressors on the NLL features, each kind to each target.

A target that cannot be fitted (no ideal answers, a constant value) is skipped with a message: the leaderboard lists it
with the reason, like an unavailable scorer.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from abstain.config.params import Params
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from abstain.data.store.dataset import DataStore
from abstain.data.store.splits import select_reviewed, split_by_sampling
from abstain.learning.estimators.correctness_targets import compute_correctness
from abstain.learning.estimators.parity import MAX_PARITY
from abstain.learning.estimators.regressors.fitting import FittedRegressor, fit_regressor, regressor_fit
from abstain.learning.metrics.bootstrap import RESAMPLES
from abstain.learning.metrics.correctness_metrics import evaluate_estimates, tune_t
from abstain.learning.metrics.weighted_metrics import row_weights
from abstain.stages.shared import artifacts
from abstain.stages.shared.ideal_answers import read_ideal_answers

VERDICT = "verdict"
"""The target that is the label itself: 1 for a correct answer, 0 for an incorrect one."""
THRESHOLDS = tuple(np.round(np.arange(0.1, 0.96, 0.05), 2).tolist())
"""Candidates for t, from which on an estimated correctness counts as correct."""


def stage(params: Params) -> None:
    frame = artifacts.read_dataset_frame()
    features = _by_variant(pd.read_parquet(paths.NLL_FEATURES), frame)
    train = (frame["split"] == "train").to_numpy()
    learnt_from, rows = features["asked"][train], frame[train]
    weight, groups = rows["weight"].to_numpy(), rows["group"].to_numpy()
    targets = _targets(params, frame)
    scores = {variant: pd.DataFrame(index=of.index) for variant, of in features.items()}
    summary: dict[str, Any] = {"regressors": {}, "skipped": {}}
    how = regressor_fit(params)
    wanted = [(kind, target) for target in targets for kind in params.regressors.kinds]
    with artifacts.atomic_folder(paths.REGRESSORS) as folder:
        for number, (kind, target) in enumerate(wanted):
            artifacts.progress(number, len(wanted))
            name, score = f"{kind}_{target}", targets[target]
            try:
                fitted = fit_regressor(kind, target, learnt_from, score[train], weight, groups, how)
            except AbstainError as why:
                summary["skipped"][name] = why.message_with_code
                print(f"skipped: regressor {name}: {why.message_with_code}", flush=True)
                continue
            if fitted.parity > MAX_PARITY:
                raise AbstainError(
                    Code.EXPORT_DIFFERS,
                    f"regressor {name}: its file differs from what was fitted by {fitted.parity:.2g}, more than "
                    f"{MAX_PARITY:g}: this export cannot be trusted",
                )
            fitted.regressor.save(folder / f"{name}.onnx")
            for variant, of in features.items():
                scores[variant][name] = fitted.regressor.predict(of)
            own = scores["asked"][name].to_numpy(copy=True)
            own[train] = fitted.out_of_fold
            scores["asked"][name] = own
            summary["regressors"][name] = {
                "dropped": dict(fitted.dropped),
                "parity": fitted.parity,
                "bytes": fitted.regressor.n_bytes,
                "folds": fitted.regressor.described["folds"],
                **_evaluate_regressor(frame, train, score, own, fitted),
            }
    artifacts.progress(len(wanted), len(wanted))
    tables = [of.assign(variant=name).reset_index() for name, of in scores.items()]
    write_atomically(paths.REGRESSOR_SCORES, pd.concat(tables, ignore_index=True).to_parquet(index=False))
    artifacts.write_json(paths.REGRESSOR_SUMMARY, summary)


def _targets(params: Params, frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """Target -> the correctness of every row of `frame`, in [0, 1], nan where it is unknown."""
    names = [name for name in params.regressors.targets if name != VERDICT]
    rows: list[Interaction] = DataStore(paths.DATA).interactions(frame["interaction_id"])
    ideal = read_ideal_answers()
    references = [[ideal[row.interaction_id]] if row.interaction_id in ideal else [] for row in rows]
    found = compute_correctness(names, [row.answer for row in rows], references)
    known = {VERDICT: frame["correct"].to_numpy(float)} | {name: found[name].to_numpy() for name in names}
    return {name: known[name] for name in params.regressors.targets}


def _evaluate_regressor(
    frame: pd.DataFrame,
    train: np.ndarray,
    score: np.ndarray,
    predicted: np.ndarray,
    fitted: FittedRegressor,
) -> Mapping[str, Any]:
    """The paper's figures on the reviewed hold-out, at the t that was tuned out of fold (section 4.2)."""
    try:
        weight = frame.loc[train, "weight"].to_numpy()
        threshold = tune_t(score[train], fitted.out_of_fold, THRESHOLDS, weight)
    except AbstainError as why:
        return {"holdout": None, "note": str(why)}
    rows, _ = split_by_sampling(select_reviewed(frame[frame["split"] == "holdout"]))
    at = frame.index.get_indexer(rows.index)
    weights = row_weights(rows["inclusion_probability"].to_numpy(float))
    return {
        "holdout": evaluate_estimates(score[at], predicted[at], threshold, rows["group"].to_numpy(), weights, RESAMPLES)
    }


def _by_variant(features: pd.DataFrame, frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The features of the answers as they were `asked`, in the order of `frame`, and of those changed for audits."""
    by_id = features.set_index("interaction_id")
    names = dict.fromkeys(["asked", *by_id["variant"]])
    found = {name: by_id[by_id["variant"] == name].drop(columns="variant") for name in names}
    return found | {"asked": found["asked"].reindex(frame["interaction_id"])}


if __name__ == "__main__":
    artifacts.run_stage(stage)
