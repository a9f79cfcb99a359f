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
    """Load the rows of the data set that have states.

    A row has no states if its prompt did not fit into the base model's context length.

    Returns:
        These rows, numbered from 0, and their states in the same order, read on access.

    Raises:
        AbstainError: The table of states does not belong to this data set.
    """
    frame, table = read_dataset_frame(), StateTable(paths.FEATURES)
    if len(frame) != len(table):
        raise AbstainError(
            Code.BAD_ARTIFACT,
            f"{paths.FEATURES} has {len(table)} rows, {paths.DATASET} has {len(frame)}: {RETRAIN_HINT}",
        )
    has_states = np.flatnonzero(table.lengths)
    return frame.iloc[has_states].reset_index(drop=True), table.subset(has_states)


def read_base_model() -> str:
    """Read which base model computed the states, as `name@revision`."""
    return StateTable(paths.FEATURES).model
