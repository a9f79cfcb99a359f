"""DVC stage `tune_threshold`: the threshold with the highest display rate at the target precision, on validation."""

import numpy as np

from abstain import paths
from abstain.decide.threshold import tune_threshold
from abstain.evaluate.leaderboard import reviewed
from abstain.evaluate.metrics import row_weights
from abstain.models.training import predict_confidence
from abstain.params import Params
from abstain.stages import common


def stage(params: Params) -> None:
    frame, states = common.read_labelled_states()
    rows = reviewed(frame[frame["split"] == "validation"])
    confidence = predict_confidence(common.read_probe(params), states.subset(rows.index)).numpy()
    # Rounded down to what JSON and the ONNX metadata carry, so that no tuned answer falls below it.
    confidence = np.floor(confidence.astype(float) * 1e6) / 1e6
    weight = row_weights(rows["inclusion_probability"].to_numpy(float))
    tuned = tune_threshold(confidence, rows["correct"].to_numpy(int), params.threshold, weight)
    print(f"threshold {tuned.threshold:.3f}: precision {tuned.precision:.3f}, shows {tuned.display_rate:.0%}")
    common.write_json(paths.THRESHOLD, tuned.to_dict())


if __name__ == "__main__":
    common.run(stage)
