import re
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from abstain.config.settings import Settings
from abstain.core.errors import AbstainError
from abstain.ingest.sources.config import FilesConfig, SqlConfig, TableConfig, load_sources, open_source
from abstain.ingest.sources.files import FileSource
from abstain.ingest.sources.sql import SqlSource
from tests.conftest import ROOT
from tests.data.builders import row, write_lines
from tests.ingest.sources.databases import add_thumb, new_database, run

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
      feedback: {query: "SELECT * FROM thumbs", key: [day, nr]}
"""


def load(folder: Path, text: str) -> Any:
    (folder / "sources.yaml").write_text(text)
    return load_sources(folder / "sources.yaml")


def test_every_key(tmp_path: Path) -> None:
    inbox, handbook, warehouse = load(tmp_path, FULL)
    assert inbox == FilesConfig(name="inbox", kind="files", url="inbox")
    assert handbook.mirror
    assert isinstance(warehouse, SqlConfig) and warehouse.tables is not None
    assert warehouse.tables.interactions == TableConfig(
        table="app.answers", columns={"answer": "reply"}, watermark="written_at", key=("id",)
    )
    assert warehouse.tables.feedback is not None and warehouse.tables.feedback.key == ("day", "nr")
    assert (warehouse.late_by_days, warehouse.naive_is_utc, warehouse.tables.reviews) == (0.5, True, None)


def test_what_is_shipped_is_the_inbox(tmp_path: Path) -> None:
    (inbox,) = load_sources(ROOT / "sources.yaml")
    source = open_source(inbox, Settings(home=tmp_path / "home"))
    assert isinstance(source, FileSource) and source.name == "inbox"
    assert list(source.read({})) == []  # it was made, so that it can be found
    write_lines(tmp_path / "home" / "inbox" / "a.jsonl", row())
    assert len(list(source.read({}))) == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("mirror: true", "miror: true", "unknown key 'sources.1.miror': did you mean 'mirror'?"),
        ("late_by_days", "late_by", "unknown key 'sources.2.late_by': did you mean 'late_by_days'?"),
        (
            "watermark:",
            "water_mark:",
            "unknown key 'sources.2.tables.interactions.water_mark': did you mean 'watermark'?",
        ),
        ("feedback: {", "feedbacks: {", "unknown key 'sources.2.tables.feedbacks': did you mean 'feedback'?"),
        ("sources:", "source:", "unknown key 'source': did you mean 'sources'?"),
        ("kind: sql", "kind: sqll", "sources.2.kind: unknown kind 'sqll': did you mean 'sql'?"),
        ("    kind: sql\n", "", "sources.2: kind is missing: one of files, sql"),
        ("name: handbook", "name: inbox", "sources: two sources are called 'inbox': rename one"),
        ("name: handbook", "name: Hand.book", "sources.1.name: String should match pattern"),
        ("late_by_days: 0.5", "late_by_days: -1", "sources.2.late_by_days: Input should be greater than or equal to 0"),
        ("answer: reply", "anwser: reply", "interactions.columns: unknown field 'anwser': did you mean 'answer'?"),
        ("table: app.answers, ", "", "sources.2.tables.interactions: name either a table or a query"),
        ("table: app.answers", "table: a, query: b", "sources.2.tables.interactions: name either a table or a query"),
        (", key: [day, nr]", "", "sources.2.tables.feedback: a query needs a key"),
        ("url: inbox", "url: [", "is not valid YAML"),
        (FULL, "", "Input should be a valid dictionary"),
    ],
)
def test_what_is_wrong_is_one_line_that_names_it(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in FULL
    with pytest.raises(AbstainError, match=re.escape(message)) as refused:
        load(tmp_path, FULL.replace(old, new))
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith(str(tmp_path / "sources.yaml"))


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(AbstainError, match=r"sources\.yaml is missing: run this in the root of the project"):
        load_sources(tmp_path / "sources.yaml")


def test_relative_paths_are_in_the_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    write_lines(home / "export.jsonl", row())
    files = open_source(FilesConfig(name="a", kind="files", url="export.jsonl"), Settings(home=home))
    assert len(list(files.read({}))) == 1
    run(new_database(home), "ALTER TABLE thumbs RENAME TO feedback")
    add = "INSERT INTO feedback VALUES (1, 'i-1', '2026-09-02T12:00:00Z', 'up', '')"
    run(home / "feedback.db", add)
    database = open_source(SqlConfig(name="b", kind="sql", late_by_days=2), Settings(home=home))
    assert isinstance(database, SqlSource) and database._late_by == timedelta(days=2)
    assert [found.source for found in database.read({})] == ["b/feedback"]


def test_a_missing_file_of_the_home_is_not_made_a_folder(tmp_path: Path) -> None:
    source = open_source(FilesConfig(name="a", kind="files", url="export.csv"), Settings(home=tmp_path))
    with pytest.raises(AbstainError, match=r"export\.csv: no such file or folder"):
        source.read({})
    elsewhere = open_source(FilesConfig(name="a", kind="files", url=str(tmp_path / "away")), Settings(home=tmp_path))
    with pytest.raises(AbstainError, match="away: no such file or folder"):
        elsewhere.read({})


def test_an_unset_variable_is_told_when_the_source_is_opened(tmp_path: Path) -> None:
    config = load(tmp_path, FULL)[2]
    with pytest.raises(
        AbstainError, match="source 'warehouse': the environment variable PASSWORD in its url is not set"
    ):
        open_source(config, Settings(home=tmp_path))


def test_a_database_without_a_url_is_one_in_the_home(tmp_path: Path) -> None:
    database = new_database(tmp_path)
    add_thumb(database, 1, "2026-09-02T12:00:00Z")
    config = SqlConfig(name="b", kind="sql", tables={"feedback": {"table": "thumbs"}})
    assert len(list(open_source(config, Settings(home=tmp_path)).read({}))) == 1


def test_the_examples_of_the_documentation(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "sources.md").read_text()
    blocks = re.findall(r"```(yaml|sql|csv)\n(.*?)```", text, re.DOTALL)
    assert [kind for kind, _ in blocks] == ["yaml", "csv", "yaml", "sql"]
    files, (_, rows), warehouse, (_, schema) = blocks
    assert [source.name for source in load(tmp_path, files[1])] == ["inbox", "handbook"]
    assert load(tmp_path, warehouse[1])[0].tables.feedback.watermark == "at"
    (tmp_path / "a.csv").write_text(rows)
    (found,) = FileSource("a", str(tmp_path / "a.csv")).read({})
    assert found.feedback is not None and found.feedback.comment == "Short, and right."
    with closing(sqlite3.connect(tmp_path / "feedback.db")) as link:
        link.executescript(schema)
    run(tmp_path / "feedback.db", "INSERT INTO feedback VALUES (1, 'i-1', '2026-09-02T12:00:00Z', 'up', 'u', NULL)")
    add = "INSERT INTO interactions VALUES ('i-1', '2026-09-01T12:00:00Z', 'q', 'a', '[]', 'm', NULL, 'retail', 'g')"
    run(tmp_path / "feedback.db", add)
    reading = open_source(SqlConfig(name="b", kind="sql"), Settings(home=tmp_path)).read({})
    interaction, thumb = reading
    assert interaction.interaction is not None and interaction.interaction.group == "g"
    assert thumb.feedback is not None and thumb.feedback.user == "u"
    assert reading.state["tables"].keys() == {"interactions", "feedback", "reviews"}
