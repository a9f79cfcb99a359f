"""DVC stage `tune_threshold`: the served scorer's threshold, guarantee and calibration, on the validation split."""

from typing import Any

import numpy as np
import pandas as pd

from abstain.config.params import Params
from abstain.core import paths
from abstain.core.errors import AbstainError
from abstain.data.store.splits import select_reviewed, split_by_sampling
from abstain.learning.metrics.calibration import fit_calibrator
from abstain.learning.metrics.weighted_metrics import row_weights
from abstain.learning.thresholds.risk_control import ControlledThreshold, ReviewedAnswers, control_risk
from abstain.learning.thresholds.selection import compute_operating_point, tune_threshold
from abstain.stages.shared import artifacts


def stage(params: Params) -> None:
    served = pd.read_parquet(paths.SERVED_SCORES).set_index("interaction_id")["confidence"]
    frame = artifacts.read_dataset_frame()
    frame = frame[frame["interaction_id"].isin(served.index)]
    validation, volunteered = split_by_sampling(select_reviewed(frame[frame["split"] == "validation"]))
    tested = _answers(validation, served)
    train = frame[frame["split"] == "train"]
    if not (judged := select_reviewed(train)).empty:  # the guarantee does not depend on them, so thumbs suffice
        train = judged
    found = control_risk(
        tested,
        _answers(train, served),  # out of fold
        params.threshold,
        len(validation) / len(select_reviewed(frame)),
    )
    try:
        heuristic = tune_threshold(tested.confidence, tested.correct, params.threshold, tested.weight)
    except AbstainError:  # without it, the threshold nearest to the target is evaluated; the gate decides
        heuristic = None
    print(found)
    chosen: dict[str, Any] = found.to_dict()
    if heuristic and not isinstance(found, ControlledThreshold):
        chosen |= {name: getattr(heuristic, name) for name in ("threshold", "precision", "error_rate", "coverage")}
    others = None
    if not volunteered.empty:
        apart = _answers(volunteered, served)
        others = compute_operating_point(apart.confidence, apart.correct, chosen["threshold"], apart.weight).to_dict()
    chosen |= {"heuristic": heuristic.to_dict() if heuristic else None, "volunteered": others}
    artifacts.write_json(paths.THRESHOLD, chosen)
    known = served[validation["interaction_id"]].notna().to_numpy()
    weight = row_weights(validation["inclusion_probability"].to_numpy(float))
    rows = tested.confidence[known], tested.correct[known], weight[known]
    try:
        calibrator = fit_calibrator(params.calibration.method, *rows)
    except AbstainError as error:
        print(f"not calibrated: {error.message_with_code}")
        calibrator = fit_calibrator("none", *rows)
    artifacts.write_json(paths.CALIBRATION, calibrator.to_dict())


def _answers(rows: pd.DataFrame, served: pd.Series) -> ReviewedAnswers:
    # One without a confidence is withheld. Rounded down to what JSON and the ONNX metadata carry, so that no tested
    # answer falls below its own threshold.
    confidence = served[rows["interaction_id"]].fillna(0.0).to_numpy(float)
    return ReviewedAnswers(
        confidence=np.floor(confidence * 1e6) / 1e6,
        correct=rows["correct"].to_numpy(int),
        weight=row_weights(rows["inclusion_probability"].to_numpy(float)),
        groups=rows["group"].to_numpy(),
        drawn=bool(rows["drawn"].all()),
        reviewers=rows["reviewers"].to_numpy() if rows["reviewers"].notna().all() else None,
    )


if __name__ == "__main__":
    artifacts.run_stage(stage)
