"""`abstain review` without a promoted probe, a Prefect server or git: what it says, writes and refuses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from abstain.core.contracts import Review
from abstain.core.errors import AbstainError
from abstain.data.store.dataset import Store
from abstain.ingest.pipeline.report import IngestReport
from abstain.ingest.pipeline.run import ingest
from abstain.ingest.sources.files import by_hand
from abstain.review.sheet import Sheet, read_sheet
from abstain.review.time_window import IMPORTED
from abstain_cli import review as review_cli
from tests.conftest import ROOT
from tests.data.builders import NOW, PARAMS, accept_all, alone, later, row, verdict
from tests.review.test_time_window import take


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data of a workspace with nothing in production; the flow `ingest` is ingest itself."""

    @contextmanager
    def open_workspace() -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(path=tmp_path)

    def flow(files: list[str]) -> IngestReport:
        return ingest(by_hand(files), tmp_path / "data", PARAMS, NOW, validate=accept_all)

    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tasks.workspace.open_workspace", open_workspace)
    # In place of the modules: importing Prefect takes longer than all of these tests.
    monkeypatch.setitem(sys.modules, "tasks.server", SimpleNamespace(server_for_run=nullcontext))
    monkeypatch.setitem(sys.modules, "flows.ingest", SimpleNamespace(ingest=flow))
    monkeypatch.setattr(review_cli.console, "width", 160)
    monkeypatch.setattr(review_cli, "datetime", SimpleNamespace(now=lambda zone: NOW))
    (tmp_path / "params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
    rows = [row(f"q-{n}", asked_at=later(n / 10).isoformat(), product=("cards", "loans")[n % 2]) for n in range(100)]
    take(tmp_path / "data", *rows)
    return tmp_path / "data"


def review(*arguments: str) -> str:
    done = CliRunner().invoke(review_cli.app, arguments)
    if isinstance(done.exception, AbstainError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def judge(path: Path, change: Callable[[int], dict[str, str]]) -> None:
    sheet = read_sheet(path)
    rows = {number: {**cells, **change(number)} for number, cells in sheet.rows.items()}
    path.write_bytes(Sheet(sheet.columns, rows, sheet.delimiter).to_bytes())


YES = {"complete": "yes", "correct": "yes", "truthful": "yes"}


def test_export_says_what_was_drawn_and_why_not_otherwise(data: Path) -> None:
    said = review("export", "-n", "20", "--delimiter", ";")
    assert "nothing is in production, so nobody knows where it is unsure: every row is drawn at random" in said
    assert said.splitlines()[1] == "100 answers asked from 2026-09-01 12:00 to 2026-09-11 09:36 UTC, 0 reviewed"
    assert "to review now: 20 at random\n" in said
    assert "reviews.csv: open it in a spreadsheet, or run `abstain review serve reviews.csv`" in said
    sheet = read_sheet(Path("reviews.csv"))
    assert (len(sheet.rows), sheet.delimiter) == (20, ";")
    with pytest.raises(AbstainError, match=r"reviews.csv is there already, perhaps with verdicts"):
        review("export")


def test_days_are_those_of_utc(data: Path) -> None:
    said = review("export", "-n", "100", "--since", "2026-09-03", "--until", "2026-09-04T12:00:00")
    assert "15 answers asked from 2026-09-03 00:00 to 2026-09-04 12:00 UTC" in said


def test_what_is_too_old_to_be_reviewed(data: Path) -> None:
    with pytest.raises(AbstainError, match=r"asked before 2026-08-03 00:00 UTC comes too late to be taken in"):
        review("export", "--since", "2026-08-02")


def test_import_takes_what_is_whole_and_names_the_rest(data: Path) -> None:
    review("export", "-n", "10", "-o", "week.csv")
    judge(Path("week.csv"), lambda number: YES if number < 6 else {"complete": "no"} if number == 6 else {})
    said = review("import", "week.csv", "--reviewer", "Ann")
    assert "week.csv: 4 reviewed, 5 not yet, 1 to be mended" in said
    assert "not taken: row 6: correct is empty: write yes or no in complete, correct, truthful" in said
    assert {one.reviewer for one in Store(data).rows(Review)} == {"Ann"}
    assert [batch.sources for batch in Store(data).batches()][1:] == [(f"{IMPORTED}-week.jsonl",)]
    review("import", "week.csv", "--reviewer", "Ann")
    assert len(list(Store(data).rows(Review))) == 4


def test_import_of_nothing(data: Path) -> None:
    review("export", "-n", "10")
    with pytest.raises(AbstainError, match=r"reviews.csv: there is no verdict to take in"):
        review("import", "reviews.csv")


def test_a_larger_sample_says_what_it_builds_on(data: Path) -> None:
    review("export", "-n", "10", "-o", "a.csv")
    judge(Path("a.csv"), lambda number: YES)
    review("import", "a.csv", "--reviewer", "Ann")
    said = review("export", "-n", "30", "-o", "b.csv")
    assert "100 answers" in said and "10 reviewed" in said
    assert "to review now: 20 at random; 10 drawn ones were reviewed before" in said
    judge(Path("b.csv"), lambda number: {"complete": "yes", "correct": "no", "truthful": "yes", "reviewer": "Bob"})
    review("import", "b.csv")
    with pytest.raises(AbstainError, match="every row of this sample is reviewed already: raise -n"):
        review("export", "-n", "30", "-o", "c.csv")
    assert not Path("c.csv").exists()
    said = review("export", "-n", "40", "--since", "2026-09-06", "-o", "d.csv")
    assert "drawn ones were reviewed before" in said


def test_a_later_window_that_was_sampled_less_is_told_to_catch_up(data: Path) -> None:
    review("export", "-n", "30", "--until", "2026-09-06", "-o", "a.csv")
    judge(Path("a.csv"), lambda number: YES)
    review("import", "a.csv", "--reviewer", "Ann")
    said = review("export", "-n", "10", "-o", "b.csv")
    assert "rows more than -n: a part of this window was sampled more densely before" in said


def test_reviews_by_other_means_are_told(data: Path) -> None:
    take(data, *(alone(verdict(days=20, inclusion_probability=0.5), f"q-{n}") for n in range(7)), name="x.jsonl")
    said = review("export", "-n", "10")
    assert "7 reviews of this window were sampled by other means, and keep their own weights" in said


def test_few_rows_say_by_what_they_are_stratified(data: Path) -> None:
    assert "so few rows are stratified by thumb: one a stratum" in review("export", "-n", "1")


def test_serve_ends_with_what_comes_next(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    review("export", "-n", "3")
    monkeypatch.setattr("abstain.review.page.serve", lambda desk, listening: None)
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setenv("DISPLAY", ":0")
    said = review("serve", "reviews.csv", "--port", "0")
    assert "0 of 3 reviewed; take them in with `abstain review import reviews.csv`" in said
    assert opened == [said.split()[1]] and opened[0].startswith("http://127.0.0.1:")
    monkeypatch.delenv("DISPLAY")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    review("serve", "reviews.csv", "--port", "0")
    assert len(opened) == 1, "no browser takes the terminal"
