import re
import sys
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from abstain.config.params import load_params
from abstain.core.codes import Code
from abstain.core.contracts import Chunk, Review
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.queue import count_progress
from abstain.data.labels.training_table import find_uncounted_reviews
from abstain.data.store.dataset import REVIEW_QUEUE_PREFIX, DataStore
from abstain.ingest.report import IngestReport
from abstain.knowledge.documents.chunks import chunk_document
from abstain.knowledge.documents.reader import parse_document, serialize_document
from abstain.llm.features.cache import CacheNamespace, FeatureCache
from abstain.llm.features.maintenance import prune
from abstain.review.workbook import read_workbook
from abstain_cli import cache as cache_cli
from abstain_cli import review as review_cli
from abstain_tasks.data.review import check_reviews
from benchmarks import recall
from tests.abstain_cli.conftest import fail, invoke
from tests.checkout import SHIPPED
from tests.factories import NOW, later, row, write_lines
from tests.ingest import builders
from tests.knowledge.builders import BagOfWords
from tests.review.builders import YES, fill
from tests.review.test_candidates import take

SPACE = CacheNamespace("tiny@1", "float32", "HiddenStates(layer=2)", "1")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ABSTAIN_FEATURES", str(tmp_path))
    monkeypatch.setattr(cache_cli.console, "width", 160)
    return tmp_path


def test_cache_stats(root: Path) -> None:
    assert "holds no features yet" in invoke("cache", "stats")
    for space in (SPACE, replace(SPACE, engine="2")):
        FeatureCache(root, space).write({key: torch.zeros(100, 4) for key in "abc"})
    printed = invoke("cache", "stats")
    for word in (SPACE.digest, *vars(SPACE).values(), "3", "KiB", str(root)):
        assert word in printed


def test_cache_verify(root: Path) -> None:
    FeatureCache(root, SPACE).write({"a": torch.zeros(2, 4)})
    assert "1 shards checked, 0 damaged" in invoke("cache", "verify")
    (shard,) = root.rglob("*.safetensors")
    shard.write_bytes(shard.read_bytes()[:-1])
    lines = invoke("cache", "verify", status=1).splitlines()
    assert lines[0].startswith(f"damaged: {SPACE.digest}/{shard.name}") and lines[1] == "1 shards checked, 1 damaged"
    assert "0 shards checked, 0 damaged" in invoke("cache", "verify")


