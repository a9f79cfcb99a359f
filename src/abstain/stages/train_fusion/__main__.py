"""DVC stage `train_fusion`: stacking of scorers, out of fold, on the training split.

One fusion combines the scores of one forward pass, one those of two, and one all scores.
"""

from dataclasses import replace

import pandas as pd

from abstain.config.params import Params
from abstain.core import paths
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from abstain.core.labels import Labels
from abstain.core.scorer_names import PROBE, REGRESSORS
from abstain.learning.estimators.fusion import FittedFusion, fit_fusion
from abstain.stages.shared import artifacts


def stage(params: Params) -> None:
    """Fit the fusions."""
    frame = artifacts.read_dataset_frame().set_index("interaction_id")
    probes = pd.read_parquet(paths.OUT_OF_FOLD).set_index("interaction_id")
    scores = probes.join(artifacts.read_signals("asked"))
    rows = frame.loc[scores.index]
    labels = Labels(*(rows[name].to_numpy() for name in ("correct", "weight", "group")))
    fits: dict[str, FittedFusion] = {}
    exported = artifacts.read_json(paths.PROBE_CHOICE)["exported"]
    for name, columns in _list_fusion_columns().items():
        try:
            fitted = fit_fusion(scores.assign(**{PROBE: scores[exported]})[columns], labels)
            fits[name] = replace(fitted, fusion=fitted.fusion.drop_unused())  # a service reads no more than it needs
        except AbstainError as error:
            print(f"skipped: {name}: {error.message_with_code}", flush=True)
    for name, fitted in fits.items():
        print(_describe(name, fitted), flush=True)
    artifacts.write_json(paths.FUSIONS, {name: fitted.fusion.to_dict() for name, fitted in fits.items()})
    out_of_fold = pd.DataFrame({name: fitted.out_of_fold for name, fitted in fits.items()}, scores.index)
    write_atomically(paths.FUSION_OUT_OF_FOLD, out_of_fold.reset_index().to_parquet(index=False))


def _list_fusion_columns() -> dict[str, list[str]]:
    """Return the scores of each fusion, without fusions of the same scores as a cheaper one."""
    regressors = list(artifacts.read_json(paths.REGRESSOR_SUMMARY)["regressors"])
    columns_by_fusion: dict[str, list[str]] = {}
    for name, parts in artifacts.read_json(paths.FEATURES_SUMMARY)["fusions"].items():
        columns = [column for part in parts for column in (regressors if part == REGRESSORS else [part])]
        if len(columns) > 1 and columns not in columns_by_fusion.values():
            columns_by_fusion[name] = columns
    return columns_by_fusion


def _describe(name: str, fitted: FittedFusion) -> str:
    fusion = fitted.fusion
    used = sum(coefficient > 0 for coefficient in fusion.coefficient)
    return f"{name}: {len(fusion.names)} scores, {used} with non-zero weight; regularisation C = {fusion.strength:.2g}"


if __name__ == "__main__":
    artifacts.run_stage(stage)
