import json
from pathlib import Path
from typing import Any

import pytest

from abstain.core import paths
from abstain.core.codes import Code
from abstain_tasks.data import contradictions
from abstain_tasks.runs.events import ALARM
from abstain_tasks.runs.workspace import Workspace
from tests.reports.builders import make_contradiction, read_results

Emitted = list[tuple[str, str, dict[str, Any]]]


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch) -> Emitted:
    events: Emitted = []
    monkeypatch.setattr(contradictions, "post_event", lambda *names, **fields: events.append((*names, fields)))
    return events


def emit(folder: Path, *named: tuple[str, str | None, str]) -> None:
    """Of persons, batches and messages."""
    card = json.loads(read_results())["dataset"]
    card["contradicting"]["named"] = [
        make_contradiction(message) | {"person": person, "batch": batch} for person, batch, message in named
    ]
    file = folder / paths.DATASET_SUMMARY
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(card))
    contradictions.emit_contradiction_alarms(Workspace(folder, lock=0))


def test_contradiction_alarm_hides_names(tmp_path: Path, emitted: Emitted) -> None:
    emit(tmp_path)
    assert emitted == []
    pseudonym = f"r-{'5e' * 10}"
    for person in (pseudonym, "Ada Ames"):
        emit(tmp_path, (person, "000007", f"{person} in batch 000007: 30 of 31 answers"))
    assert {(name, fields["code"]) for name, _, fields in emitted} == {(ALARM, Code.CONTRADICTS_OTHERS.value)}
    by_pseudonym, by_name = (fields["text"] for _, _, fields in emitted)
    assert pseudonym[:10] in by_pseudonym and pseudonym not in by_pseudonym
    assert "Ada" not in by_name and "000007" in by_name


def test_contradiction_alarm_is_deduplicated_by_person(tmp_path: Path, emitted: Emitted) -> None:
    emit(tmp_path, ("r-1", None, "30 of 31 answers"), ("r-1", "000007", "9 of 9 answers"), ("u-2", None, "8 of 8"))
    emit(tmp_path, ("r-1", None, "31 of 33 answers"))
    first, *others, again = [resource for _, resource, _ in emitted]
    assert first == again and len({first, *others}) == 3
    assert not any("r-1" in resource or "u-2" in resource for resource in (first, *others))
