import os
import random
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.data.decision_log import log as module
from abstain.data.decision_log import queries
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.log import DecisionLog
from tests.checkout import ROOT
from tests.data.decision_log.builders import decision, get_outcome, open_log, record, url_of
from tests.data.decision_log.test_log import wait_until
from tests.factories import feedback

pytestmark = pytest.mark.heavy


def test_open_makes_files_for_the_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        log = open_log(url_of(tmp_path / "home"))
        record(log, decision())
    finally:
        os.umask(before)
    modes = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "home").iterdir()}
    assert modes == dict.fromkeys(["decisions.sqlite", "decisions.sqlite-wal", "decisions.sqlite-shm"], 0o600)
    log.close()


def test_open_another_layout_or_no_database_is_an_error(tmp_path: Path) -> None:
    assert LogDatabase.open_existing(url_of(tmp_path)) is None and list(tmp_path.iterdir()) == []
    file = tmp_path / "decisions.sqlite"
    open_log(url_of(tmp_path)).close()
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE decision_log SET content = '1' WHERE name = 'version'")
    for code in (Code.VERSION_MISMATCH, Code.NO_SERVICE):
        for open_database in (open_log, LogDatabase.open_existing):
            with pytest.raises(AbstainError) as error:
                open_database(url_of(tmp_path))
            assert error.value.code is code
        file.write_bytes(b"damaged" * 1000)


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("sqlite:///file", Code.NO_SERVICE),
        ("sqlite:///file/decisions.sqlite", Code.NOT_WRITABLE),
        ("mysql://ann:s3cret@h/d", Code.BAD_SETTING),
        ("s3cret", Code.BAD_SETTING),
        ("postgresql://ann:s3cret@h:port/d", Code.BAD_SETTING),
        ("postgresql://ann:p@s3cret@h/d", Code.BAD_SETTING),
        ("postgresql://ann:s3cret@127.0.0.1:9/d?sslpassword=s3cret", Code.NO_SERVICE),
    ],
)
def test_open_unusable_url_is_one_line_without_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, code: Code
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("no database, but long enough to be read as one" * 100)
    with pytest.raises(AbstainError) as error:
        open_log(url)
    assert error.value.code is code and "s3cret" not in str(error.value)


def test_record_decision_while_the_database_is_away_fails(
    tmp_path: Path, log: DecisionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(log, decision("before"))
    with closing(sqlite3.connect(tmp_path / "decisions.sqlite", isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        log.database._engine.dispose()
        monkeypatch.setattr("abstain.data.decision_log.database._PRAGMAS", ("busy_timeout=1",))
        other.execute("BEGIN EXCLUSIVE")
        futures = [log.record_decision(decision("a")), log.record_feedback("f", feedback("a"))]
        assert [get_outcome(future) for future in futures] == [Code.NO_SERVICE] * 2
        assert log.last_error == str(futures[0].exception().message_with_code)
        other.execute("ROLLBACK")
        other.execute("PRAGMA locking_mode=NORMAL")
        other.execute("SELECT count(*) FROM decision_log").fetchone()
    assert record(log, decision("a")) == ["recorded"] and log.last_error is None
    assert queries.count_decisions(log.database)["show"] == 2


def test_write_transaction_counts_a_removed_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = LogDatabase.open(url_of(tmp_path))
    for file in tmp_path.iterdir():
        file.unlink()
    create_tables = database._create_tables
    monkeypatch.setattr(database, "_create_tables", lambda: time.sleep(0.1) or create_tables())

    def write(_: int) -> None:
        with database.write_transaction():
            pass

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert database.n_replaced == 1
    with closing(open_log(url_of(tmp_path))) as log:
        assert record(log, decision("b")) == ["recorded"]


@pytest.mark.parametrize(
    ("interval", "owner", "failing"),
    [
        ("CHECK_INTERVAL_S", LogDatabase, "write_transaction"),
        ("PURGE_INTERVAL_S", module.erasure, "purge_expired_texts"),
    ],
)
def test_writer_thread_survives_a_defect(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    interval: str,
    owner: Any,
    failing: str,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, interval, 0.02)
        log = open_log(url_of(tmp_path))
        patch.setattr(owner, failing, Mock(side_effect=RuntimeError("a defect")))
        wait_until(lambda: "a defect" in caplog.text)
    assert record(log, decision()) == ["recorded"]
    log.close()


WRITER = """
import os, sys
from itertools import count
from tests.data.decision_log.builders import decision, open_log
from tests.factories import feedback

log = open_log(sys.argv[1])
for key in (f"{sys.argv[2]}-{number}" for number in count()):
    for future in (log.record_decision(decision(key)), log.record_feedback(f"f-{key}", feedback(key, comment=key))):
        future.result()
    os.write(1, f"{key}\\n".encode())  # whole lines: a line is written at once or not at all
"""


def kill_writers(url: str, *names: str, seed: int) -> list[str]:
    """Kill processes that log, all at once at a random moment, and return the ids that they had acknowledged."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    commands = [[sys.executable, "-c", WRITER, url, name] for name in names]
    writers = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for command in commands]
    try:
        first = [writer.stdout.readline().strip() for writer in writers]
        time.sleep(random.Random(seed).uniform(0.05, 0.5))
    finally:
        for writer in writers:
            writer.kill()
    return first + [key for writer in writers for key in writer.communicate()[0].split()]


@pytest.mark.parametrize(
    "kills", [1, pytest.param(40, marks=pytest.mark.soak(twin="test_acknowledged_rows_survive_kills_of_two_processes"))]
)
def test_acknowledged_rows_survive_kills_of_two_processes(tmp_path: Path, kills: int) -> None:
    acknowledged: list[str] = []
    for seed in range(kills):
        acknowledged += kill_writers(url_of(tmp_path), f"a{seed}", f"b{seed}", seed=seed)
        with closing(open_log(url_of(tmp_path))) as log:
            for key in acknowledged:
                details = queries.get_decision(log.database, key)
                assert details.decision.interaction.interaction_id == key
                assert [row.comment for row in details.feedback] == [key]
            counts = queries.count_decisions(log.database)
        assert counts["show"] >= len(acknowledged) <= counts["feedback"]
    assert {key[0] for key in acknowledged} == {"a", "b"}
