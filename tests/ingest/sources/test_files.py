import codecs
import gzip
import hashlib
import json
import math
import os
import re
import subprocess
import time
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem
from hypothesis import given
from hypothesis import strategies as st

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.ingest.parsing import ParsedRow, make_too_large_reason
from abstain.ingest.sources import SourceReader, files
from abstain.ingest.sources import lines as module
from abstain.ingest.sources.document_files import DocumentRules
from abstain.ingest.sources.files import ExplicitFiles, FileSource, make_explicit_sources
from abstain.ingest.sources.lines import OversizedLine, read_whole, split_lines, to_utf8
from tests.factories import alone, markdown, row, thumb, verdict, write_lines
from tests.ports import free_port

THUMBS = "interaction_id,given_at,thumb\ni-1,2026-09-02T12:00:00Z,up\n"


def read(path: Path | str, state: Any = None, *, scheduled: bool = False, **options: Any) -> tuple[list, SourceReader]:
    source = FileSource if scheduled else ExplicitFiles
    reading = source(name="here", url=str(path), **options).read(state or {})
    rows = list(reading)
    assert json.loads(json.dumps(reading.outcome.state)) == reading.outcome.state
    return rows, reading


def contents(rows: list[ParsedRow]) -> list[str]:
    return [type(part).__name__ for found in rows for part in found.iter_contents()]


TWO, MANY = [row("a"), row("b")], [row()] * 10_000
OTHER_JSON = {
    "array": (json.dumps(TWO), "JSON array"),
    "array over lines": (json.dumps(TWO, indent=2), "JSON array"),
    "empty array": ("\n[]\n", "JSON array"),
    "object over lines": (json.dumps(row(), indent=2), "JSON object over several lines"),
    "long array": (json.dumps(MANY), "JSON array"),
}


@pytest.mark.parametrize(("content", "problem"), OTHER_JSON.values(), ids=OTHER_JSON)
def test_files_json_that_is_no_json_lines_is_an_error(tmp_path: Path, content: str, problem: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(content)
    with pytest.raises(AbstainError, match=f"a.jsonl: .*{problem}"):
        read(file)
    (refused,), _ = read(file, scheduled=True)
    assert problem in refused.reasons[0].message


@pytest.mark.parametrize("first", ["{", "[", "[1, 2]", '{"interaction_id":', '{"a": "x', json.dumps(row())[:60]])
def test_files_broken_first_row_is_refused_alone(tmp_path: Path, first: str) -> None:
    rows, _ = read(write_lines(tmp_path / "a.jsonl", first, row("a"), row("b")))
    assert [bool(found.reasons) for found in rows] == [True, False, False]


def test_files_row_without_its_unusable_numbers_is_noted(tmp_path: Path) -> None:
    lines = [row(f"i-{number}", writer_scores={"p": p}) for number, p in enumerate([math.inf, 0.5, math.nan])]
    (source,) = make_explicit_sources([str(write_lines(tmp_path / "a.jsonl", *lines))])
    reading = source.read({})
    assert [parsed_row.interaction is not None for parsed_row in reading] == [True] * 3
    assert [note.rpartition(": ")[2] for note in reading.outcome.notes] == ["writer_scores.p (2)"]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://me:sec@ret@127.0.0.1:{port}/a.jsonl?signature=secret", "http://127.0.0.1:.*Connection refused"),
        ("https://me:sec@ret@127.0.0.1:{port}/a.jsonl?signature=secret", "https://127.0.0.1:.*Connection refused"),
        ("http:///a.jsonl", "is not a valid URL"),
        ("nonsense://ann:secret@host/x", "nonsense://host/x: .*Protocol not known: nonsense"),
    ],
)
def test_files_unreachable_url_is_an_error_without_password(url: str, message: str) -> None:
    with pytest.raises(AbstainError, match=message) as refused:
        read(url.format(port=free_port()))
    assert not any(secret in str(refused.value) for secret in ("sec", "ret@", "signature"))


