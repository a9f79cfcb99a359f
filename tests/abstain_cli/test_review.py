import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from abstain.config.params import load_params
from abstain.core.codes import Code
from abstain.core.contracts import Review
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.queue import count_progress
from abstain.data.labels.training_table import find_uncounted_reviews
from abstain.data.store.dataset import REVIEW_QUEUE_PREFIX, DataStore
from abstain.ingest.pipeline.run import ingest
from abstain.ingest.report import IngestReport
from abstain.ingest.sources.files import make_explicit_sources
from abstain.review.workbook import read_workbook
from abstain_cli import review as review_cli
from abstain_tasks.data.review import check_reviews
from tests.abstain_cli.conftest import fail, invoke
from tests.checkout import SHIPPED
from tests.factories import NOW, PARAMS, accept_all, later, row
from tests.review.builders import YES, fill
from tests.review.test_candidates import take


@pytest.fixture
def data(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data of a workspace with nothing in production; the flow `ingest` is ingest itself."""

    def flow(files: list[str]) -> IngestReport:
        return ingest(make_explicit_sources(files), workspace / "data", PARAMS, NOW, validate=accept_all)

    monkeypatch.chdir(workspace)
    # In place of the modules: importing Prefect takes longer than all of these tests.
    monkeypatch.setitem(sys.modules, "abstain_tasks.server", SimpleNamespace(server_for_run=nullcontext))
    monkeypatch.setitem(sys.modules, "abstain_flows.ingest", SimpleNamespace(ingest=flow))
    monkeypatch.setattr(review_cli, "datetime", SimpleNamespace(now=lambda zone: NOW))
    Path("params.yaml").write_text(SHIPPED["params.yaml"])
    rows = [row(f"q-{n}", asked_at=later(n / 10).isoformat(), product=("cards", "loans")[n % 2]) for n in range(100)]
    take(workspace / "data", *rows)
    return workspace / "data"


@pytest.mark.heavy
def test_export_omits_the_holdout_to_be_frozen(data: Path) -> None:
    params = load_params(data.parent / "params.yaml")
    uncounted = find_uncounted_reviews(DataStore(data), params.labels, params.split, NOW)
    frozen = params.split.model_copy(update={"holdout_frozen_at": None})
    assert len(uncounted) == 30 and find_uncounted_reviews(DataStore(data), params.labels, frozen, NOW) == {}
    production, answers, omitted, sampled, file = invoke("review", "export", "-n", "100").splitlines()
    assert "nothing is in production" in production and omitted.startswith("30 more are not sampled")
    assert answers == "70 answers asked from 2026-09-01 12:00 to 2026-09-11 09:36 UTC, 0 reviewed"
    assert sampled == "to review now: 70 at random" and "`abstain review import reviews.xlsx`" in file
    rows = read_workbook(data.parent / "reviews.xlsx")
    assert {each.cells["interaction_id"] for each in rows} == {f"q-{n}" for n in range(100)} - uncounted.keys()
    reviews = check_reviews(SimpleNamespace(path=data.parent), rows, NOW)
    assert (reviews.n_unreviewed, reviews.problems) == (70, ())
    assert fail("review", "export") is Code.NOT_WRITABLE
    assert "so few rows are stratified" in invoke("review", "export", "-n", "1", "-o", "few.xlsx")


def test_import_takes_valid_rows_and_names_the_others(data: Path) -> None:
    invoke("review", "export", "-n", "10", "-o", "week.xlsx")
    assert fail("review", "import", "week.xlsx") is Code.NO_ROWS
    wrong = {6: {"complete": "no"}, 7: {**YES, "correct": "maybe"}, 8: {**YES, "answer": "Another one."}}
    fill(Path("week.xlsx"), lambda number, cells: YES if number < 6 else wrong.get(number, {}))
    *problems, counts = invoke("review", "import", "week.xlsx", "--reviewer", "Ann").splitlines()[:4]
    assert [line.split(": ")[1] for line in problems] == ["reviews!J6", "reviews!J7", "reviews!C8"]
    assert counts == "week.xlsx: 4 reviewed, 3 not yet, 3 to fix"
    assert {row.reviewer for row in DataStore(data).iter_rows(Review)} == {"Ann"}
    assert [batch.sources for batch in DataStore(data).read_batches()][1:] == [(f"{REVIEW_QUEUE_PREFIX}-week.jsonl",)]
    invoke("review", "import", "week.xlsx", "--reviewer", "Ann")
    assert len(list(DataStore(data).iter_rows(Review))) == 4


def test_export_queue_replaces_open_answers(data: Path) -> None:
    *_, line = invoke("review", "export", "-n", "20", "--queue").splitlines()
    assert line.startswith("20 answers wait in the review queue")
    log = LogDatabase.open_existing(f"sqlite:///{data.parent}/home/decisions.sqlite")
    assert log and count_progress(log) == (0, 20) and not Path("reviews.xlsx").exists()
    invoke("review", "export", "-n", "5", "--queue")
    assert count_progress(log) == (0, 5)
    assert fail("review", "export", "--queue", "-o", "week.xlsx") is Code.USAGE
