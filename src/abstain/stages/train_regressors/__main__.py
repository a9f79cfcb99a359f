"""DVC stage `train_regressors`: fit correctness regressors on the NLL features, each kind to each target.

A target that cannot be fitted (no ideal answers, a constant value) is skipped with a message: the leaderboard lists it
with the reason, like an unavailable scorer.
"""

from functools import partial
from pathlib import Path

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
from abstain.knowledge.retrieval.encoder import SentenceEncoder
from abstain.learning.estimators.correctness_targets import compute_correctness
from abstain.learning.estimators.parity import MAX_PARITY
from abstain.learning.estimators.regressors.fitting import FittedRegressor, fit_regressor, make_regressor_fit
from abstain.learning.estimators.regressors.summary import Regressor, RegressorSummary
from abstain.learning.metrics.bootstrap import RESAMPLING
from abstain.learning.metrics.correctness_metrics import evaluate_estimates, tune_t
from abstain.learning.metrics.weighted_metrics import row_weights
from abstain.stages.shared import artifacts
from abstain.stages.shared.ideal_answers import read_ideal_answers

LABEL_TARGET = "label"
"""The target that is the label itself: 1 for a correct answer, 0 for an incorrect one."""
THRESHOLDS = tuple(np.round(np.arange(0.1, 0.96, 0.05), 2).tolist())
"""Candidates for t, the smallest estimated correctness that counts as correct."""


def stage(params: Params) -> None:
    """Fit and evaluate the regressors.

    Raises:
        AbstainError: A file differs too much from the fitted regressor.
    """
    frame = artifacts.read_dataset_frame()
    features = _split_by_variant(pd.read_parquet(paths.NLL_FEATURES), frame)
    train = (frame["split"] == "train").to_numpy()
    train_features, rows = features["asked"][train], frame[train]
    weight, groups = rows["weight"].to_numpy(), rows["group"].to_numpy()
    targets = _compute_targets(params, frame)
    scores = {variant: pd.DataFrame(index=table.index) for variant, table in features.items()}
    fits: dict[str, Regressor] = {}
    skipped: dict[str, str] = {}
    fit_params = make_regressor_fit(params)
    regressors = [(kind, target) for target in targets for kind in params.regressors.kinds]
    with artifacts.atomic_folder(paths.REGRESSORS) as folder:
        for number, (kind, target) in enumerate(regressors):
            artifacts.report_progress(number, len(regressors))
            name, score = f"{kind}_{target}", targets[target]
            try:
                fitted = fit_regressor(kind, target, train_features, score[train], weight, groups, fit_params)
            except AbstainError as error:
                skipped[name] = error.message_with_code
                print(f"skipped: regressor {name}: {error.message_with_code}", flush=True)
                continue
            if fitted.parity > MAX_PARITY:
                raise AbstainError(
                    Code.EXPORT_DIFFERS,
                    f"regressor {name}: its file differs from what was fitted by {fitted.parity:.2g}, more than "
                    f"{MAX_PARITY:g}: this export cannot be trusted",
                )
            fitted.regressor.save(folder / f"{name}.onnx")
            for variant, table in features.items():
                scores[variant][name] = fitted.regressor.predict(table)
            estimates = scores["asked"][name].to_numpy(copy=True)
            estimates[train] = fitted.out_of_fold
            scores["asked"][name] = estimates
            fits[name] = _summarize(fitted, frame, train, score, estimates)
    artifacts.report_progress(len(regressors), len(regressors))
    tables = [table.assign(variant=name).reset_index() for name, table in scores.items()]
    write_atomically(paths.REGRESSOR_SCORES, pd.concat(tables, ignore_index=True).to_parquet(index=False))
    artifacts.write_json(paths.REGRESSOR_SUMMARY, RegressorSummary(regressors=fits, skipped=skipped).to_dict())


def _compute_targets(params: Params, frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """Compute target -> correctness of every row of `frame`, in [0, 1]; nan where it is unknown."""
    names = [name for name in params.regressors.targets if name != LABEL_TARGET]
    rows: list[Interaction] = DataStore(paths.DATA).read_interactions(frame["interaction_id"])
    ideal = read_ideal_answers()
    references = [[ideal[row.interaction_id]] if row.interaction_id in ideal else [] for row in rows]
    folder = params.regressors.encoder
    if folder is not None and not Path(folder, "config.json").is_file():
        raise AbstainError(Code.NO_MODEL, f"regressors.encoder: no model is saved in {folder}: correct the path")
    encoder = None if folder is None else SentenceEncoder(Path(folder))
    scores = compute_correctness(names, [row.answer for row in rows], references, encoder)
    targets = {LABEL_TARGET: frame["correct"].to_numpy(float)} | {name: scores[name].to_numpy() for name in names}
    return {name: targets[name] for name in params.regressors.targets}


def _summarize(
    fitted: FittedRegressor, frame: pd.DataFrame, train: np.ndarray, score: np.ndarray, predicted: np.ndarray
) -> Regressor:
    """Compute the metrics of Zhang et al. (section 4.2) on the reviewed hold-out, at the t tuned out of fold."""
    make_summary = partial(
        Regressor,
        dropped=dict(fitted.dropped),
        parity=fitted.parity,
        bytes=fitted.regressor.n_bytes,
        folds=fitted.regressor.metadata["folds"],
    )
    try:
        weight = frame.loc[train, "weight"].to_numpy()
        threshold = tune_t(score[train], fitted.out_of_fold, THRESHOLDS, weight)
    except AbstainError as error:
        return make_summary(holdout=None, note=str(error))
    rows, _ = split_by_sampling(select_reviewed(frame[frame["split"] == "holdout"]))
    positions = frame.index.get_indexer(rows.index)
    weights = row_weights(rows["inclusion_probability"].to_numpy(float))
    metrics = evaluate_estimates(
        score[positions], predicted[positions], threshold, rows["group"].to_numpy(), weights, RESAMPLING
    )
    return make_summary(holdout=metrics)


def _split_by_variant(features: pd.DataFrame, frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the features of the original answers, in the order of `frame`, and of the audits' answers."""
    by_id = features.set_index("interaction_id")
    names = dict.fromkeys(["asked", *by_id["variant"]])
    tables = {name: by_id[by_id["variant"] == name].drop(columns="variant") for name in names}
    return tables | {"asked": tables["asked"].reindex(frame["interaction_id"])}


if __name__ == "__main__":
    artifacts.run_stage(stage)
