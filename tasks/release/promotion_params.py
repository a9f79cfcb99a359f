"""Decisions of a promotion for later retrains, as values of params.yaml, where DVC sees them.

`split.holdout_frozen_at` gets the time from which rows are too new for the hold-out. `serve.current_scorer` gets the
scorer that is kept unless another one is clearly better.
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
from abstain.learning.thresholds.guarantee import MIN_GROUPS
from abstain.release.registry import RegistryEvent
from abstain_tasks.runs.git_commit import commit
from abstain_tasks.runs.run_params import edit_params
from abstain_tasks.runs.workspace import Workspace

STAGE_BY_SECTION = {"split": "dataset", "serve": "choose_scorer"}
"""Section -> the one stage that reads the value."""


def write_promotion_params(workspace: Workspace, event: RegistryEvent) -> bool:
    """Write the decisions of a promotion to params.yaml, and update dvc.lock for the stages that read it.

    The caller commits. The first version with a guarantee freezes the hold-out: until then it may grow, because nothing
    is judged by it. The time is after every stored row, so that no row moves. Neither value changes the result of its
    stage for the promoted version. If a stage was stale anyway, its entry stays as it is: the next retrain runs it.

    Args:
        workspace: The workspace.
        event: The promotion.

    Returns:
        Whether a value was written.
    """
    params = load_params(workspace.path / paths.PARAMS)
    values: dict[str, dict[str, Any]] = {}
    if event.has_guarantee and params.split.holdout_frozen_at is None:
        frames = read_frames(DataStore(workspace.path / paths.DATA))
        values["split"] = {"holdout_frozen_at": _get_time_after_all_rows(frames)}
    if params.serve.current_scorer != event.scorer:
        values["serve"] = {"current_scorer": event.scorer}
    if not values:
        return False
    stale = json.loads(workspace.dvc("status", "--json"))
    edit_params(workspace, values)
    for stage in (STAGE_BY_SECTION[section] for section in values if STAGE_BY_SECTION[section] not in stale):
        workspace.dvc("repro", "--quiet", "--single-item", stage)
    return True


def refill_holdout(workspace: Workspace) -> None:
    """Define the hold-out in params.yaml as the answers that were asked since it was frozen, and commit.

    The retrain's push takes the commit along. No comparison has chosen a version by these answers. That a promoted
    version was not much worse on them as its newest split makes it no worse a champion.

    Args:
        workspace: The workspace.

    Raises:
        AbstainError: Nothing was frozen, or too few of these answers were reviewed to judge a version by.
    """
    params = load_params(workspace.path / paths.PARAMS)
    split, min_reviews = params.split, params.evaluation.min_n_eff
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
    interactions = frames.interactions
    newest = assign_splits(interactions["group"], interactions["asked_at"], split) == "newest"
    reviewed = interactions[newest & interactions["interaction_id"].isin(frames.reviews["interaction_id"])]
    n_groups = reviewed["group"].nunique()
    if len(reviewed) < min_reviews or n_groups < MIN_GROUPS:
        raise AbstainError(
            Code.TOO_FEW_LABELS,
            f"only {len(reviewed)} reviewed answers about {n_groups} documents of the hold-out were asked since it was "
            f"frozen ({split.holdout_frozen_at:%Y-%m-%d}): review at least {min_reviews} about {MIN_GROUPS}, then "
            "refill it",
        )
    since = split.holdout_frozen_at.isoformat().replace("+00:00", "Z")
    edit_params(workspace, {"split": {"holdout_from": since, "holdout_frozen_at": _get_time_after_all_rows(frames)}})
    commit(workspace, f"Refill the hold-out with what was asked since {since}", paths.PARAMS)


def write_rollback_params(workspace: Workspace, event: RegistryEvent) -> None:
    """Write the scorer in production again, so that the next retrain chooses by it; the caller commits.

    A rollback is an emergency, so a params.yaml that this release cannot read does not stop it.

    Args:
        workspace: The workspace.
        event: The rollback.
    """
    with suppress(AbstainError):
        edit_params(workspace, {"serve": {"current_scorer": event.scorer}})


def _get_time_after_all_rows(frames: StoreFrames) -> str:
    times = [frames.interactions["asked_at"], frames.thumbs["given_at"], frames.reviews["reviewed_at"]]
    newest = max([datetime.now(UTC), *(column.max().to_pydatetime() for column in times if len(column))])
    date: datetime = newest.replace(microsecond=0) + timedelta(seconds=1)
    return date.isoformat().replace("+00:00", "Z")
