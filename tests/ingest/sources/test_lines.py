import codecs
import hashlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.ingest.parsing import make_too_large_reason
from abstain.ingest.sources import lines as module
from abstain.ingest.sources.lines import OversizedLine, read_whole, split_lines, to_utf8

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
        assert isinstance(line, bytes)
        with pytest.raises(UnicodeDecodeError):
            line.decode()


def test_lines_too_long_line_is_counted_and_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LINE_BYTES", 10_000)
    long = bytes(range(32, 127)) * 200
    before, found, after = split_lines(cut_chunks(b"a\n" + long + b"\nb", list(range(30))))
    assert (before, after) == (b"a", b"b")
    assert found == OversizedLine(len(long), hashlib.sha256(long).hexdigest())
    assert read_whole([long[:99], long[99:]]) == found
    assert isinstance(found, OversizedLine)
    row = found.to_rejected_row("a.jsonl", 7)
    assert row.reasons == (make_too_large_reason("line", "19,000 bytes, 10,000 allowed"),)
    assert (row.source, row.line, row.raw, row.size, row.digest) == ("a.jsonl", 7, b"", len(long), found.sha256)
    exactly = long[:10_000]
    assert list(split_lines([exactly])) == [exactly]
