"""The flow that checks the last candidate again, without running the DAG: `abstain promote`."""

from __future__ import annotations

from prefect import flow

from abstain_tasks.release.promotion import PromotionResult, promote_candidate, require_candidate
from abstain_tasks.runs.failures import coded_failures
from abstain_tasks.runs.workspace import open_workspace


@flow(validate_parameters=False)
@coded_failures()
def promote(new_holdout: str | None = None, accept_erasure: str | None = None) -> PromotionResult:
    """Check the candidate that the origin's `dvc.lock` records, and promote it if it passes.

    Args:
        new_holdout: Reason for a changed hold-out.
        accept_erasure: Recorded reason why it may be worse than a champion trained on erased or corrected rows.

    Returns:
        The result.

    Raises:
        AbstainError: The candidate is not up to date.
    """
    with open_workspace() as workspace:
        require_candidate(workspace)
        return promote_candidate(workspace, new_holdout, recheck=True, accept_erasure=accept_erasure)