def test_files_folder_of_every_kind_gives_documents_first(tmp_path: Path) -> None:
    for folder in ("z", ".git"):
        (tmp_path / folder).mkdir()
    for name in ("note.txt", ".hidden.jsonl", ".git/x.md"):
        (tmp_path / name).write_text("?")
    one_row = json.dumps(row(thumb=thumb(), review=verdict(ideal_answer="a\u2028b\x85c")), ensure_ascii=False)
    (tmp_path / "a.jsonl").write_text(one_row + "\r\n", encoding="utf-16")
    (tmp_path / "b.csv").write_text(THUMBS)
    (tmp_path / "c.JSONL.gz").write_bytes(gzip.compress(json.dumps(alone(verdict())).encode()))
    (tmp_path / "d.csv.gz").write_bytes(gzip.compress(THUMBS.encode()))
    pq.write_table(pa.Table.from_pylist([alone(thumb())]), tmp_path / "e.parquet")
    (tmp_path / "z" / "fees.md").write_text(markdown())
    (tmp_path / "z" / "page.html").write_bytes(
        '<meta charset="iso-8859-1"><title>Geb\u00fchren</title><meta name="doc_id" content="page">'
        '<meta name="updated_at" content="2026-08-01T00:00:00Z"><body><p>There is no fee.</p></body>'.encode("latin-1")
    )
    rows, reading = read(tmp_path)
    assert [found.reasons for found in rows if found.reasons] == []
    assert contents(rows) == ["Document"] * 2 + ["Interaction", "Thumb", "Review", "Thumb", "Review"] + ["Thumb"] * 2
    names = ["z/fees.md", "z/page.html", "a.jsonl", "b.csv", "c.JSONL.gz", "d.csv.gz", "e.parquet"]
    assert [found.source for found in rows] == names
    assert [found.is_document for found in rows] == [True] * 2 + [False] * 5
    assert rows[1].document.title == "Geb\u00fchren" and rows[2].review.ideal_answer == "a\u2028b\x85c"
    assert not rows[2].raw.endswith(b"\r")
    assert (reading.outcome.ignored, reading.outcome.present_doc_ids) == (("note.txt",), None)


