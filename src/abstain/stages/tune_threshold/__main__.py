"""DVC stage `tune_threshold`: the served probe's threshold, guarantee and calibration, on the validation split."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from abstain.config.params import Params
from abstain.core import paths
from abstain.core.errors import AbstainError
from abstain.data.store.splits import reviewed
from abstain.learning.estimators.probes.base import predict_confidence
from abstain.learning.estimators.zoo import load_probe
from abstain.learning.metrics.calibration import fit_calibrator
from abstain.learning.metrics.weighted_metrics import row_weights
from abstain.learning.thresholds.risk_control import ControlledThreshold, ReviewedAnswers, control_risk
from abstain.learning.thresholds.selection import tune_threshold
from abstain.stages.shared import artifacts
from abstain.stages.shared.states import read_labelled_states


def stage(params: Params) -> None:
    frame, states = read_labelled_states()
    probe = load_probe(paths.PROBE)
    validation = reviewed(frame[frame["split"] == "validation"])
    tested = _answers(validation, predict_confidence(probe, states.subset(validation.index)).numpy())
    if params.threshold.exchangeable_unit == "groups":
        tested = replace(tested, groups=validation["group"].to_numpy())
    out_of_fold = pd.read_parquet(paths.OUT_OF_FOLD).set_index("interaction_id")[probe.architecture]
    train = frame[frame["split"] == "train"]
    if not (judged := reviewed(train)).empty:  # the guarantee does not depend on them, so thumbs suffice
        train = judged
    found = control_risk(
        tested,
        _answers(train, out_of_fold[train["interaction_id"]].to_numpy()),
        params.threshold,
        len(validation) / len(reviewed(frame)),
    )
    try:
        heuristic = tune_threshold(tested.confidence, tested.correct, params.threshold, tested.weight)
    except AbstainError:  # without it, the threshold nearest to the target is evaluated; the gate decides
        heuristic = None
    print(found)
    chosen: dict[str, Any] = found.to_dict()
    if heuristic and not isinstance(found, ControlledThreshold):
        chosen |= {name: getattr(heuristic, name) for name in ("threshold", "precision", "error_rate", "coverage")}
    artifacts.write_json(paths.THRESHOLD, {**chosen, "heuristic": heuristic.to_dict() if heuristic else None})
    rows = tested.confidence, tested.correct, tested.weight
    try:
        calibrator = fit_calibrator(params.calibration.method, *rows, params.calibration.seed)
    except AbstainError as error:
        print(f"not calibrated: {error.coded}")
        calibrator = fit_calibrator("none", *rows)
    artifacts.write_json(paths.CALIBRATION, calibrator.to_dict())


def _answers(rows: pd.DataFrame, confidence: np.ndarray) -> ReviewedAnswers:
    # Rounded down to what JSON and the ONNX metadata carry, so that no tested answer falls below its own threshold.
    return ReviewedAnswers(
        confidence=np.floor(confidence.astype(float) * 1e6) / 1e6,
        correct=rows["correct"].to_numpy(int),
        weight=row_weights(rows["inclusion_probability"].to_numpy(float)),
    )


if __name__ == "__main__":
    artifacts.run(stage)
