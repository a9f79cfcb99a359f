"""The alarm about a user or a reviewer who contradicts the others; the stage `dataset` has found them."""

from __future__ import annotations

import hashlib
import json

from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.text import PSEUDONYM, shorten_name
from abstain_tasks.runs.events import ALARM, post_event
from abstain_tasks.runs.workspace import Workspace


def emit_contradiction_alarms(workspace: Workspace) -> None:
    """Raise an alarm about each person, or batch of one, that the data card names.

    The resource identifies person and batch: the numbers change with each night's rows, but it stays the same alarm. A
    name that is no pseudonym stays on the data card, because the alarm may be posted to the outside.

    Args:
        workspace: The workspace with the data card.
    """
    from abstain.data.labels.data_card import DataCard  # imports scipy, which a run does not need before

    card = DataCard.from_dict(json.loads((workspace.path / paths.DATASET_SUMMARY).read_text()))
    code = Code.CONTRADICTS_OTHERS
    for contradiction in card.contradicting.flagged:
        resource_id = hashlib.sha256(json.dumps([contradiction.person, contradiction.batch]).encode()).hexdigest()[:12]
        text = contradiction.message.removeprefix(contradiction.person)
        is_pseudonym = PSEUDONYM.fullmatch(contradiction.person)
        person = shorten_name(contradiction.person) if is_pseudonym else "somebody whom the data card names"
        post_event(
            ALARM,
            f"{ALARM}.{code.value}.{resource_id}",
            code=code.value,
            kind="contradicts the others",
            text=f"{person}{text}",
            remedy=code.remedy,
        )
