"""The states of the stage `features` with the rows of the data set, for the stages that run a probe."""

from __future__ import annotations

import numpy as np
import pandas as pd

from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.data.store.state_table import RETRAIN_HINT, StateTable
from abstain.stages.shared.artifacts import read_dataset_frame


def load_labelled_states() -> tuple[pd.DataFrame, StateTable]:
    """The rows of the data set that have states, numbered from 0, and these states in the same order.

    A row has none where its prompt did not fit the base model's window. States are read on access.
    """
    frame, table = read_dataset_frame(), StateTable(paths.FEATURES)
    if len(frame) != len(table):
        raise AbstainError(
            Code.BAD_ARTIFACT,
            f"{paths.FEATURES} has {len(table)} rows, {paths.DATASET} has {len(frame)}: {RETRAIN_HINT}",
        )
    kept = np.flatnonzero(table.lengths)
    return frame.iloc[kept].reset_index(drop=True), table.subset(kept)


def read_base_model() -> str:
    """`name@revision` of the base model that the features were read from."""
    return StateTable(paths.FEATURES).model
