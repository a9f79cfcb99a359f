"""The alarm about a user or a reviewer who contradicts the others: the stage `dataset` has named them."""

from __future__ import annotations

import json

from abstain.core import paths
from abstain.core.codes import Code
from tasks.events import ALARM, emit
from tasks.workspace import Workspace


def alarm_contradictions(workspace: Workspace) -> None:
    """Raise an alarm where the data card names anybody; the same ones by the same judgements are one alarm."""
    card = json.loads((workspace.path / paths.DATASET_SUMMARY).read_text())
    named = [one["message"] for one in card["contradicting"]["named"]]
    if named:
        text, code = "; ".join(named), Code.CONTRADICTS_OTHERS
        emit(ALARM, told=text, code=code.value, kind="contradicts the others", text=text, remedy=code.remedy)
