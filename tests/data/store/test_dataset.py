from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path

import pytest

from abstain.core.codes import Code
from abstain.core.contracts import Interaction, Review, Thumb
from abstain.core.errors import AbstainError
from abstain.core.json_lines import read_lines
from abstain.data.store.dataframes import read_frames
from abstain.data.store.dataset import DataStore, StagedBatch, explain_invalid_file_name
from abstain.data.store.key_index import KeyIndex
from abstain.data.store.record_keys import StoredRow, make_record
from abstain.knowledge.documents.reader import parse_document, read_documents, serialize_document
from tests.factories import bytes_of, feedback, interaction, markdown, review

FIRST = (interaction("b"), interaction("a", answer="two\u2028lines, naïve"), feedback("b", comment="so-so"))
SECOND = (review("a", inclusion_probability=0.25), feedback("a"))


def add_batch(folder: Path, rows: Iterable[StoredRow], files: dict[str, bytes] | None = None) -> KeyIndex:
    store = DataStore(folder)
    index = store.build_key_index()
    with StagedBatch(store) as staging:
        staging.append([make_record(row) for row in rows], index)
        for name, content in (files or {}).items():
            staging.stage_file(name, content)
        staging.publish()
    return index


def test_data_store_reads_rows_in_order_of_arrival(tmp_path: Path) -> None:
    add_batch(tmp_path / "data", FIRST, {"documents/fees.md": markdown().encode()})
    add_batch(tmp_path / "data", SECOND)
    store = DataStore(tmp_path / "data")
    assert tuple(store.require_interactions().iter_rows(Interaction)) == FIRST[:2]
    assert tuple(store.iter_rows(Thumb)) == (FIRST[2], SECOND[1])
    assert tuple(store.iter_rows(Review)) == SECOND[:1]
    assert [document.doc_id for document in read_documents(store.list_document_files())] == ["fees"]
    assert store.read_interactions(["a"]) == [FIRST[1]]


def test_staged_batch_adds_parts_only(tmp_path: Path) -> None:
    add_batch(tmp_path / "data", FIRST)
    before = bytes_of(tmp_path / "data")
    tables = {"interactions/000001.jsonl", "feedback/000001.jsonl"}
    empty = {"reviews/000001.jsonl", "documents.jsonl", "chunks.jsonl", "batches.jsonl"}
    assert before.keys() == tables | empty, "what DVC is to find"
    assert all(not before[name].strip() for name in empty)
    assert before["interactions/000001.jsonl"].decode() == "".join(f"{row.to_json_line()}\n" for row in FIRST[:2])
    add_batch(tmp_path / "data", SECOND)
    after = bytes_of(tmp_path / "data")
    assert after.keys() - before.keys() == {"reviews/000002.jsonl", "feedback/000002.jsonl"}
    assert {name: after[name] for name in before} == before
    assert [path.name for path in tmp_path.iterdir()] == ["data"], "nothing is left beside it"


def test_staged_batch_unpublished_leaves_nothing(tmp_path: Path) -> None:
    add_batch(tmp_path / "data", FIRST)
    before, store = bytes_of(tmp_path), DataStore(tmp_path / "data")
    with pytest.raises(KeyboardInterrupt), StagedBatch(store) as staging:
        staging.append([make_record(row) for row in SECOND], store.build_key_index())
        staging.stage_file("chunks.jsonl", b"")
        raise KeyboardInterrupt
    assert bytes_of(tmp_path) == before


def test_publish_moves_referenced_files_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, replace, moved = tmp_path / "data", Path.replace, list[str]()

    def record_move(self: Path, target: Path) -> Path:
        if data in target.parents:
            moved.append(target.relative_to(data).parts[0])
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", record_move)
    add_batch(data, FIRST, {"sources/drop.json": b"{}", "batches.jsonl": b"", "documents/fees.md": markdown().encode()})
    tables = ["documents", "documents.jsonl", "chunks.jsonl", "interactions", "feedback", "reviews"]
    assert moved == [*tables, "batches.jsonl", "sources"]


def test_publish_named_files_only(tmp_path: Path) -> None:
    store = DataStore(tmp_path / "data")
    with StagedBatch(store) as staging:
        staging.append([make_record(FIRST[0])], KeyIndex())
        staging.stage_file("quarantine/x.jsonl", b"?\n")
        staging.publish("quarantine")
    assert set(bytes_of(tmp_path / "data")) == {"quarantine/x.jsonl"}


def test_key_index_finds_every_row(tmp_path: Path) -> None:
    while_writing = add_batch(tmp_path / "data", FIRST)
    add_batch(tmp_path / "data", SECOND)
    index = DataStore(tmp_path / "data").build_key_index()
    assert (len(while_writing), len(index)) == (3, 5)
    for row in (*FIRST, *SECOND):
        line = make_record(row)
        entry = index.find(line.identity)
        assert entry is not None and (entry.content, entry.timestamp_us) == (line.content, line.timestamp_us)
        assert index.read_row(entry) == row
    assert index.get_asked_at("a") == FIRST[0].asked_at
    assert index.get_asked_at("nobody") is None


