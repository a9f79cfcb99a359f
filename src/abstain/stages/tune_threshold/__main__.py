"""DVC stage `tune_threshold`: the served scorer's threshold, guarantee and calibration, on the validation split."""

import numpy as np
import pandas as pd

from abstain.config.params import Params
from abstain.core import paths
from abstain.core.errors import AbstainError
from abstain.data.store.splits import select_reviewed, split_by_sampling
from abstain.learning.metrics.calibration import fit_calibrator
from abstain.learning.metrics.weighted_metrics import row_weights
from abstain.learning.thresholds.guarantee import GuaranteeEstimates
from abstain.learning.thresholds.risk_control import ReviewedAnswers, control_risk_by_params
from abstain.learning.thresholds.selection import compute_operating_point, tune_threshold
from abstain.learning.thresholds.threshold_result import ThresholdResult
from abstain.stages.shared import artifacts


def stage(params: Params) -> None:
    """Tune the threshold and fit the calibrator."""
    served = pd.read_parquet(paths.SERVED_SCORES).set_index("interaction_id")["confidence"]
    frame = artifacts.read_dataset_frame()
    frame = frame[frame["interaction_id"].isin(served.index)]
    validation, self_selected = split_by_sampling(select_reviewed(frame[frame["split"] == "validation"]))
    validation_answers = _make_reviewed_answers(validation, served)
    train = frame[frame["split"] == "train"]
    if not (reviewed := select_reviewed(train)).empty:  # the guarantee does not depend on them, so thumbs suffice
        train = reviewed
    outcome = control_risk_by_params(
        validation_answers,
        _make_reviewed_answers(train, served),  # out of fold
        params.threshold,
        len(validation) / len(select_reviewed(frame)),
    )
    try:
        heuristic = tune_threshold(
            validation_answers.confidence, validation_answers.correct, params.threshold, validation_answers.weight
        )
    except AbstainError:  # without it, the threshold nearest to the target is evaluated; the promotion checks decide
        heuristic = None
    guarantee, threshold = outcome.to_guarantee(), outcome.threshold
    if heuristic and guarantee.status == "none":
        threshold = heuristic.threshold
        estimates = {name: getattr(heuristic, name) for name in GuaranteeEstimates.model_fields}
        guarantee = guarantee.model_copy(update={"estimates": GuaranteeEstimates(**estimates)})
    print(f"threshold {threshold:.3f}: {guarantee.message}")
    self_selected_point = None
    if not self_selected.empty:
        answers = _make_reviewed_answers(self_selected, served)
        self_selected_point = compute_operating_point(answers.confidence, answers.correct, threshold, answers.weight)
    result = ThresholdResult(
        threshold=threshold,
        guarantee=guarantee,
        heuristic=heuristic and heuristic.to_record(),
        self_selected=self_selected_point and self_selected_point.to_record(),
    )
    artifacts.write_json(paths.THRESHOLD, result.to_dict())
    has_score = served[validation["interaction_id"]].notna().to_numpy()
    weight = row_weights(validation["inclusion_probability"].to_numpy(float))
    rows = validation_answers.confidence[has_score], validation_answers.correct[has_score], weight[has_score]
    try:
        calibrator = fit_calibrator(params.calibration.method, *rows)
    except AbstainError as error:
        print(f"not calibrated: {error.message_with_code}")
        calibrator = fit_calibrator("none", *rows)
    artifacts.write_json(paths.CALIBRATION, calibrator.to_dict())


def _make_reviewed_answers(rows: pd.DataFrame, served: pd.Series) -> ReviewedAnswers:
    # An answer without a confidence is withheld. Confidences are rounded down to the digits of JSON and the ONNX
    # metadata, so that no tested answer falls below its own threshold.
    confidence = served[rows["interaction_id"]].fillna(0.0).to_numpy(float)
    return ReviewedAnswers(
        confidence=np.floor(confidence * 1e6) / 1e6,
        correct=rows["correct"].to_numpy(int),
        weight=row_weights(rows["inclusion_probability"].to_numpy(float)),
        groups=rows["group"].to_numpy(),
        sampled=bool(rows["sampled"].all()),
        reviewers=rows["reviewers"].to_numpy() if rows["reviewers"].notna().all() else None,
    )


if __name__ == "__main__":
    artifacts.run_stage(stage)
