"""DVC stage `train_fusion`: stacking of the probes and the signals, both out of fold, on the training split."""

import pandas as pd

from abstain.config.params import Params
from abstain.core import paths
from abstain.core.labels import Labels
from abstain.learning.estimators.fusion import fit_fusion
from abstain.stages.shared import artifacts


def stage(params: Params) -> None:
    frame = artifacts.read_dataset_frame().set_index("interaction_id")
    scores = pd.read_parquet(paths.OUT_OF_FOLD).set_index("interaction_id").join(artifacts.read_signals("asked"))
    rows = frame.loc[scores.index]
    fusion = fit_fusion(scores, Labels(*(rows[name].to_numpy() for name in ("correct", "weight", "group"))))
    used = sum(coefficient > 0 for coefficient in fusion.coefficient)
    print(f"fused {len(fusion.names)} scores, {used} with non-zero weight; regularisation C = {fusion.strength:.2g}")
    artifacts.write_json(paths.FUSION, fusion.to_dict())


if __name__ == "__main__":
    artifacts.run(stage)
