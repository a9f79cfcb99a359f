import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pytest

from abstain.core.contracts import Review
from abstain.core.errors import AbstainError
from abstain.core.json_lines import to_json_lines
from abstain.data.labels.answer_labels import resolve_reviews, select_latest_reviews
from abstain.data.store.dataset import REVIEW_QUEUE_PREFIX, DataStore
from abstain.ingest.pipeline.run import ingest
from abstain.ingest.report import IngestReport
from abstain.ingest.sources.files import make_explicit_sources
from abstain.review.candidates import read_candidates
from abstain.review.export import collect_sample, describe_sample, make_review_file
from abstain.review.import_reviews import parse_reviews
from abstain.review.sampling import ReviewDesign, draw_sample
from abstain.review.workbook import to_bytes
from tests.checkout import shipped_params
from tests.factories import CHUNK, PARAMS, accept_all, later, row, thumb, verdict
from tests.review.builders import SEAL_KEY, cells_of, fill, rows_of
from tests.review.test_candidates import take

FIRST = datetime(2026, 11, 10, 9, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [
        row(
            f"q-{n}",
            asked_at=later(n / 20).isoformat(),
            question=f"=Question {n}?",
            product=("cards", "loans")[n % 2],
            thumb=thumb(("up", "down")[n % 7 == 0], days=n / 20 + 1) if n % 3 else None,
        )
        for n in range(200)
    ]
    take(tmp_path / "data", *rows)
    return tmp_path / "data"


def export(data: Path, size: int, since: datetime | None = None) -> tuple[ReviewDesign, Path]:
    window = read_candidates(DataStore(data), since)
    design = draw_sample(window.frame, size, 1.0, seed=0)
    path = data.parent / f"reviews-{size}.xlsx"
    path.write_bytes(to_bytes(make_review_file(collect_sample(design, window, DataStore(data)), SEAL_KEY)))
    return design, path


def describe(data: Path, size: int, **options: float) -> tuple[str, ...]:
    window = read_candidates(DataStore(data))
    return tuple(describe_sample(draw_sample(window.frame, size, 1.0, 0, **options), window))


def fill_in(path: Path, reviewer: str = "Ann") -> None:
    """Every open row, as people do: some with dates, most without."""

    def review(number: int, cells: dict[str, str]) -> dict[str, object]:
        if cells["complete"]:
            return {}
        moment = "2026-11-09 17:30" if number % 5 == 0 else None
        words = {"complete": "yes", "correct": "no" if number % 4 == 0 else "Yes", "truthful": True}
        return words | {"reviewer": reviewer, "reviewed_at": moment}

    fill(path, review)


def bring(data: Path, path: Path, now: datetime) -> IngestReport:
    known: dict[str, list[Review]] = {}
    for review in DataStore(data).iter_rows(Review):
        known.setdefault(review.interaction_id, []).append(review)
    found = parse_reviews(rows_of(path).values(), now, known)
    assert found.problems == ()
    lines = data.parent / f"{REVIEW_QUEUE_PREFIX}-{path.stem}.jsonl"
    lines.write_bytes(to_json_lines(found.reviews))
    return ingest(make_explicit_sources([str(lines)]), data, PARAMS, now, validate=accept_all)


def weights(data: Path) -> pd.Series:
    """The inclusion probability of the label of each reviewed answer, by interaction."""
    reviews = pd.DataFrame([review.model_dump() for review in DataStore(data).iter_rows(Review)])
    codes, names = pd.factorize(reviews["interaction_id"])
    params = shipped_params().labels
    labels = resolve_reviews(select_latest_reviews(reviews.assign(row=codes), params), params)
    return pd.Series(labels["inclusion_probability"].to_numpy(float), index=names)


@pytest.mark.parametrize(("share", "own"), [(0.0, [5, 50]), (0.4, [8, 80]), (0.6, [10, 100, 2])])
def test_describe_sample_counts_withheld_answers(data: Path, tmp_path: Path, share: float, own: list[int]) -> None:
    take(tmp_path / "some", *(row(f"q-{n}", display="withheld" if n < 10 else "shown") for n in range(40)))
    (line,) = (line for line in describe(tmp_path / "some", 20, withheld_share=share) if "withheld" in line)
    assert [int(number) for number in re.findall(r"\d+", line)] == [10, *own]
    assert "withheld" not in "".join(describe(data, 20, withheld_share=0.5)), "of answers that no gate has decided on"
    take(tmp_path / "all shown", *(row(f"q-{n}", display="shown") for n in range(40)))
    assert "(0%); 10 fewer" in "".join(describe(tmp_path / "all shown", 20, withheld_share=0.5))


def test_export_names_heading_and_page_of_sources(data: Path) -> None:
    own = {"chunk_id": "fees#1", "section_path": ("Gold", "Fees"), "page": 3}
    (data / "chunks.jsonl").write_text(CHUNK.model_copy(update=own).to_json_line() + "\n")
    take(data, row("q-cited", contexts=[{"chunk_id": "fees#1", "text": "t"}]), name="cited.jsonl")
    _, path = export(data, 999)
    (cells,) = (cells for cells in cells_of(path) if cells["interaction_id"] == "q-cited")
    assert cells["contexts"] == "[1] fees#1 (Gold › Fees, page 3)\nt"


def test_export_leaves_out_a_review_too_long_for_a_cell(data: Path) -> None:
    first, _ = export(data, 40)
    words = verdict(days=60, ideal_answer="\N{PILE OF POO}" * 20_000, inclusion_probability=0.2)
    take(data, *({"interaction_id": key, **words} for key in first.rows.index), name=f"{REVIEW_QUEUE_PREFIX}-x.jsonl")
    _, path = export(data, 100)
    assert not set(first.rows.index) & {cells["interaction_id"] for cells in cells_of(path)}
    assert len(cells_of(path)) == 60


@pytest.mark.heavy
def test_export_larger_sample_asks_for_the_rest_and_reweights(data: Path) -> None:
    first, path = export(data, 40)
    assert [cells["interaction_id"] for cells in cells_of(path)] == list(first.rows.index)
    fill_in(path)
    assert (bring(data, path, FIRST).accepted, weights(data).to_dict()) == (40, first.rows["probability"].to_dict())
    moments = {review.reviewed_at for review in DataStore(data).iter_rows(Review)}
    assert moments == {FIRST, datetime(2026, 11, 9, 17, 30, tzinfo=UTC)}
    assert any("60 at random; 40 sampled ones were reviewed before" in line for line in describe(data, 100))
    assert any("rows more than -n" in line for line in describe(data, 10))
    second, larger = export(data, 100)
    assert set(first.rows.index) < set(second.rows.index)
    rows = cells_of(larger)
    assert [bool(cells["complete"]) for cells in rows] == [False] * 60 + [True] * (len(rows) - 60)
    assert 0 < len(rows) - 60 <= 40
    fill_in(larger, "Bob")
    assert bring(data, larger, FIRST + DAY).accepted == len(rows)
    assert weights(data).to_dict() == second.rows["probability"].to_dict()
    assert (1 / weights(data)).sum() == pytest.approx(200)
    ann = [review for review in DataStore(data).iter_rows(Review) if review.reviewer == "Ann"]
    last = {review.interaction_id: review for review in sorted(ann, key=lambda one: one.reviewed_at)}
    verdicts = {key: (one.complete, one.correct, one.truthful) for key, one in last.items()}
    assert verdicts == {one.interaction_id: (one.complete, one.correct, one.truthful) for one in ann[:40]}
    assert bring(data, larger, FIRST + 2 * DAY).duplicate == len(rows)
    with pytest.raises(AbstainError, match="every row of this sample is reviewed already"):
        export(data, 100, later(0))


@pytest.mark.heavy
def test_export_reviews_by_other_means_are_left_alone(data: Path) -> None:
    reviews = ({"interaction_id": f"q-{n}", **verdict(days=60, inclusion_probability=0.5)} for n in range(20))
    take(data, *reviews, name="x.jsonl")
    assert any("20 reviews of this window were sampled by other means" in line for line in describe(data, 100))
    design, path = export(data, 100)
    assert not {f"q-{n}" for n in range(20)} & set(design.rows.index)
    assert all(not cells["complete"] for cells in cells_of(path))
