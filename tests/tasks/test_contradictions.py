"""The alarm about a person who contradicts the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from abstain.core import paths
from abstain.core.codes import Code
from tasks import contradictions
from tasks.events import ALARM
from tasks.workspace import Workspace


@pytest.mark.parametrize("named", [[], ["r-1 in batch 7: 30 of 31 answers are judged the other way by others"]])
def test_whoever_is_named_on_the_data_card_is_an_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: list[str]
) -> None:
    emitted: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(contradictions, "emit", lambda name, **more: emitted.append((name, more)))
    card = {"contradicting": {"judged": 5, "named": [{"message": one} for one in named]}}
    file = tmp_path / paths.DATASET_SUMMARY
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(card))
    contradictions.alarm_contradictions(Workspace(tmp_path, lock=0))
    assert [(name, more["code"], more["text"]) for name, more in emitted] == [
        (ALARM, Code.CONTRADICTS_OTHERS.value, one) for one in named
    ]
