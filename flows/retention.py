"""The flow that deletes what the policy in params.yaml lets go (section `retention`).

abstain retention          says what would go; --apply deletes it; or, from the Prefect UI: deployment retention/weekly
"""

from __future__ import annotations

from datetime import UTC, datetime

from prefect import flow, get_run_logger

from abstain_tasks.data.retention.expired import ExpiredItems
from abstain_tasks.data.retention.policy import apply_retention
from abstain_tasks.runs.failures import coded_failures
from abstain_tasks.runs.progress import register_observer


@flow(validate_parameters=False)
@coded_failures()
def retention(apply: bool = False) -> list[ExpiredItems]:
    """Report what the retention policy expires, part by part.

    Args:
        apply: Whether to delete it.

    Returns:
        The expired items.
    """
    log = get_run_logger()
    with register_observer(lambda _, message: log.info(message)):
        result = apply_retention(datetime.now(UTC), apply=apply)
    for item in result:
        log.info("%s: %s %s", item.kind, item.count, "deleted" if apply else "would be deleted")
    return result
