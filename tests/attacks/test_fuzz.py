"""Mutated files of every kind give rows or rejected rows: no other error, none is lost, none is taken twice."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from abstain.config.params import load_params
from abstain.core.errors import AbstainError
from abstain.ingest.pipeline.run import ingest
from abstain.ingest.sources import Source
from abstain.ingest.sources.export import ExportSource
from abstain.ingest.sources.files import FileSource
from tests.attacks.conftest import Count
from tests.checkout import ROOT

SAMPLE = ROOT / "src" / "abstain" / "sample"
EXPORTS = ROOT / "tests" / "ingest" / "exports" / "fixtures"
NOW = datetime(2026, 12, 1, tzinfo=UTC)
ODD = [
    *("", " ", "\0", "\u200b", "\ud800", "x" * 30_000, "\u202e", "=1+1", "'" * 2000, "null", "NaN", "1e999"),
    *("2026-13-45T00:00:00Z", "0001-01-01T00:00:00+14:00", "<script>", "[1] x#1", "../../x", "a#b#c", "\r\n", "{}"),
]
VALUES: list[Any] = [None, True, 0, -1, 1e308, -0.0, 2**63, 10**40, [], {}, [[]], [None], {"a": {"b": {}}}, *ODD]
PIECES = [
    *(b'"', b"\n", b"\r", b",", b"{", b"[", b"\0", b"\xef\xbb\xbf", b"\xff\xfe", b"---\n", b"<table>", b"]]>", b"<!--"),
    *(b"| a | b |\n|-|-|\n", b"&#x0;", b"*a", b"!!python/object:os.system", b"<td rowspan=99999>", b"> " * 60),
]

Row = dict[str, Any]
File = tuple[str, bytes]


class Mutator:
    """Mutations of rows and bytes, the same ones for the same `seed`."""

    def __init__(self, seed: int) -> None:
        self.drawn = random.Random(seed)
        lines = (SAMPLE / "history.jsonl").read_text().splitlines()[:60]
        self.rows: list[Row] = [json.loads(line) for line in lines]
        self.documents = sorted((SAMPLE / "handbook").glob("*.md"))

    def bytes_of(self, content: bytes, times: int) -> bytes:
        changed, drawn = bytearray(content), self.drawn
        for _ in range(times):
            at = drawn.randrange(len(changed) + 1)
            piece = drawn.choice(PIECES)
            match drawn.randrange(5):
                case 0:
                    changed[at : at + 1] = bytes([drawn.randrange(256)])
                case 1:
                    del changed[at : at + drawn.randint(1, 50)]
                case 2:
                    changed[at:at] = piece
                case 3:
                    changed[at:at] = changed[: drawn.randint(1, 200)]
                case _:
                    del changed[at:]
        return bytes(changed)

    def row(self) -> Row:
        drawn, row = self.drawn, dict(self.drawn.choice(self.rows))
        for _ in range(drawn.randint(0, 2)):
            key, value = drawn.choice([*row, "x"]), drawn.choice(VALUES)
            match drawn.randrange(4):
                case 0:
                    row.pop(key, None)
                case 1:
                    row[key] = value
                case 2:
                    row[
                        drawn.choice(
                            ["user_id", "Comment", "writer_scores", "token_log_probs", "propensity", "a.b", ""]
                        )
                    ] = value
                case _:
                    row["interaction_id"] = drawn.choice(["same", "same ", "a" * 1001, "a\nb"])
        return row

    def value(self, value: Any) -> Any:
        if self.drawn.random() < 0.02:
            return self.drawn.choice(VALUES)
        if isinstance(value, dict):
            return {key: self.value(inner) for key, inner in value.items() if self.drawn.random() > 0.01}
        return [self.value(inner) for inner in value] if isinstance(value, list) else value

    def json_lines(self) -> File:
        lines = [
            json.dumps(self.row(), ensure_ascii=self.drawn.random() < 0.5) for _ in range(self.drawn.randint(1, 6))
        ]
        content = self.drawn.choice(["\n", "\r\n", "\n\n"]).join(lines).encode("utf-8", "surrogatepass")
        content = self.bytes_of(content, self.drawn.choice([0, 0, 2]))
        if self.drawn.random() < 0.1:
            return "jsonl.gz", self.bytes_of(gzip.compress(content), self.drawn.randint(0, 1))
        return "jsonl", content

    def cells(self) -> dict[str, list[Any]]:
        """Columns of mutated rows, with JSON for what is nested."""
        rows = [self.row() for _ in range(self.drawn.randint(1, 6))]
        names = dict.fromkeys(name for row in rows for name in row)
        nested = (list, dict)
        return {
            name: [json.dumps(row[name]) if isinstance(row.get(name), nested) else row.get(name) for row in rows]
            for name in names
        }

    def csv(self) -> File:
        columns, written = self.cells(), io.StringIO()
        writer = csv.writer(written, delimiter=self.drawn.choice(",;\t"), escapechar="\\")
        writer.writerows([list(columns), *zip(*columns.values(), strict=True)])
        return "csv", self.bytes_of(written.getvalue().encode("utf-8", "surrogatepass"), self.drawn.choice([0, 2]))

    def parquet(self) -> File:
        columns = {
            name: pa.array([None if cell is None else ascii(cell).strip("'") for cell in cells])
            for name, cells in self.cells().items()
        }
        packed = io.BytesIO()
        pq.write_table(pa.table(columns), packed, compression=self.drawn.choice(["none", "zstd", "snappy"]))
        return "parquet", self.bytes_of(packed.getvalue(), self.drawn.choice([0, 1, 3]))

    def document(self) -> File:
        content = self.drawn.choice(self.documents).read_bytes()
        if self.drawn.random() < 0.5:
            return "md", self.bytes_of(content, self.drawn.randint(0, 6))
        head = (
            b'<title>T</title><meta name="doc_id" content="d"><meta name="updated_at" content="2026-08-01T00:00:00Z">'
        )
        body = b"<h1>x</h1><table><tr><td rowspan=2>a<td>b</table><p>" + content
        return "html", head + self.bytes_of(body, self.drawn.randint(0, 6))


def take(sources: Sequence[Source], data: Path) -> Counter[str]:
    """Ingest `sources`; the report checks that its counts add up."""
    params = load_params(ROOT / "params.yaml").validation.model_copy(update={"max_failed_fraction": 1.0})
    report = ingest(sources, data, params, NOW)
    report.to_markdown()
    return Counter(read=report.read, accepted=report.accepted)


def fuzz_files(folder: Path, make: Callable[[Mutator], File], files: int) -> None:
    """Ingest `files` mutated files, twice."""
    mutator, inbox, data = Mutator(1), folder / "inbox", folder / "data"
    inbox.mkdir()
    for number in range(files):
        suffix, content = make(mutator)
        (inbox / f"{number:05}.{suffix}").write_bytes(content)
    source = FileSource(name="inbox", url=str(inbox))
    rows = Counter(row.source for row in source.read({}))
    for file in inbox.iterdir():
        lines = sum(bool(line.strip()) for line in file.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n"))
        expected = {".jsonl": {1, lines}, ".md": {1}, ".html": {1}}.get(file.suffix)
        assert expected is None or rows[file.name] in expected, file
    first = take([source], data)
    assert first["read"] == rows.total() and take([source], data)["accepted"] == 0


def fuzz_exports(folder: Path, exports: int) -> None:
    """Ingest `exports` mutated exports as sources of one ingest, twice."""
    mutator, sources = Mutator(2), []
    tools = sorted(one for one in EXPORTS.iterdir() if one.is_dir())
    for tool in tools:
        page = (ROOT / "docs" / "howto" / "exports" / f"{tool.name.replace('_', '-')}.md").read_text()
        (folder / f"{tool.name}.yaml").write_text(page.split("```yaml\n")[1].split("```")[0])
    for number in range(exports):
        tool, place = mutator.drawn.choice(tools), folder / f"export-{number}"
        shutil.copytree(tool, place)
        file = mutator.drawn.choice(sorted(place.iterdir()))
        content = file.read_bytes()
        if file.suffix == ".csv" or mutator.drawn.random() < 0.4:
            file.write_bytes(mutator.bytes_of(content, 2))
        else:
            parts = content.splitlines() if file.suffix == ".jsonl" else [content]
            file.write_text("\n".join(json.dumps(mutator.value(json.loads(part))) for part in parts))
        sources.append(ExportSource(name=f"x{number}", url=str(place), mapping=str(folder / f"{tool.name}.yaml")))
    take(sources, folder / "data")
    assert take(sources, folder / "data")["accepted"] == 0


@dataclass(frozen=True)
class Kind:
    """What is mutated: `fuzz` makes and ingests this many `files` in a folder, `times` as many in the soak."""

    fuzz: Callable[[Path, int], None]
    files: int = 200
    times: int = 10

    def count_repelled(self, files: int, folder: Path) -> int:
        """Return how many of `files` do not stop the others: all, or none."""
        try:
            self.fuzz(folder, files)
        except AbstainError:
            return 0
        return files


KINDS = {
    "mutated lines of JSON": Kind(lambda folder, files: fuzz_files(folder, Mutator.json_lines, files)),
    "mutated CSV files": Kind(lambda folder, files: fuzz_files(folder, Mutator.csv, files)),
    "mutated Parquet files": Kind(  # each is looked at by a process of its own
        lambda folder, files: fuzz_files(folder, Mutator.parquet, files), files=8, times=40
    ),
    "mutated documents": Kind(lambda folder, files: fuzz_files(folder, Mutator.document, files)),
    "mutated exports": Kind(fuzz_exports),
}


@pytest.mark.heavy
@pytest.mark.parametrize("tried", KINDS)
def test_mutated_files_are_rows_or_refused(tried: str, tmp_path: Path, assert_repelled: Count) -> None:
    files = KINDS[tried].files
    assert_repelled(tried, files, KINDS[tried].count_repelled(files, tmp_path))


@pytest.mark.soak(twin="test_mutated_files_are_rows_or_refused")
@pytest.mark.parametrize("tried", KINDS)
def test_many_mutated_files_are_rows_or_refused(tried: str, tmp_path: Path, assert_repelled: Count) -> None:
    files = KINDS[tried].files * KINDS[tried].times
    assert_repelled(tried, files, KINDS[tried].count_repelled(files, tmp_path))
