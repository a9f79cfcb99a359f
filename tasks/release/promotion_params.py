"""What a promotion decides for later retrains, as values of params.yaml, where DVC sees them.

`split.holdout_frozen_at` gets the date from which rows are too new for the hold-out; `serve.in_production` the kind of
scorer that is kept unless another is clearly better.
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from abstain.config.params import load_params
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.data.store.dataframes import StoreFrames, read_frames
from abstain.data.store.dataset import DataStore
from abstain.data.store.splits import assign_splits
from abstain.learning.thresholds.risk_control import MIN_GROUPS
from abstain.release.registry import RegistryEvent
from tasks.runs.git_commit import commit
from tasks.runs.run_params import edit_params
from tasks.runs.workspace import Workspace

STAGE_BY_SECTION = {"split": "dataset", "serve": "choose_scorer"}
"""Section -> the one stage that reads the value."""


def write_promotion_params(workspace: Workspace, event: RegistryEvent) -> bool:
    """Write what the promotion `event` decides to params.yaml, and renew the entries in dvc.lock of the stages that
    read it; the caller commits.

    The first version with a guarantee freezes the hold-out: until then it may grow, as nothing is judged by it. The
    date is after every row at hand, so that no row moves. Neither value changes what its stage gave for the promoted
    version. Where a stage was to run anyway, its entry stays as it is: the next retrain runs it. Returns whether a
    value was written.
    """
    params = load_params(workspace.path / paths.PARAMS)
    values: dict[str, dict[str, Any]] = {}
    if event.guaranteed and params.split.holdout_frozen_at is None:
        frames = read_frames(DataStore(workspace.path / paths.DATA))
        values["split"] = {"holdout_frozen_at": _after_all_rows(frames)}
    if params.serve.in_production != event.kind:
        values["serve"] = {"in_production": event.kind}
    if not values:
        return False
    stale = json.loads(workspace.dvc("status", "--json"))
    edit_params(workspace, values)
    for stage in (STAGE_BY_SECTION[section] for section in values if STAGE_BY_SECTION[section] not in stale):
        workspace.dvc("repro", "--quiet", "--single-item", stage)
    return True


def refill_holdout(workspace: Workspace) -> None:
    """Write to params.yaml that the hold-out is what was asked since it was frozen.

    It is committed; the retrain's push takes it along. No comparison has chosen a version by these answers: that the
    newest window of a promoted one was not much worse on them makes it no worse a champion. Raises `AbstainError` where
    nothing was frozen, and where too few of these answers were reviewed to judge a version by.
    """
    params = load_params(workspace.path / paths.PARAMS)
    split, least = params.split, params.gate.min_slice
    if split.by != "group":
        raise AbstainError(
            Code.NEW_HOLDOUT, "split.by: time has no groups to refill: move split.holdout_from and holdout_frozen_at"
        )
    if split.holdout_frozen_at is None:
        raise AbstainError(
            Code.NEW_HOLDOUT,
            "the hold-out is not frozen yet, so it takes in new answers by itself: leave out --refill-holdout",
        )
    frames = read_frames(DataStore(workspace.path / paths.DATA))
    asked = frames.interactions
    newest = assign_splits(asked["group"], asked["asked_at"], split) == "newest"
    fresh = asked[newest & asked["interaction_id"].isin(frames.reviews["interaction_id"])]
    documents = fresh["group"].nunique()
    if len(fresh) < least or documents < MIN_GROUPS:
        raise AbstainError(
            Code.TOO_FEW_LABELS,
            f"only {len(fresh)} reviewed answers about {documents} documents of the hold-out were asked since it was "
            f"frozen ({split.holdout_frozen_at:%Y-%m-%d}): review at least {least} about {MIN_GROUPS}, then refill it",
        )
    since = split.holdout_frozen_at.isoformat().replace("+00:00", "Z")
    edit_params(workspace, {"split": {"holdout_from": since, "holdout_frozen_at": _after_all_rows(frames)}})
    commit(workspace, f"Refill the hold-out with what was asked since {since}", paths.PARAMS)


def write_rollback_params(workspace: Workspace, event: RegistryEvent) -> None:
    """Write the kind of scorer that is in production again, so that the next retrain chooses by it; the caller commits.

    A roll-back is for when things are wrong: params.yaml that this release cannot read does not stop it.
    """
    with suppress(AbstainError):
        edit_params(workspace, {"serve": {"in_production": event.kind}})


def _after_all_rows(frames: StoreFrames) -> str:
    moments = [frames.interactions["asked_at"], frames.thumbs["given_at"], frames.reviews["reviewed_at"]]
    newest = max([datetime.now(UTC), *(column.max().to_pydatetime() for column in moments if len(column))])
    date: datetime = newest.replace(microsecond=0) + timedelta(seconds=1)
    return date.isoformat().replace("+00:00", "Z")
