from pathlib import Path

import typer
from typer.testing import CliRunner

from abstain.ingest.importers.qa_from_hf import ABSTENTION
from abstain_cli.import_rows import import_files
from tests.ingest.importers.upstream import judged, write_records


def test_it_says_what_was_written_and_what_comes_next(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(import_files)
    file = write_records(tmp_path / "qa.jsonl", judged(), judged("lt-2", model_answer=ABSTENTION))
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["qa_from_hf", str(file), "-o", str(out), "--set", "verdict=thumb"])
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "1 interactions, 1 thumbs, 0 reviews and 1 documents in" in said
    assert "1 records skipped: the model abstained" in said
    assert "next: abstain ingest" in said
    assert sorted(path.name for path in out.iterdir()) == ["documents", "rows.jsonl"]
