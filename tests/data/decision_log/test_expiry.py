from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from abstain.data.decision_log import expiry
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.erasure import purge_expired_texts
from abstain.data.decision_log.expiry import count_expired, delete_expired
from abstain.data.decision_log.log import DecisionLog
from abstain.data.decision_log.schema import DECISIONS, FEEDBACK
from tests.data.decision_log.builders import AT, decision, open_log, record, url_of
from tests.factories import review

LATER = AT + timedelta(days=3650)


def list_ids(database: LogDatabase) -> tuple[set[str], set[str]]:
    with database.read_transaction() as connection:
        decisions = connection.scalars(select(DECISIONS.c.interaction_id)).all()
        return set(decisions), set(connection.scalars(select(FEEDBACK.c.interaction_id)).all())


@pytest.fixture
def database(log: DecisionLog) -> LogDatabase:
    """Decisions of two versions and of none, each with a review; texts are gone except those of `new`."""
    for key, version in {"old": "v1.0.0", "live": "v1.1.0", "away": None, "new": "v1.0.0"}.items():
        record(log, decision(key, version=version, decided_at=LATER if key == "new" else AT))
        log.record_feedback(f"f-{key}", review(key)).result(10)
    record(log, decision("gone", user="u-1"))
    log.erase_user({"u-1"}, with_interactions=True)
    purge_expired_texts(log.database, AT + timedelta(days=3000), keep_days=90)
    return log.database


def test_delete_expired_keeps_rows_of_the_live_version(database: LogDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "ROWS_PER_TRANSACTION", 1)  # so that there are several transactions
    assert count_expired(database, LATER, 400, "v1.1.0") == 5
    assert list_ids(database)[0] == {"old", "live", "away", "new", "gone"}
    assert delete_expired(database, LATER, 400, "v1.1.0") == 5
    decisions, feedback = list_ids(database)
    assert decisions == {"live", "new", "gone"}, "an erased id stays known"
    assert "live" in feedback and not {"old", "away"} & feedback, "feedback goes by its decision's version"
    assert delete_expired(database, LATER, 400, "v1.1.0") == 0


def test_delete_expired_keeps_rows_with_texts(log: DecisionLog) -> None:
    record(log, decision("with-text"))
    assert delete_expired(log.database, LATER, 1, None) == 0 and list_ids(log.database)[0] == {"with-text"}
    purge_expired_texts(log.database, LATER, keep_days=1)
    assert delete_expired(log.database, LATER, 1, None) == 1


def test_deleted_sequence_numbers_are_not_reused(database: LogDatabase, tmp_path: Path) -> None:
    with database.write_transaction() as connection:
        before = max(connection.scalars(select(DECISIONS.c.seq)).all())
        connection.execute(DECISIONS.delete())
    with closing(open_log(url_of(tmp_path))) as log:
        record(log, decision("next"))
    with database.read_transaction() as connection:
        assert connection.scalars(select(DECISIONS.c.seq)).all() == [before + 1], "who reads on would miss it"
