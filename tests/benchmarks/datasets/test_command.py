import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.datasets.__main__ import app
from benchmarks.datasets.qa_from_hf import ABSTENTION
from tests.benchmarks.datasets.upstream import FORMATS, make_record, write_records


@pytest.mark.soak(twin="test_import_command_of_every_format_writes_rows")
def test_import_reports_written_and_skipped_records(tmp_path: Path) -> None:
    file = write_records(tmp_path / "qa.jsonl", make_record(), make_record("lt-2", model_answer=ABSTENTION))
    out = tmp_path / "out"
    options = ["--verdict", "thumb", "--first-round-at", "2024-05-01T00:00:00Z"]
    done = CliRunner().invoke(app, ["qa_from_hf", str(file), "-o", str(out), *options])
    assert done.exit_code == 0, done.output
    report = " ".join(done.output.split())
    assert "1 interactions, 1 thumbs, 0 reviews and 1 documents in" in report
    assert "1 records skipped: the model abstained" in report
    assert "next: abstain ingest" in report
    assert sorted(path.name for path in out.iterdir()) == ["documents", "rows.jsonl"]
    assert json.loads((out / "rows.jsonl").read_text())["asked_at"] == "2024-05-01T00:00:00+00:00"


@pytest.mark.parametrize("name", FORMATS)
def test_import_command_of_every_format_writes_rows(tmp_path: Path, name: str) -> None:
    done = CliRunner().invoke(app, [name, str(FORMATS[name](tmp_path)), "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out" / "rows.jsonl").exists()


@pytest.mark.soak(twin="test_import_command_of_every_format_writes_rows")
@pytest.mark.parametrize("options", [["--unanswerable", "no"], ["--asked-at", "2020-01-01T00:00:00"]])
def test_import_wrong_option_writes_nothing(tmp_path: Path, options: list[str]) -> None:
    file = FORMATS["squad"](tmp_path)
    done = CliRunner().invoke(app, ["squad", str(file), "-o", str(tmp_path / "out"), *options])
    assert done.exit_code == 2 and options[0] in done.output
    assert not (tmp_path / "out").exists()
