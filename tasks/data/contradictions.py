"""The alarm about a user or a reviewer who contradicts the others: the stage `dataset` has named them."""

from __future__ import annotations

import hashlib
import json

from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.text import PSEUDONYM, short_name
from tasks.runs.events import ALARM, post_event
from tasks.runs.workspace import Workspace


def emit_contradiction_alarms(workspace: Workspace) -> None:
    """Raise an alarm about each person, or batch of one, that the data card names.

    The resource is of the person and the batch: their figures change with each night's rows, and are no other alarm.
    A name that is no pseudonym stays on the data card: the alarm may be posted to the outside.
    """
    card, code = json.loads((workspace.path / paths.DATASET_SUMMARY).read_text()), Code.CONTRADICTS_OTHERS
    for one in card["contradicting"]["named"]:
        who = hashlib.sha256(json.dumps([one["person"], one["batch"]]).encode()).hexdigest()[:12]
        told = one["message"].removeprefix(one["person"])
        person = (
            short_name(one["person"]) if PSEUDONYM.fullmatch(one["person"]) else "somebody whom the data card names"
        )
        post_event(
            ALARM,
            f"{ALARM}.{code.value}.{who}",
            code=code.value,
            kind="contradicts the others",
            text=f"{person}{told}",
            remedy=code.remedy,
        )
