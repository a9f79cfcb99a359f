"""Freezing the hold-out: `split.holdout_frozen_at` gets the date from which rows are too new."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from abstain.config.params import load_params
from abstain.core import paths
from abstain.data.store.dataframes import read_frames
from abstain.data.store.dataset import DataStore
from tasks.run_params import edit_params
from tasks.workspace import Workspace

STAGE = "dataset"
"""The one stage that reads the date."""


def freeze_holdout(workspace: Workspace) -> bool:
    """Write the date to params.yaml where there is none, and renew the stage's entry in dvc.lock; the caller commits.

    The date is after every row at hand, so that no row moves and the stage gives what it gave before. Where rows came
    in since the stage ran, its entry stays as it is: the next retrain runs it. Returns whether a date was written.
    """
    if load_params(workspace.path / paths.PARAMS).split.holdout_frozen_at is not None:
        return False
    was_current = STAGE not in json.loads(workspace.dvc("status", "--json"))
    frames = read_frames(DataStore(workspace.path / paths.DATA))
    moments = [frames.interactions["asked_at"], frames.feedback["given_at"], frames.reviews["reviewed_at"]]
    newest = max([datetime.now(UTC), *(column.max().to_pydatetime() for column in moments if len(column))])
    date = newest.replace(microsecond=0) + timedelta(seconds=1)
    edit_params(workspace, {"split": {"holdout_frozen_at": date.isoformat().replace("+00:00", "Z")}})
    if was_current:
        workspace.dvc("repro", "--quiet", "--single-item", STAGE)
    return True