def test_make_record_identity_by_contract() -> None:
    thumbs = [feedback("b", user="u"), feedback("b", "down", user="u"), feedback("b", user="w")]
    thumbs += [feedback("b", days=1.5, user="u"), feedback("b", "down")]
    reviews = [review("a", right=False), review("a", reviewer="sme-2")]
    records = [make_record(row) for row in (*FIRST, *SECOND, interaction("b", answer="other"), *thumbs, *reviews)]
    assert len({record.key for record in records}) == len(records) - 1, "an interaction goes by its id"
    assert {"interactions/a", "interactions/b"} <= {record.key for record in records}
    equal = {(i, j) for i in range(len(records)) for j in range(i) if records[i].identity == records[j].identity}
    assert equal == {(5, 0), (7, 6), (11, 3)}, "two anonymous thumbs differ, a user has one at a time"


def test_data_store_missing_folder_has_no_rows(tmp_path: Path) -> None:
    store = DataStore(tmp_path / "nowhere")
    documents = read_documents(store.list_document_files())
    assert not [*store.iter_rows(Interaction), *documents, *store.iter_chunks(), *store.read_batches()]
    assert not store.list_pending_files() and store.read_source_state("inbox") == {}
    assert len(store.build_key_index()) == 0 and read_frames(store).interactions.empty
    with pytest.raises(AbstainError) as caught:
        store.require_interactions()
    assert caught.value.code == Code.NO_ROWS and not (tmp_path / "nowhere").exists()


def test_read_frames_columns_of_all_parts(tmp_path: Path) -> None:
    add_batch(tmp_path / "data", FIRST)
    add_batch(tmp_path / "data", (*SECOND, interaction("c", group="g", product="cards")))
    frames = read_frames(DataStore(tmp_path / "data"))
    assert list(frames.interactions["interaction_id"]) == ["b", "a", "c"]
    assert list(frames.interactions["group"]) == ["b", "a", "g"]
    assert list(frames.interactions["batch"]) == ["000001", "000001", "000002"]
    assert frames.interactions["product"].isna().tolist() == [True, True, False]
    assert frames.interactions["asked_at"].iloc[0] == FIRST[0].asked_at
    assert list(frames.thumbs["thumb"]) == ["up", "up"]
    assert list(frames.reviews["inclusion_probability"]) == [0.25]


@pytest.mark.parametrize(
    ("line", "message", "is_indexable"),
    [
        (b'{"interaction_id": "i-1"', "line 2: row: Invalid JSON", False),
        (b'{"interaction_id": "i-1", "given_at": "2026-01-01T00:00:00Z", "thumb": "x", "user": null}', "thumb: ", True),
        (b"[]", "line 2: row: ", False),
        (b'{"interaction_id": "\xff"}', "line 2: not valid UTF-8", False),
    ],
)
def test_iter_rows_broken_row_names_line(tmp_path: Path, line: bytes, message: str, is_indexable: bool) -> None:
    part = tmp_path / "feedback" / "000001.jsonl"
    part.parent.mkdir()
    part.write_bytes(feedback().to_json_line().encode() + b"\n" + line + b"\n")
    with pytest.raises(AbstainError, match=f"feedback/000001.jsonl .*{message}"):
        list(DataStore(tmp_path).iter_rows(Thumb))
    with nullcontext() if is_indexable else pytest.raises(AbstainError, match="line 2: no row of feedback"):
        DataStore(tmp_path).build_key_index()


def test_read_documents_reads_what_was_serialized_under_its_id(tmp_path: Path) -> None:
    fees = parse_document(markdown().encode(), "fees.md")
    store = DataStore(tmp_path / "data")
    add_batch(tmp_path / "data", FIRST, {"documents/fees.md": serialize_document(fees)})
    assert list(read_documents(store.list_document_files())) == [fees]
    add_batch(tmp_path / "data", SECOND, {"documents/tariff.md": markdown().encode()})
    with pytest.raises(AbstainError, match=r"rename it to fees\.md"):
        list(read_documents(store.list_document_files()))


def test_read_lines_skips_blank_lines(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes('\n  \n{"a": "x\u2028y"}\n{"b": 1}'.encode())
    found = list(read_lines(tmp_path / "a.jsonl"))
    assert [text for _, text in found] == ['{"a": "x\u2028y"}'.encode(), b'{"b": 1}']
    assert [offset for offset, _ in found] == [4, 4 + len(found[0][1]) + 1]


@pytest.mark.parametrize("doc_id", ["../fees", "a/b", ".hidden", "a#b", "a b", "x" * 129, "é"])
def test_explain_invalid_file_name_examples(doc_id: str) -> None:
    assert "cannot name a file" in str(explain_invalid_file_name(doc_id))
    assert explain_invalid_file_name("cards-gold.v2") is None