def test_files_only_changed_files_are_read_again(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", row("a"))
    write_lines(tmp_path / "b.jsonl", row("b"))
    first, reading = read(tmp_path)
    assert len(first) == 2
    again, second = read(tmp_path, reading.outcome.state)
    assert (again, second.outcome.state) == ([], reading.outcome.state)
    write_lines(tmp_path / "b.jsonl", row("b"), row("c"))
    write_lines(tmp_path / "d.jsonl", row("d"))
    (tmp_path / "a.jsonl").unlink()
    third, last = read(tmp_path, second.outcome.state)
    assert [(found.source, found.line) for found in third] == [("b.jsonl", 1), ("b.jsonl", 2), ("d.jsonl", 1)]
    assert last.outcome.state["files"].keys() == {"b.jsonl", "d.jsonl"}
    status, replacement = (tmp_path / "d.jsonl").stat(), write_lines(tmp_path / "new", row("e"))
    os.utime(replacement, ns=(status.st_atime_ns, status.st_mtime_ns))
    replacement.replace(tmp_path / "d.jsonl")
    assert [found.source for found in read(tmp_path, last.outcome.state)[0]] == ["d.jsonl"], "of the same size and time"


def test_files_growing_file_is_read_again(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", row("a"), row("b"))
    reading = FileSource(name="here", url=str(tmp_path)).read({})
    rows = iter(reading)
    next(rows)
    time.sleep(0.01)
    with file.open("a") as end:
        end.write(json.dumps(row("c")) + "\n")
    list(rows)
    assert [found.line for found in read(tmp_path, reading.outcome.state)[0]] == [1, 2, 3]


def test_files_mirror_reports_vanished_but_not_all_documents(tmp_path: Path) -> None:
    names = {"fees", "rates", "cards", "hours"}
    for name in names:
        (tmp_path / f"{name}.md").write_text(markdown(doc_id=name))
    _, reading = read(tmp_path, mirror=True, scheduled=True)
    assert (reading.outcome.present_doc_ids, reading.outcome.removed_doc_ids) == (names, frozenset())
    (tmp_path / "fees.md").unlink()
    (tmp_path / "rates.md").write_text("---\ntitle: [\n---\n")  # refused, and still there
    (tmp_path / "cards.md").write_text("")  # without a text, and still there
    (tmp_path / "hours.md").rename(tmp_path / "times.md")
    rows, second = read(tmp_path, reading.outcome.state, mirror=True, scheduled=True)
    assert [found.source for found in rows if found.reasons] == ["cards.md", "rates.md"]
    assert [found.source for found in rows if found.document] == ["times.md"]
    assert rows[0].is_document and [reason.code for reason in rows[0].reasons] == [Code.INVALID_ROW]
    assert (second.outcome.present_doc_ids, second.outcome.removed_doc_ids) == (names - {"fees"}, {"fees"})
    rows, third = read(tmp_path, second.outcome.state, mirror=True, scheduled=True)
    assert rows == []
    assert (third.outcome.present_doc_ids, third.outcome.removed_doc_ids) == (names - {"fees"}, frozenset())
    for file in tmp_path.iterdir():
        file.unlink()
    with pytest.raises(AbstainError, match="'here' is gone", check=lambda error: error.code is Code.NOT_READABLE):
        read(tmp_path, third.outcome.state, mirror=True, scheduled=True)


def test_files_empty_folder_is_an_error_unless_scheduled(tmp_path: Path) -> None:
    assert read(tmp_path, scheduled=True)[0] == []
    with pytest.raises(AbstainError, check=lambda error: error.code is Code.NO_ROWS):
        read(tmp_path)


UNREADABLE = {
    "empty.jsonl": (b"", "the file is empty"),
    "blank.jsonl": (b"\xef\xbb\xbf \n\n", "the file is empty"),
    "empty.csv": (b"", "the file is empty"),
    "empty.jsonl.gz": (gzip.compress(b"", mtime=0), "the file is empty"),
    "header.csv": (b"a,b\n1,2\n", "its first line names no known column: begin with a line such as"),
    "twice.csv": (b"thumb,thumb\nup,up\n", "the column 'thumb' is there twice"),
    "cut.csv.gz": (gzip.compress(THUMBS.encode(), mtime=0)[:-9], "cannot be read: Compressed file ended"),
    "no.jsonl.gz": (b"{}", "cannot be read: Not a gzipped file"),
    "no.parquet": (b"PAR1 or not", "cannot be read: Parquet magic bytes not found"),
}
"""Name -> content that cannot be read, and why."""


def test_files_unreadable_is_an_error_scheduled_a_rejected_row(tmp_path: Path) -> None:
    for name, (content, message) in UNREADABLE.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(AbstainError, match=rf"^.*{name}: .*{re.escape(message)}.*\Z"):
            read(tmp_path / name)
    write_lines(tmp_path / "a.jsonl", row())
    (tmp_path / "z.csv").write_text(THUMBS)
    rows, reading = read(tmp_path, scheduled=True)
    assert contents(rows) == ["Interaction", "Thumb"]
    refused = {found.source: found for found in rows if found.reasons}
    assert refused.keys() == UNREADABLE.keys()
    assert len({found.digest for found in refused.values()}) == len(UNREADABLE)
    for name, found in refused.items():
        reason = str(found.reasons[0])
        assert reason.startswith(f"file: {UNREADABLE[name][1]}") and str(tmp_path) not in reason and found.line == 1
    again, second = read(tmp_path, reading.outcome.state, scheduled=True)
    assert again == [], "what cannot be read is not read again until it changes"
    assert second.outcome.state == reading.outcome.state
    (tmp_path / "empty.jsonl").write_text(json.dumps(row("b")))
    (tmp_path / "header.csv").write_text("a,b\n")
    (accepted, refused_again), _ = read(tmp_path, second.outcome.state, scheduled=True)
    assert contents([accepted]) == ["Interaction"]
    assert refused_again.reasons == refused["header.csv"].reasons
    assert refused_again.digest != refused["header.csv"].digest


def test_files_file_that_could_not_be_reached_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lines(tmp_path / "a.jsonl", row())
    with monkeypatch.context() as broken:
        broken.setattr("fsspec.implementations.local.LocalFileOpener.read", lambda *_: os.read(-1, 1))
        rows, reading = read(tmp_path, scheduled=True)
    assert [reason.code for found in rows for reason in found.reasons] == [Code.NOT_READABLE]
    assert contents(read(tmp_path, reading.outcome.state, scheduled=True)[0]) == ["Interaction"]


@pytest.mark.parametrize("name", ["no.jsonl", "a.pptx"])
def test_files_missing_or_other_file_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.pptx").write_bytes(b"PK")
    with pytest.raises(AbstainError, match=f"{name}: "):
        read(tmp_path / name)


def test_files_deleted_file_is_skipped_deleted_folder_an_error(tmp_path: Path) -> None:
    place = tmp_path / "in"
    place.mkdir()
    for name in "abc":
        write_lines(place / f"{name}.jsonl", row(name))
    source = FileSource(name="here", url=str(place))
    reading = source.read({})
    rows = iter(reading)
    next(rows)
    (place / "b.jsonl").unlink()
    assert [found.source for found in rows] == ["c.jsonl"]
    assert reading.outcome.state["files"].keys() == {"a.jsonl", "c.jsonl"}
    rows = iter(source.read({}))
    next(rows)
    place.rename(tmp_path / "away")
    with pytest.raises(AbstainError, match="in: no such file or folder"):
        list(rows)


def test_make_explicit_sources_names_them_after_their_files() -> None:
    with pytest.raises(AbstainError, match="nothing to ingest"):
        make_explicit_sources([])
    places = ["a/b.jsonl", "a/c/", "s3://b/x", "http://host/a.jsonl?signature=secret"]
    assert [source.name for source in make_explicit_sources(places)] == ["b.jsonl", "c", "x", "a.jsonl"]


def test_files_links_inside_are_followed_broken_ones_skipped(tmp_path: Path) -> None:
    hidden, folder = tmp_path / "real" / ".hidden", tmp_path / "inbox"
    (hidden / "more").mkdir(parents=True)
    folder.symlink_to(hidden.parent)
    links = {"a.jsonl": write_lines(hidden / "x.jsonl", row("x")), "b.jsonl": tmp_path / "no", "c.md": hidden / "more"}
    for name, target in links.items():
        (folder / name).symlink_to(target)
    rows, reading = read(folder, scheduled=True)
    assert [found.source for found in rows] == ["a.jsonl"]
    write_lines(hidden / "x.jsonl", row("x"), row("y"))
    assert len(read(folder, reading.outcome.state)[0]) == 2
    (tmp_path / "b.jsonl").symlink_to(hidden / "x.jsonl")
    assert contents(read(tmp_path / "b.jsonl")[0]) == ["Interaction"] * 2, "a user may name a link"


def test_files_folder_that_may_not_be_listed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("of-may", ".hidden"):
        (tmp_path / folder).mkdir()
    write_lines(tmp_path / "a.jsonl", row("a"))
    ls = LocalFileSystem.ls

    def forbid(fs: LocalFileSystem, path: str, **options: Any) -> Any:
        if path.endswith(("of-may", ".hidden")):  # root may list any folder
            raise PermissionError(13, "Permission denied")
        return ls(fs, path, **options)

    monkeypatch.setattr(LocalFileSystem, "ls", forbid)
    with pytest.raises(AbstainError, match="of-may: cannot be read: Permission denied"):
        read(tmp_path)


@pytest.mark.slow
def test_files_s3_bucket_is_read(s3: str) -> None:
    import boto3

    bucket, client = s3.removeprefix("s3://"), boto3.client("s3")
    client.put_object(Bucket=bucket, Key="in/a.jsonl", Body=json.dumps(row("a")).encode())
    client.put_object(Bucket=bucket, Key="in/deep/fees.md", Body=markdown().encode())
    client.put_object(Bucket=bucket, Key="in/.hidden.jsonl", Body=b"?")
    rows, reading = read(f"{s3}/in")
    assert [found.source for found in rows] == ["deep/fees.md", "a.jsonl"]
    assert contents(rows) == ["Document", "Interaction"]
    assert [found.source for found in read(f"{s3}/in/a.jsonl")[0]] == ["a.jsonl"]
    assert read(f"{s3}/in", reading.outcome.state)[0] == []
    client.put_object(Bucket=bucket, Key="in/a.jsonl", Body=json.dumps(row("b")).encode())  # as long as before
    assert [found.source for found in read(f"{s3}/in", reading.outcome.state)[0]] == ["a.jsonl"]
    with pytest.raises(AbstainError, match="no such file or folder"):
        read(f"{s3}/elsewhere")


@pytest.mark.slow
@given(
    st.lists(st.binary(max_size=200) | st.just(json.dumps(row()).encode()), max_size=6).map(b"\n".join),
    st.sampled_from(files.SUFFIXES),
)
def test_files_bytes_are_rows_or_error(tmp_path_factory: pytest.TempPathFactory, content: bytes, suffix: str) -> None:
    file = tmp_path_factory.getbasetemp() / f"any{suffix}"
    file.write_bytes(gzip.compress(content) if suffix.endswith(".gz") and len(content) % 3 else content)
    found_anyway, _ = read(file, scheduled=True)
    try:
        rows, _ = read(file)
    except AbstainError as error:
        assert str(error).startswith(str(file))
        (reason,) = found_anyway[-1].reasons
        assert str(reason) == str(error).replace(f"{file}: ", "file: ", 1)
        return
    assert found_anyway == rows
    assert all(bool(found.reasons) != bool(list(found.iter_contents())) for found in rows)
    if suffix == ".jsonl" and content[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        assert len(rows) == sum(bool(line.strip()) for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n"))


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "a.md", "a.csv"])
def test_files_link_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    secret, folder = tmp_path / name, tmp_path / "inbox"
    folder.mkdir()
    secret.write_text("secret")
    (folder / name).symlink_to(secret)
    (found,), _ = read(folder, scheduled=True)
    assert str(found.reasons[0]).startswith(f"file: is a link out of {folder}") and b"secret" not in found.raw
    with pytest.raises(AbstainError, match="is a link out of"):
        read(folder)


cuts = st.lists(st.integers(0, 40), max_size=6)


def cut_chunks(content: bytes, at: list[int]) -> list[bytes]:
    places = [0, *sorted(min(one, len(content)) for one in at), len(content)]
    return [content[a:b] for a, b in pairwise(places)]


@given(st.lists(st.binary().map(lambda line: line.replace(b"\n", b"")), max_size=8), st.booleans(), cuts)
def test_lines_do_not_depend_on_chunks(wanted: list[bytes], ends: bool, at: list[int]) -> None:
    content = b"\n".join(wanted) + (b"\n" if ends else b"")
    expected = content.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert list(split_lines(cut_chunks(content, at))) == expected


@given(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16-le", "utf-16-be"]),
    cuts,
)
def test_utf8_decodes_every_encoding_with_a_mark(text: str, encoding: str, at: list[int]) -> None:
    mark = {"utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}.get(encoding, b"")
    text = text.lstrip("\ufeff\ufffe")
    assert b"".join(to_utf8(cut_chunks(mark + text.encode(encoding), at))) == text.encode()


def test_utf8_invalid_utf16_spoils_its_own_line_only() -> None:
    content = codecs.BOM_UTF16_LE + "good\n".encode("utf-16-le") + b"\x00\xd8\n\x00" + "fine".encode("utf-16-le") + b"x"
    good, bad, half = split_lines(to_utf8([content]))
    assert good == b"good"
    for line in (bad, half):
        with pytest.raises(UnicodeDecodeError):
            line.decode()


def test_lines_too_long_line_is_counted_and_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LINE_BYTES", 10_000)
    long = bytes(range(32, 127)) * 200
    before, found, after = split_lines(cut_chunks(b"a\n" + long + b"\nb", list(range(30))))
    assert (before, after) == (b"a", b"b")
    assert found == OversizedLine(len(long), hashlib.sha256(long).hexdigest())
    assert read_whole([long[:99], long[99:]], module.MAX_LINE_BYTES) == found
    row = found.to_rejected_row("a.jsonl", 7)
    assert row.reasons == (make_too_large_reason("line", "19,000 bytes, 10,000 allowed"),)
    assert (row.source, row.line, row.raw, row.size, row.digest) == ("a.jsonl", 7, b"", len(long), found.sha256)
    exactly = long[:10_000]
    assert list(split_lines([exactly])) == [exactly]


def write_documents(folder: Path, names: Sequence[str], text: str = "# Fees\n\nNone.\n") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_files_documents_get_what_their_folders_say(tmp_path: Path) -> None:
    write_documents(tmp_path, ["a.md", "cards/b.md", "cards/gold/c.md", "cardsharps/d.md"])
    folders = {
        ".": {"entitlements": []},
        "cards": {"product": "cards", "entitlements": ["staff"]},
        "cards/gold/": {"entitlements": ["premium"]},
    }
    rows, _ = read(tmp_path, documents=DocumentRules.model_validate({"defaults": folders}))
    documents = [found.document for found in rows if found.document]
    assert [(document.doc_id, document.product, document.entitlements) for document in documents] == [
        ("a", None, ()),
        ("cards.b", "cards", ("staff",)),
        ("cards.gold.c", "cards", ("premium",)),
        ("cardsharps.d", None, ()),
    ]


def test_files_documents_are_read_again_when_their_rules_change(tmp_path: Path) -> None:
    write_documents(tmp_path, ["a.md"])
    _, reading = read(tmp_path)
    assert read(tmp_path, reading.outcome.state)[0] == []
    rules = DocumentRules.model_validate({"defaults": {".": {"entitlements": []}}})
    (found,), again = read(tmp_path, reading.outcome.state, documents=rules)
    assert found.document and found.document.entitlements == () and not again.outcome.notes
    assert read(tmp_path, again.outcome.state, documents=rules)[0] == []


def test_files_report_tells_of_rules_fields_and_ids(tmp_path: Path) -> None:
    write_documents(tmp_path, ["a.md", "b.md"], "---\ntags: [x]\n---\n# Fees\n\nNone.\n")
    _, reading = read(tmp_path)
    nobody, unused = reading.outcome.notes
    assert "2 documents" in nobody and "a.md, b.md" in nobody and "tags (2)" in unused
    write_documents(tmp_path, ["a.md"], "---\ndoc_id: other\nentitlements: []\n---\nNone.\n")
    _, second = read(tmp_path, reading.outcome.state)
    (renamed,) = second.outcome.notes
    assert "a.md ('a', now 'other')" in renamed


@pytest.mark.slow
def test_files_document_has_the_time_of_its_last_commit(tmp_path: Path) -> None:
    write_documents(tmp_path, ["docs/a.md", "docs/b.md", "docs/c.md"])
    moment = "2026-03-04T05:06:07+00:00"
    env = os.environ | {"GIT_AUTHOR_DATE": moment, "GIT_COMMITTER_DATE": moment}
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "docs/a.md", "docs/b.md"], [*identity, "commit", "-qm", "x"]):
        subprocess.run(["git", *command], cwd=tmp_path, env=env, check=True)
    (tmp_path / "docs" / "b.md").write_text("# Changed\n\nSince.\n")
    rows, _ = read(tmp_path / "docs")
    times = {found.document.doc_id: found.document.updated_at for found in rows if found.document}
    assert times.pop("a") == datetime.fromisoformat(moment)
    for name, found in times.items():
        assert found.timestamp() == pytest.approx((tmp_path / "docs" / f"{name}.md").stat().st_mtime, abs=1)
