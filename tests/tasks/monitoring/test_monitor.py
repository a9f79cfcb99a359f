from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import Mock

import pytest

from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.monitoring_windows import read_windows
from abstain_tasks.monitoring import monitor
from abstain_tasks.monitoring.monitor import open_log, retry_while_unavailable
from tests.data.decision_log.builders import decision, url_of
from tests.data.decision_log.builders import open_log as open_writer

pytestmark = pytest.mark.heavy


@pytest.fixture(autouse=True)
def seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of patience in place of two minutes."""
    monkeypatch.setattr(monitor, "DATABASE_WAIT_S", 2)


def test_unavailable_log_is_waited_for_then_raises(tmp_path: Path) -> None:
    open_writer(url_of(tmp_path)).close()
    file, away = tmp_path / "decisions.sqlite", tmp_path / "away"
    file.rename(away)
    file.mkdir()  # nothing can be opened there
    asked = 0

    def ask() -> int:
        nonlocal asked
        asked += 1
        if asked == 2:
            file.rmdir()
            away.rename(file)
        with closing(LogDatabase(url_of(tmp_path))) as database:
            return len(read_windows(database))

    assert retry_while_unavailable(ask) == 0 and asked == 2
    file.rename(away)
    file.mkdir()
    began = datetime.now(UTC)
    with pytest.raises(AbstainError, check=lambda error: error.code is Code.NO_SERVICE):
        open_log(Settings(home=tmp_path))
    assert (datetime.now(UTC) - began).total_seconds() >= 1


def test_retry_while_unavailable_raises_other_errors() -> None:
    ask = Mock(side_effect=AbstainError(Code.VERSION_MISMATCH, "another layout: use that release"))
    with pytest.raises(AbstainError):
        retry_while_unavailable(ask)
    ask.assert_called_once()


def test_open_log_missing_is_none_and_creates_nothing(tmp_path: Path) -> None:
    assert open_log(Settings(home=tmp_path)) is None
    assert list(tmp_path.iterdir()) == []
    log = open_writer(url_of(tmp_path))
    log.record_decision(decision()).result()
    log.close()
    database = open_log(Settings(home=tmp_path))
    assert database is not None and read_windows(database) == ()
    database.close()