def test_cache_prune(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("abstain_tasks.data.feature_cache.collect_needed_keys", lambda: {SPACE.digest: {"a"}})
    for key in "ab":
        FeatureCache(root, SPACE).write({key: torch.zeros(2, 4)})
    assert re.search(r"^0 files", invoke("cache", "prune"), re.MULTILINE)
    command = ("cache", "prune", "--older-than-days", "0")
    assert re.search(r"^1 files, .* would be removed", invoke(*command, "--dry-run"), re.MULTILINE)
    assert FeatureCache(root, SPACE).find_missing("ab") == []
    assert re.search(r"^1 files, .* removed", invoke(*command), re.MULTILINE)
    assert FeatureCache(root, SPACE).find_missing("ab") == ["b"]
    assert prune(root, {}, timedelta(0), dry_run=True).names


PAGES = {
    "gold.md": "---\ndoc_id: gold\ntitle: Gold\nproduct: cards\nentitlements: []\nupdated_at: 2026-08-01T00:00:00Z\n---\n"
    "# Fees\n\nThe fee is a fee\n\n# Limits\n\nThe limit\n",
    "lost.md": "---\nupdated_at: 2026-08-01\n---\nThe fee\n",
    "staff.html": '<title>Staff</title><meta name="doc_id" content="staff"><meta name="entitlements" content="staff">'
    '<meta name="updated_at" content="2026-08-01T00:00:00Z"><ul><li>fee fee fee</ul>',
}


@pytest.fixture
def encoder(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> BagOfWords:
    """The data of a workspace, and an encoder that needs no model."""
    encoder = BagOfWords()
    monkeypatch.setattr("abstain.knowledge.retrieval.retriever.SentenceEncoder", lambda device: encoder)
    documents = [parse_document(text.encode(), name) for name, text in PAGES.items()]
    write(workspace, [chunk for document in documents for chunk in chunk_document(document)])
    (workspace / "data" / "documents").mkdir()
    for document in documents:
        (workspace / "data" / "documents" / f"{document.doc_id}.md").write_bytes(serialize_document(document))
    return encoder


def write(root: Path, chunks: list[Chunk]) -> None:
    (root / "data").mkdir(exist_ok=True)
    (root / "data" / "chunks.jsonl").write_text("".join(f"{chunk.to_json_line()}\n" for chunk in chunks))


def test_search_prints_only_permitted_chunks(encoder: BagOfWords, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = invoke("kb", "search", "fee")
    hits = re.findall(r"^(\d)\. (\d\.\d{3})  (\w+)#\w{10}(.*)$", printed, re.MULTILINE)
    assert hits == [("1", "1.000", "gold", ""), ("2", "0.000", "gold", "")]
    assert "   Gold › Fees\n   The fee is a fee\n" in printed
    printed = invoke("kb", "search", "fee", "-e", "staff", "-e", "board", "-k", "1", "--doc", "staff")
    assert re.search(r"^1\. 1\.000  staff#\w{10}  needs staff$", printed, re.MULTILINE)
    assert "staff#" not in invoke("kb", "search", "fee", "-e", "board", "-k", "99")
    assert invoke("kb", "search", "fee", "-e", "staff", "--product", "cards").count("gold#") == 2
    assert invoke("kb", "search", "fee", "--doc", "staff").startswith("nothing that this user may read\n")
    monkeypatch.setenv("ABSTAIN_INDEX", "http://search:9200")
    assert fail("kb", "search", "fee") is Code.BAD_SETTING


def test_commands_count_what_nobody_can_read(encoder: BagOfWords, workspace: Path) -> None:
    printed = invoke("kb", "search", "fee", "-e", "nobody", "-e", "staff", "-k", "99")
    assert "lost#" not in printed and printed.count("staff#") == 1
    for text in (printed, invoke("kb", "sync")):
        assert "nobody can read 1 documents" in text and "(lost)" in text
    write(workspace, chunk_document(parse_document(PAGES["staff.html"].encode(), "staff.html")))
    assert "nobody" not in invoke("kb", "sync")


def test_sync_counts_chunks_and_encodes_only_new_ones(encoder: BagOfWords) -> None:
    assert invoke("kb", "sync").startswith("4 chunks written, 0 removed; 4 can be found; ABSTAIN_INDEX is not set")
    encoded = len(encoder.encoded)
    invoke("kb", "sync")
    invoke("kb", "search", "fee")
    assert encoder.encoded[encoded:] == ["fee"]


def test_sync_removes_tombstones_and_needs_chunks(encoder: BagOfWords, tmp_path: Path) -> None:
    """A shared index has to forget what was removed."""
    chunks = chunk_document(parse_document(PAGES["gold.md"].encode(), "gold.md"))
    write(tmp_path, [chunk.model_copy(update={"removed_at": chunk.updated_at}) for chunk in chunks])
    assert invoke("kb", "sync").startswith("0 chunks written, 0 removed; 0 can be found")
    assert fail("kb", "search", "fee") is Code.NO_ROWS
    write(tmp_path, [])
    assert fail("kb", "sync") is Code.NO_ROWS


def test_recall_over_a_file(encoder: BagOfWords, tmp_path: Path) -> None:
    rows = [
        {"question": "fee", "gold": ["gold"]},
        {"question": "limit", "gold": ["gold"]},
        {"question": "fee", "gold": ["staff"], "entitlements": ["staff"]},
        {"question": "fee", "gold": ["staff"]},
    ]
    file = write_lines(tmp_path / "q.jsonl", *rows)
    printed = invoke(str(file), app=recall.app)
    recalls = dict(re.findall(r"│ (\d+) +│ (\d\.\d{3}) ", printed))
    assert recalls == {"1": "0.667", "3": "1.000", "5": "1.000", "10": "1.000", "25": "1.000"}
    assert "3 questions over 4 chunks; 1 questions left out" in printed
    write_lines(file, rows[3])
    assert fail(str(file), app=recall.app) is Code.NO_ROWS


@pytest.fixture
def data(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data of a workspace with nothing in production; the flow `ingest` is ingest itself."""

    def flow(files: list[str]) -> IngestReport:
        return builders.take(workspace / "data", *files)

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


@pytest.mark.heavy
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
