"""What a shadow would have decided: recorded once, joined with production's decision, and gone when texts are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.decisions import ShadowDecision
from abstain.data.decision_log.log import DecisionLog
from abstain.data.decision_log.queries import PairedDecision, list_paired_decisions
from tests.data.builders import interaction
from tests.data.decision_log.builders import decision, open_log, url_of

NOW = datetime.now(UTC)
OF_SHADOW = ShadowDecision("a", "shadow-1", NOW, False, 0.25, 0.2, 0.5)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[DecisionLog]:
    """Ann asked a and Bob b; both versions decided about them."""
    opened = open_log(url_of(tmp_path), keep_days=30)
    for key, user in (("a", "ann"), ("b", "bob")):
        opened.record_decision(decision(key, user=user, decided_at=NOW))
        opened.record_shadow_decision(replace(OF_SHADOW, interaction_id=key)).result()
    yield opened
    opened.close()


def pairs(folder: Path, candidate: str = "shadow-1", version: str = "v1.0.0") -> list[PairedDecision]:
    log = LogDatabase.open_existing(url_of(folder))
    assert log is not None
    return list_paired_decisions(log, candidate, version)


def test_a_pair_has_what_both_have_decided(tmp_path: Path, log: DecisionLog) -> None:
    first, second = pairs(tmp_path)
    assert first == PairedDecision("a", True, 0.75, 0.5, 0.5, False, 0.25, 0.2, 0.5) and second.interaction_id == "b"
    assert pairs(tmp_path, "shadow-2") == pairs(tmp_path, version="v1.1.0") == []


def test_the_first_of_an_answer_and_a_candidate_stays(tmp_path: Path, log: DecisionLog) -> None:
    log.record_shadow_decision(replace(OF_SHADOW, confidence=0.9))
    log.record_shadow_decision(replace(OF_SHADOW, candidate="shadow-2", confidence=0.6))
    log.record_shadow_decision(replace(OF_SHADOW, candidate="shadow-2", confidence=0.7)).result()
    assert [one.shadow_confidence for one in pairs(tmp_path)] == [0.25, 0.25]
    assert [one.shadow_confidence for one in pairs(tmp_path, "shadow-2")] == [0.6]


def test_what_either_has_not_decided_is_no_pair(tmp_path: Path, log: DecisionLog) -> None:
    log.record_shadow_decision(replace(OF_SHADOW, interaction_id="unknown"))
    log.record_shadow_decision(replace(OF_SHADOW, interaction_id="c"))
    log.record_decision(decision("c", shown=False, decision="unavailable", interaction=interaction("c")))
    log.record_decision(decision("d", interaction=interaction("d")))
    log.record_shadow_decision(replace(OF_SHADOW, interaction_id="d", confidence=None)).result()
    assert [one.interaction_id for one in pairs(tmp_path)] == ["a", "b"]


def test_an_erasure_with_interactions_reaches_it_and_it_does_not_come_back(tmp_path: Path, log: DecisionLog) -> None:
    assert log.erase_user(["ann"], with_interactions=True) == 2
    assert [one.interaction_id for one in pairs(tmp_path)] == ["b"]
    log.record_shadow_decision(OF_SHADOW).result()
    assert [one.interaction_id for one in pairs(tmp_path)] == ["b"]


def test_it_goes_when_its_days_are_over(tmp_path: Path, log: DecisionLog) -> None:
    log.purge_expired_texts(NOW + timedelta(days=29))
    assert len(pairs(tmp_path)) == 2
    log.purge_expired_texts(NOW + timedelta(days=31))
    assert pairs(tmp_path) == []
