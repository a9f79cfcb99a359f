import hashlib
import json
from pathlib import Path

import pytest

from abstain.core.contracts import Interaction, Review, Thumb
from abstain.core.errors import AbstainError
from abstain.core.json_lines import read_lines
from abstain.data.store.dataset import DataStore, ErasedUsers
from abstain.data.store.record_keys import make_interaction_identity
from abstain.ingest.erasure import HoldoutChanges, count_changed_answers, erase_rows
from abstain.ingest.quarantine import Quarantine
from tests.factories import alone, bytes_of, interaction, row, thumb, verdict, write_lines
from tests.ingest.builders import read_all, refuse_keys, take


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_lines(
        tmp_path / "a.jsonl",
        row("i-1", thumb=thumb(user="ann", comment="I am Ann"), review=verdict()),
        row("i-2", thumb=thumb(user="bob")),
        row("i-3", thumb=thumb("down")),
        alone(thumb(user="ann"), "i-9"),
        alone(thumb(user="bob"), "i-9"),
        alone(thumb("down", user="ann", comment="as Ann said"), "i-1"),  # not what she had said at that time
    )


@pytest.fixture
def data(tmp_path: Path, file: Path) -> Path:
    report = take(tmp_path / "data", file)
    assert (report.accepted, report.pending, report.quarantined) == (3, 2, 1)
    return tmp_path / "data"


def test_erase_rows_with_interactions_takes_quarantined_rows(tmp_path: Path, data: Path) -> None:
    lines = write_lines(tmp_path / "b.jsonl", row("i-1", answer="as Ann said"))  # another answer than is known
    assert take(data, lines).quarantined == 1 and "as Ann said" in read_all(data)
    assert erase_rows(DataStore(data), "ann", "ann", with_interactions=True)["quarantine"] == 2
    write_lines(lines, row(" i-1", answer="as Ann said, too"))
    assert take(data, lines).quarantined == 1 and "as Ann said" not in read_all(data)


def test_ingest_quarantined_row_loses_thumb_of_an_erased_user(tmp_path: Path, data: Path) -> None:
    erase_rows(DataStore(data), "ann", "ann")
    text = json.dumps(row("i-7", thumb=thumb(user="ann", comment="as Ann said")))
    late = write_lines(tmp_path / "late.jsonl", text)
    assert take(data, late, validate=refuse_keys("interactions/")).quarantined == 1
    (kept,) = (one for path in Quarantine(data).list_paths() for one in Quarantine(data).iter_rows(path))
    assert list(kept.reparse().iter_contents()) == [interaction("i-7")] and "as Ann said" not in read_all(data)
    assert (kept.digest, kept.size) == (hashlib.sha256(text.encode()).hexdigest(), len(text))


def test_erase_rows_everywhere_and_they_stay_out(data: Path, file: Path) -> None:
    assert erase_rows(DataStore(data), "ann", "ann") == {"feedback": 2, "quarantine": 1}
    store = DataStore(data)
    assert [found.user for found in store.iter_rows(Thumb)] == ["bob", None]
    assert [len(list(read_lines(path))) for path in store.list_pending_files().values()] == [1]
    assert (len(list(store.iter_rows(Interaction))), len(list(store.iter_rows(Review)))) == (3, 1)
    assert Quarantine(data).list_paths() == []
    assert read_all(data).count("ann") == 1, "that she is to be kept out, and nothing else"
    again = take(data, file)
    assert (again.accepted, again.duplicate, again.pending, again.quarantined) == (0, 4, 0, 2)
    assert read_all(data).count("ann") == 1
    assert "2 x A106 user: " in again.to_markdown()


def test_erase_rows_with_the_rated_interactions(tmp_path: Path, data: Path, file: Path) -> None:
    counts = {"feedback": 2, "interactions": 1, "reviews": 1, "quarantine": 1}
    assert erase_rows(DataStore(data), "ann", "ann", with_interactions=True) == counts
    assert take(data, file).accepted == 0
    assert [found.interaction_id for found in DataStore(data).iter_rows(Interaction)] == ["i-2", "i-3"]
    feedback = alone(verdict(ideal_answer="as Ann said"), "i-1"), alone(thumb(), "i-1")
    report = take(data, write_lines(tmp_path / "late.jsonl", row("i-1"), *feedback))
    assert (report.accepted, report.quarantined, report.pending) == (0, 3, 0)
    assert "as Ann said" not in read_all(data)


def test_erase_rows_keeps_the_pseudonym_only(data: Path) -> None:
    before = bytes_of(data)
    with pytest.raises(AbstainError, match="'carol'"):
        erase_rows(DataStore(data), "carol", "u-c")
    assert bytes_of(data) == before, "nothing of a user of no row"
    erase_rows(DataStore(data), "ann", "u-5eed")
    assert "ann" not in read_all(data).replace("Ann", "")
    assert DataStore(data).read_erased_users().users == ("u-5eed",)
    assert erase_rows(DataStore(data), "ann", "u-5eed") == {"feedback": 0, "quarantine": 0}, "asked again"


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ({"i-1": True, "i-2": False, "i-3": True, "i-5": True}, HoldoutChanges(0, 0)),
        ({"i-2": False, "i-3": True, "i-5": True}, HoldoutChanges(1, 0)),
        ({"i-1": True, "i-2": False, "i-3": True, "i-5": False}, HoldoutChanges(0, 1)),
        ({"i-2": False, "i-3": True, "i-6": True}, HoldoutChanges(1, 2)),  # one moved out of it, one into it
        ({"i-2": True, "i-3": True, "i-5": True}, None),  # a label has changed as well
        ({"i-1": True, "i-2": False, "i-5": True}, None),  # i-3 was not erased
        ({"i-2": False, "i-3": True, "i-4": True, "i-5": True}, None),  # an answer has come
    ],
)
def test_count_changed_answers_none_if_others_changed(now: dict[str, bool], expected: HoldoutChanges | None) -> None:
    before = {"i-1": True, "i-2": False, "i-3": True, "i-5": True}
    first, second, *corrected = (make_interaction_identity(f"i-{n}").hex() for n in (1, 2, 5, 6))
    assert count_changed_answers(before, now, ErasedUsers(interactions=(first, second)), corrected) == expected


def test_replace_of_an_erased_row_is_rejected_in_one_line(tmp_path: Path, data: Path) -> None:
    erase_rows(DataStore(data), "ann", "ann", with_interactions=True)
    before = read_all(data)
    lines = row("i-1", answer="as Ann said"), alone(thumb("down", user="ann", comment="as Ann said"), "i-2")
    report = take(data, write_lines(tmp_path / "late.jsonl", *lines), replace_reason="a wrong export")
    assert report.to_markdown().count("2 x A106 user: erasure was requested") == 1
    assert not report.replaced and read_all(data) == before
