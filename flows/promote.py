"""The flow that judges the last candidate again, without running the DAG: `abstain promote`."""

from __future__ import annotations

from prefect import flow

from tasks.release.promotion import PromotionResult, promote_candidate, require_candidate
from tasks.runs.failures import coded_failures
from tasks.runs.workspace import open_workspace


@flow(validate_parameters=False)
@coded_failures()
def promote(new_holdout: str | None = None, accept_erasure: str | None = None) -> PromotionResult:
    """Judge the candidate that the origin's `dvc.lock` records. Raises `AbstainError` where it is not up to date.

    `accept_erasure` is the recorded reason why it may be worse than a champion that was trained on erased rows.
    """
    with open_workspace() as workspace:
        require_candidate(workspace)
        return promote_candidate(workspace, new_holdout, again=True, accept_erasure=accept_erasure)
