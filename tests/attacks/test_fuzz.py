"""Mutated files of every kind give rows or rejected rows: no other error, none is lost, none is taken twice."""

import csv
import gzip
import io
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from abstain.config.params import load_params
from abstain.ingest.pipeline.run import ingest
from abstain.ingest.report import IngestReport
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

KEYS = ["user_id", "Comment", "writer_scores", "token_log_probs", "propensity", "a.b", ""]
HTML_HEAD = b'<title>T</title><meta name="doc_id" content="d"><meta name="updated_at" content="2026-08-01T00:00:00Z">'
HTML_TABLE = b"<h1>x</h1><table><tr><td rowspan=2>a<td>b</table><p>"
File = tuple[str, bytes]


class Mutator:
    """Mutations of rows and bytes, the same ones for the same `seed`."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        lines = (SAMPLE / "history.jsonl").read_text().splitlines()[:60]
        self.rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
        self.documents = sorted((SAMPLE / "handbook").glob("*.md"))

    def mutate_bytes(self, content: bytes, times: int) -> bytes:
        changed, rng = bytearray(content), self.rng
        for _ in range(times):
            index = rng.randrange(len(changed) + 1)
            piece = rng.choice(PIECES)
            match rng.randrange(5):
                case 0:
                    changed[index : index + 1] = bytes([rng.randrange(256)])
                case 1:
                    del changed[index : index + rng.randint(1, 50)]
                case 2:
                    changed[index:index] = piece
                case 3:
                    changed[index:index] = changed[: rng.randint(1, 200)]
                case _:
                    del changed[index:]
        return bytes(changed)

    def make_row(self) -> dict[str, Any]:
        rng, row = self.rng, dict(self.rng.choice(self.rows))
        for _ in range(rng.randint(0, 2)):
            key, value = rng.choice([*row, "x"]), rng.choice(VALUES)
            match rng.randrange(4):
                case 0:
                    row.pop(key, None)
                case 1:
                    row[key] = value
                case 2:
                    row[rng.choice(KEYS)] = value
                case _:
                    row["interaction_id"] = rng.choice(["same", "same ", "a" * 1001, "a\nb"])
        return row

    def mutate_value(self, value: Any) -> Any:
        if self.rng.random() < 0.02:
            return self.rng.choice(VALUES)
        if isinstance(value, dict):
            return {key: self.mutate_value(inner) for key, inner in value.items() if self.rng.random() > 0.01}
        return [self.mutate_value(inner) for inner in value] if isinstance(value, list) else value

    def make_rows(self) -> list[dict[str, Any]]:
        return [self.make_row() for _ in range(self.rng.randint(1, 6))]

    def make_json_lines(self) -> File:
        lines = [json.dumps(row, ensure_ascii=self.rng.random() < 0.5) for row in self.make_rows()]
        content = self.rng.choice(["\n", "\r\n", "\n\n"]).join(lines).encode("utf-8", "surrogatepass")
        content = self.mutate_bytes(content, self.rng.choice([0, 0, 2]))
        if self.rng.random() < 0.1:
            return "jsonl.gz", self.mutate_bytes(gzip.compress(content), self.rng.randint(0, 1))
        return "jsonl", content

    def make_columns(self) -> dict[str, list[Any]]:
        """Columns of mutated rows, with JSON for what is nested."""
        rows = self.make_rows()
        names, nested = dict.fromkeys(name for row in rows for name in row), (list, dict)
        return {
            name: [json.dumps(row[name]) if isinstance(row.get(name), nested) else row.get(name) for row in rows]
            for name in names
        }

    def make_csv(self) -> File:
        columns, written = self.make_columns(), io.StringIO()
        writer = csv.writer(written, delimiter=self.rng.choice(",;\t"), escapechar="\\")
        writer.writerows([list(columns), *zip(*columns.values(), strict=True)])
        return "csv", self.mutate_bytes(written.getvalue().encode("utf-8", "surrogatepass"), self.rng.choice([0, 2]))

    def make_parquet(self) -> File:
        columns = {
            name: pa.array([None if cell is None else ascii(cell).strip("'") for cell in cells])
            for name, cells in self.make_columns().items()
        }
        packed = io.BytesIO()
        pq.write_table(pa.table(columns), packed, compression=self.rng.choice(["none", "zstd", "snappy"]))
        return "parquet", self.mutate_bytes(packed.getvalue(), self.rng.choice([0, 1, 3]))

    def make_document(self) -> File:
        content = self.rng.choice(self.documents).read_bytes()
        if self.rng.random() < 0.5:
            return "md", self.mutate_bytes(content, self.rng.randint(0, 6))
        return "html", HTML_HEAD + self.mutate_bytes(HTML_TABLE + content, self.rng.randint(0, 6))


def take(sources: Sequence[Source], data: Path) -> IngestReport:
    """Ingest `sources`; the report checks that its counts add up."""
    params = load_params(ROOT / "params.yaml").validation.model_copy(update={"max_failed_fraction": 1.0})
    report = ingest(sources, data, params, NOW)
    report.to_markdown()
    return report


def fuzz_files(make: Callable[[Mutator], File], folder: Path, files: int) -> None:
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
    assert take([source], data).read == rows.total() and take([source], data).accepted == 0


def fuzz_exports(folder: Path, exports: int) -> None:
    """Ingest `exports` mutated exports as sources of one ingest, twice."""
    mutator, sources = Mutator(2), []
    tools = sorted(tool for tool in EXPORTS.iterdir() if tool.is_dir())
    for tool in tools:
        page = (ROOT / "docs" / "howto" / "exports" / f"{tool.name.replace('_', '-')}.md").read_text()
        (folder / f"{tool.name}.yaml").write_text(page.split("```yaml\n")[1].split("```")[0])
    for number in range(exports):
        tool = mutator.rng.choice(tools)
        export = Path(shutil.copytree(tool, folder / f"export-{number}"))
        file = mutator.rng.choice(sorted(export.iterdir()))
        content = file.read_bytes()
        if file.suffix == ".csv" or mutator.rng.random() < 0.4:
            file.write_bytes(mutator.mutate_bytes(content, 2))
        else:
            parts = content.splitlines() if file.suffix == ".jsonl" else [content]
            file.write_text("\n".join(json.dumps(mutator.mutate_value(json.loads(part))) for part in parts))
        sources.append(ExportSource(name=f"x{number}", url=str(export), mapping=str(folder / f"{tool.name}.yaml")))
    take(sources, folder / "data")
    assert take(sources, folder / "data").accepted == 0


KINDS: dict[str, tuple[Callable[[Path, int], None], int, int]] = {
    "mutated lines of JSON": (partial(fuzz_files, Mutator.make_json_lines), 100, 20),
    "mutated CSV files": (partial(fuzz_files, Mutator.make_csv), 100, 20),
    "mutated Parquet files": (partial(fuzz_files, Mutator.make_parquet), 4, 80),  # a process reads each
    "mutated documents": (partial(fuzz_files, Mutator.make_document), 100, 20),
    "mutated exports": (fuzz_exports, 100, 20),
}
"""What makes and ingests so many mutated files in a folder, how many, and how many times as many in the soak."""


@pytest.mark.heavy
@pytest.mark.parametrize("tried", KINDS)
def test_ingest_accepts_or_rejects_mutated_files(tried: str, tmp_path: Path, assert_repelled: Count) -> None:
    fuzz, files, _ = KINDS[tried]
    fuzz(tmp_path, files)
    assert_repelled(tried, files, files)


@pytest.mark.soak(twin="test_ingest_accepts_or_rejects_mutated_files")
@pytest.mark.parametrize("tried", KINDS)
def test_ingest_accepts_or_rejects_many_mutated_files(tried: str, tmp_path: Path, assert_repelled: Count) -> None:
    fuzz, files, times = KINDS[tried]
    fuzz(tmp_path, files * times)
    assert_repelled(tried, files * times, files * times)
