"""`abstain review` without a promoted probe, a Prefect server or git: what it prints, writes and refuses."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from abstain.config.params import load_params
from abstain.core.contracts import Review
from abstain.core.errors import AbstainError
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.queue import count_progress
from abstain.data.labels.training_table import find_uncounted_reviews
from abstain.data.store.dataset import REVIEW_QUEUE_PREFIX, DataStore
from abstain.ingest.pipeline.run import ingest
from abstain.ingest.report import IngestReport
from abstain.ingest.sources.files import make_explicit_sources
from abstain.review.import_reviews import REMEDIES
from abstain.review.workbook import read_workbook
from abstain_cli import review as review_cli
from abstain_tasks.data.review import check_reviews
from tests.checkout import SHIPPED
from tests.data.builders import NOW, PARAMS, accept_all, later, row
from tests.review.builders import YES, cells_of, fill
from tests.review.test_candidates import take


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data of a workspace with nothing in production; the flow `ingest` is ingest itself."""

    @contextmanager
    def open_workspace() -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(path=tmp_path)

    def flow(files: list[str]) -> IngestReport:
        return ingest(make_explicit_sources(files), tmp_path / "data", PARAMS, NOW, validate=accept_all)

    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("abstain_tasks.runs.workspace.open_workspace", open_workspace)
    # In place of the modules: importing Prefect takes longer than all of these tests.
    monkeypatch.setitem(sys.modules, "abstain_tasks.server", SimpleNamespace(server_for_run=nullcontext))
    monkeypatch.setitem(sys.modules, "abstain_flows.ingest", SimpleNamespace(ingest=flow))
    monkeypatch.setattr(review_cli.console, "width", 160)
    monkeypatch.setattr(review_cli, "datetime", SimpleNamespace(now=lambda zone: NOW))
    (tmp_path / "params.yaml").write_text(SHIPPED["params.yaml"])
    rows = [row(f"q-{n}", asked_at=later(n / 10).isoformat(), product=("cards", "loans")[n % 2]) for n in range(100)]
    take(tmp_path / "data", *rows)
    return tmp_path / "data"


def review(*arguments: str) -> str:
    done = CliRunner().invoke(review_cli.app, arguments)
    if isinstance(done.exception, AbstainError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.heavy
def test_frozen_holdout_is_neither_drawn_nor_taken(data: Path) -> None:
    params = load_params(data.parent / "params.yaml")
    uncounted = find_uncounted_reviews(DataStore(data), params.labels, params.split, NOW)
    frozen = params.split.model_copy(update={"holdout_frozen_at": None})
    assert len(uncounted) == 30 and find_uncounted_reviews(DataStore(data), params.labels, frozen, NOW) == {}
    review("export", "-n", "100")
    rows = read_workbook(data.parent / "reviews.xlsx")
    assert {one.cells["interaction_id"] for one in rows} == {f"q-{n}" for n in range(100)} - uncounted.keys()
    verdicts = check_reviews(SimpleNamespace(path=data.parent), rows, NOW)  # type: ignore[arg-type]
    assert (verdicts.n_unreviewed, verdicts.problems) == (70, ())


@pytest.mark.heavy
def test_export_prints_what_was_drawn_and_where(data: Path) -> None:
    said = review("export", "-n", "20").splitlines()
    assert said == [
        "nothing is in production, so no confidence is known: every row is drawn at random",
        "70 answers asked from 2026-09-01 12:00 to 2026-09-11 09:36 UTC, 0 reviewed",
        "30 more are not sampled: a review of them would count nowhere (docs/reviews.md)",
        "to review now: 20 at random",
        "reviews.xlsx: open it in a spreadsheet, then run `abstain review import reviews.xlsx`",
    ]
    assert len(cells_of(Path("reviews.xlsx"))) == 20
    with pytest.raises(AbstainError, match=r"reviews.xlsx is there already, perhaps with reviews"):
        review("export")
    with pytest.raises(AbstainError, match=r"-o week.csv: the review file is a workbook: end its name in .xlsx"):
        review("export", "-o", "week.csv")
    assert "so few rows are stratified by display and thumb: one a stratum" in review(
        "export", "-n", "1", "-o", "few.xlsx"
    )


def test_import_names_what_it_does_not_take_and_takes_the_rest(data: Path) -> None:
    review("export", "-n", "10", "-o", "week.xlsx")
    with pytest.raises(AbstainError, match=r"week.xlsx: there is no review to import"):
        review("import", "week.xlsx")
    wrong = {6: {"complete": "no"}, 7: {**YES, "correct": "maybe"}, 8: {**YES, "answer": "Another one."}}
    fill(Path("week.xlsx"), lambda number, cells: YES if number < 6 else wrong.get(number, {}))
    said = review("import", "week.xlsx", "--reviewer", "Ann")
    assert said.splitlines()[:4] == [
        f"not taken: reviews!J6: correct is empty: {REMEDIES['correct']}",
        f"not taken: reviews!J7: correct is 'maybe': {REMEDIES['correct']}",
        "not taken: reviews!C8: answer was changed: restore it, or copy the review into a fresh export",
        "week.xlsx: 4 reviewed, 3 not yet, 3 to fix",
    ]
    assert {one.reviewer for one in DataStore(data).iter_rows(Review)} == {"Ann"}
    assert [batch.sources for batch in DataStore(data).read_batches()][1:] == [(f"{REVIEW_QUEUE_PREFIX}-week.jsonl",)]
    review("import", "week.xlsx", "--reviewer", "Ann")
    assert len(list(DataStore(data).iter_rows(Review))) == 4


def test_export_to_the_queue_replaces_what_is_open(data: Path) -> None:
    said = review("export", "-n", "20", "--queue").splitlines()
    assert said[-1] == "20 answers wait in the review queue: /review of the gate, for keys with the role review"
    log = LogDatabase.open_existing(f"sqlite:///{data.parent}/home/decisions.sqlite")
    assert log and count_progress(log) == (0, 20) and not Path("reviews.xlsx").exists()
    review("export", "-n", "5", "--queue")
    assert count_progress(log) == (0, 5)
    with pytest.raises(AbstainError, match="--queue writes no workbook"):
        review("export", "--queue", "-o", "week.xlsx")
