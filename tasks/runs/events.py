"""Events that the flows emit to Prefect, by name; they trigger automations."""

from __future__ import annotations

from typing import Any

# An alarm: of the monitoring, or of a person who contradicts the others. Payload: `code`, `kind`, `text` and `remedy`;
# that of the monitoring also has `version` and `window`, the day on which that began.
ALARM = "abstain.alarm"
# The questions, answers, contexts or hidden states drifted, or new topics came. Payload: `version`, and `codes`.
DRIFT = "abstain.drift"
# A portion of new reviews is full, so that a retrain is due: the resource is `abstain.reviews.VERSION.N` for the N-th.
# Payload: `count`, the reviews that came since the data of the live version, and `version`.
REVIEWS = "abstain.reviews"
# An ingest has accepted rows: payload `rows`.
INGESTED = "abstain.ingested"
# The promotion checks have rejected a candidate, or did before: payload `code`, that of the first failed check, `text`
# and `remedy`; the resource has its sha256.
REJECTED = "abstain.rejected"


def post_event(name: str, resource: str = "", **payload: Any) -> None:
    """Emit an event; a run without a server emits nothing.

    Within a run, Prefect adds the flow run and its flow as related resources.

    Args:
        name: Name of the event.
        resource: Id of the resource; "" for one with the name of the event.
        **payload: Payload of the event.
    """
    from prefect.events import emit_event
    from prefect.settings import PREFECT_API_URL

    if PREFECT_API_URL.value() is None:  # else Prefect starts a server for it
        return
    emit_event(name, resource={"prefect.resource.id": resource or name}, payload=payload)
