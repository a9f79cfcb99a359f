import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from abstain.core.errors import AbstainError
from abstain.ingest.sources.config import AnySource, load_sources
from abstain.ingest.sources.files import ExplicitFiles, FileSource
from abstain.ingest.sources.sql import TableConfig
from tests.checkout import TEMPLATE
from tests.conftest import ROOT
from tests.factories import row, write_lines
from tests.ingest.sources.test_sql import run

FULL = """
sources:
  - name: inbox
    kind: files
    url: inbox
  - {name: handbook, kind: files, url: "s3://bucket/handbook", mirror: true}
  - name: warehouse
    kind: sql
    url: postgresql://abstain:${PASSWORD}@db/feedback
    late_by_days: 0.5
    naive_is_utc: true
    tables:
      interactions: {table: app.answers, columns: {answer: reply}, watermark: written_at, key: id}
      feedback: {query: "SELECT * FROM thumbs", key: nr}
"""


def load(folder: Path, text: str) -> tuple[AnySource, ...]:
    (folder / "sources.yaml").write_text(text)
    return load_sources(folder / "sources.yaml", folder)


def test_sources_every_key_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", "p@ss")
    inbox, handbook, warehouse = load(tmp_path, FULL)
    assert inbox == FileSource(name="inbox", url=str(tmp_path / "inbox"))
    assert handbook == FileSource(name="handbook", url="s3://bucket/handbook", mirror=True)
    assert warehouse.url == "postgresql+psycopg://abstain:p%40ss@db/feedback"
    assert warehouse.tables.interactions == TableConfig(
        table="app.answers", columns={"answer": "reply"}, watermark="written_at", key="id"
    )
    assert warehouse.tables.feedback == TableConfig(query="SELECT * FROM thumbs", key="nr")
    assert (warehouse.late_by_days, warehouse.naive_is_utc, warehouse.tables.reviews) == (0.5, True, None)


def test_sources_shipped_file_is_the_inbox_and_the_decision_log(tmp_path: Path) -> None:
    inbox, decisions = load_sources(TEMPLATE / "sources.yaml", tmp_path / "home")
    assert list(decisions.read({})) == []  # no server has written one
    assert list(inbox.read({})) == []  # its folder was created
    write_lines(tmp_path / "home" / "inbox" / "a.jsonl", row())
    assert len(list(inbox.read({}))) == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("mirror: true", "miror: true", "'sources.1.miror': did you mean 'mirror'?"),
        ("mirror: true", "scheduled: false", "'sources.1.scheduled'"),
        ("feedback: {", "feedbacks: {", "'sources.2.tables.feedbacks': did you mean 'feedback'?"),
        ("kind: sql", "kind: sqll", "sources.2.kind: unknown kind 'sqll'"),
        ("    kind: sql\n", "", "sources.2: kind is missing"),
        ("name: handbook", "name: review-queue-2", "sources: the name 'review-queue-2'"),
        ("name: handbook", "name: inbox", "sources: two sources are called 'inbox'"),
        ("name: handbook", "name: Hand.book", "sources: the name 'Hand.book'"),
        ("answer: reply", "anwser: reply", "interactions.columns: unknown field 'anwser'"),
        ("table: app.answers, ", "", "sources.2.tables.interactions: "),
        ("table: app.answers", "table: a, query: b", "sources.2.tables.interactions: "),
    ],
)
def test_sources_wrong_key_is_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in FULL
    with pytest.raises(AbstainError, match=rf"^{re.escape(f'{tmp_path}/sources.yaml')}.*{re.escape(message)}.*\Z"):
        load(tmp_path, FULL.replace(old, new))
    with pytest.raises(AbstainError, match=r"nowhere\.yaml is missing"):
        load_sources(tmp_path / "nowhere.yaml", tmp_path)
    with pytest.raises(AbstainError, match="'warehouse': .* PASSWORD"):
        load(tmp_path, FULL)


def test_sources_relative_paths_are_in_the_home(tmp_path: Path) -> None:
    write_lines(tmp_path / "export.jsonl", row())
    (files,) = load(tmp_path, "sources: [{name: a, kind: files, url: export.jsonl}]")
    assert len(list(files.read({}))) == 1
    for url in ("export.csv", str(tmp_path / "away")):
        (source,) = load(tmp_path, f"sources: [{{name: a, kind: files, url: {url}}}]")
        with pytest.raises(AbstainError, match="no such file or folder"):
            source.read({})


def test_sources_documented_examples_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDBACK_PASSWORD", "?")
    blocks = re.findall(r"```(yaml|sql|csv)\n(.*?)```", (ROOT / "docs" / "sources.md").read_text(), re.DOTALL)
    assert [kind for kind, _ in blocks] == ["yaml", "csv", "yaml", "yaml", "sql"]
    files, rows, log, warehouse, schema = (text for _, text in blocks)
    names = [[source.name for source in load(tmp_path, text)] for text in (log, files, warehouse)]
    assert names == [["decisions"], ["inbox", "handbook"], ["warehouse"]]
    (tmp_path / "a.csv").write_text(rows)
    (found,) = ExplicitFiles(name="a", url=str(tmp_path / "a.csv")).read({})
    assert found.thumb.comment == "Short, and right."
    with closing(sqlite3.connect(tmp_path / "feedback.db")) as connection:
        connection.executescript(schema)
    run(tmp_path / "feedback.db", "INSERT INTO feedback VALUES (1, 'i-1', '2026-09-02T12:00:00Z', 'up', 'u', NULL)")
    own = ("i-1", "2026-09-01T12:00:00Z", "q", "a", "[]", "m", None, "retail", "g", '{"log_prob": -0.5}')
    run(tmp_path / "feedback.db", f"INSERT INTO interactions VALUES ({', '.join('?' * len(own))})", own)
    (database,) = load(tmp_path, "sources: [{name: b, kind: sql}]")
    reading = database.read({})
    interaction, thumb = reading
    assert (interaction.interaction.group, interaction.interaction.writer_scores) == ("g", {"log_prob": -0.5})
    assert thumb.thumb.user == "u"
    assert reading.outcome.state["tables"].keys() == {"interactions", "feedback", "reviews"}
