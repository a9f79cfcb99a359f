"""Figures that leave the log: only those whose texts are gone, that are old, and not of the version in production."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from abstain.data.decision_log import expiry
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.erasure import purge_expired_texts
from abstain.data.decision_log.expiry import count_expired, delete_expired
from abstain.data.decision_log.schema import DECISIONS, FEEDBACK
from tests.data.builders import review
from tests.data.decision_log.builders import AT, decision, open_log, url_of

LATER = AT + timedelta(days=3650)


def keys(database: LogDatabase) -> tuple[set[str], set[str]]:
    with database.read_transaction() as connection:
        decisions = connection.scalars(select(DECISIONS.c.interaction_id)).all()
        return set(decisions), set(connection.scalars(select(FEEDBACK.c.interaction_id)).all())


@pytest.fixture
def database(tmp_path: Path) -> LogDatabase:
    """Decisions of two versions and of none, each with a review; texts are gone but those of `new`."""
    log = open_log(url_of(tmp_path))
    for key, version in {"old": "v1.0.0", "live": "v1.1.0", "away": None, "new": "v1.0.0"}.items():
        at = LATER if key == "new" else AT
        log.record_decision(decision(key, version=version, decided_at=at)).result(10)
        log.record_feedback(f"f-{key}", review(key)).result(10)
    log.record_decision(decision("gone", user="u-1")).result(10)
    log.erase_user({"u-1"}, with_interactions=True)
    log.close()
    opened = LogDatabase.open(url_of(tmp_path))
    purge_expired_texts(opened, AT + timedelta(days=3000), keep_days=90)
    return opened


def test_old_figures_go_but_not_those_of_the_live_version(
    database: LogDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "ROWS_PER_TRANSACTION", 1)  # so that there are several transactions
    assert count_expired(database, LATER, 400, "v1.1.0") == 5
    assert keys(database)[0] == {"old", "live", "away", "new", "gone"}
    assert delete_expired(database, LATER, 400, "v1.1.0") == 5
    decisions, feedback = keys(database)
    assert decisions == {"live", "new", "gone"}, "an erased id stays known"
    assert "live" in feedback and not {"old", "away"} & feedback, "feedback goes by its decision's version"
    assert delete_expired(database, LATER, 400, "v1.1.0") == 0


def test_a_row_with_its_text_stays_however_old(tmp_path: Path) -> None:
    log = open_log(url_of(tmp_path))
    log.record_decision(decision("with-text")).result(10)
    log.close()
    opened = LogDatabase.open(url_of(tmp_path))
    assert delete_expired(opened, LATER, 1, None) == 0 and keys(opened)[0] == {"with-text"}
    purge_expired_texts(opened, LATER, keep_days=1)
    assert delete_expired(opened, LATER, 1, None) == 1


def test_numbers_are_not_given_twice(database: LogDatabase, tmp_path: Path) -> None:
    with database.read_transaction() as connection:
        before = max(connection.scalars(select(DECISIONS.c.seq)).all())
    with database.write_transaction() as connection:
        connection.execute(DECISIONS.delete())
    log = open_log(url_of(tmp_path))
    log.record_decision(decision("next")).result(10)
    log.close()
    with database.read_transaction() as connection:
        assert connection.scalars(select(DECISIONS.c.seq)).all() == [before + 1], "who reads on would miss it"
