"""Small files that would take a machine: `python -m tests.ingest.bombs FOLDER` ingests all of them, below a ceiling.

Prints as JSON, for each file, the reason for its refusal (None: it was read), then the counts of two ingests: the
second one has the state of the first, as the hourly one has.
"""

import gzip
import json
import resource
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from abstain.config.params import load_params
from abstain.config.settings import Settings
from abstain.data.validation.runner import validate
from abstain.ingest.pipeline.run import ingest
from abstain.ingest.privacy.policy import Privacy
from abstain.ingest.quarantine import Quarantine
from abstain.ingest.sources.files import FileSource
from tests.factories import NOW, PARAMS, row

CEILING = 1_000_000_000
"""Bytes of memory for the whole process, of which Python with its packages takes a third."""

PROCESSOR = 120
"""Seconds."""

FRONT = "---\ndoc_id: a\ntitle: A\nupdated_at: 2026-08-01T00:00:00Z\n"
HEAD = '<title>A</title><meta name="doc_id" content="a"><meta name="updated_at" content="2026-08-01T00:00:00Z">'
CELL = "<table><tr><td>x "


def write(folder: Path) -> None:
    """Write every bomb, and beside them a file with one good row, which is read last."""
    parquet(folder / "dictionary.parquet", text="x" * 200_000)
    parquet(folder / "large_dictionary.parquet", text="x" * 16_000_000)
    parquet(folder / "nested.parquet", text="x" * 16_000_000, is_context=True)
    chained = pa.table({"question": ["x" * 1_000_000 + str(at) for at in range(1000)]})
    pq.write_table(chained, folder / "chained.parquet", use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY")
    many = pa.table({"contexts": pa.array([[None] * 20_000_000], pa.list_(pa.string()))})
    pq.write_table(many, folder / "list.parquet", store_schema=False)
    pq.write_table(pa.table({"user": pa.nulls(10_000_000, pa.string())}), folder / "rows.parquet")
    pq.write_table(pa.table({"user": ["x" * 300_000_000]}), folder / "text.parquet", compression="zstd")
    fixed = pa.array([b"x" * 1_000_000], pa.binary(1_000_000)).dictionary_encode().indices
    values = pa.DictionaryArray.from_arrays(
        pa.array([0] * 1000, fixed.type), pa.array([b"x" * 1_000_000], pa.binary(1_000_000))
    )
    pq.write_table(pa.table({"user": values}), folder / "fixed.parquet", store_schema=False)
    (folder / "contexts.jsonl").write_bytes(b'{"contexts":[' + b"{}," * 4_000_000 + b"{}]}")
    (folder / "few_contexts.jsonl").write_bytes(b'{"contexts":[' + b"{}," * 1_000_000 + b"{}]}")
    (folder / "fields.jsonl").write_text("{" + ",".join(f'"field{at}":1' for at in range(8000)) + "}")
    (folder / "some_fields.jsonl").write_text("{" + ",".join(f'"field{at}":1' for at in range(2000)) + "}")
    (folder / "brackets.jsonl").write_bytes(b"[" * 3000)
    (folder / "objects.jsonl").write_bytes(b'{"a":' * 1_000_000)
    (folder / "columns.csv").write_text(",".join(["thumb", *map(str, range(200_000))]) + "\n")
    blank = gzip.compress(b"\n" * 1_000_000)
    (folder / "blank.jsonl.gz").write_bytes(blank * 1000)
    (folder / "lines.jsonl.gz").write_bytes(gzip.compress(b'{"a":"' + b"x" * 4_000_000 + b'"}\n') * 300)
    (folder / "line.csv.gz").write_bytes(gzip.compress(b"x" * 10_000_000) * 100)
    merged = "x: 1"
    for at in range(9):
        merged = f"<<: [&a{at} {{{merged}}}{f', *a{at}' * 9}]"
    (folder / "merged.md").write_text(f"{FRONT}{merged}\n---\n# A\n\nx\n")
    (folder / "sexagesimal.md").write_text(f"{FRONT}product: {':'.join(['59'] * 400_000)}\n---\n# A\n\nx\n")
    (folder / "tables.md").write_text(
        FRONT.replace("doc_id: a", "doc_id: tables") + "---\n# A\n\nwords\n\n" + CELL * 5000
    )
    (folder / "tables.html").write_text(HEAD + CELL * 5000)
    (folder / "tags.html").write_text(HEAD + "<b>x" * 1_000_000)
    spanning = "<tr>" + "<td rowspan=1000>x" * 45
    (folder / "spans.html").write_text(f"{HEAD}<h1>A</h1><table>{spanning * 1000}</table>")
    (folder / "cells.html").write_text(f"{HEAD}<h1>A</h1><table><tr>{'<td>x' * 20_000}{'<tr><td>x' * 20_000}</table>")
    header = f"| {'a' * 1_000_000} | b |\n| - | - |\n"
    rows = "".join(f"| {at} | c |\n" for at in range(100_000))
    (folder / "header.md").write_text(f"{FRONT.replace('doc_id: a', 'doc_id: header')}---\n# A\n\n{header}{rows}")
    sections = "".join(f"## {at}\n\nx\n\n" for at in range(12_000))
    (folder / "sections.md").write_text(f"{FRONT.replace('doc_id: a', 'doc_id: sections')}---\n# A\n\n{sections}")
    (folder / "z.jsonl").write_text(json.dumps(row("good")) + "\n")


def parquet(path: Path, text: str, *, is_context: bool = False, rows: int = 1000) -> None:
    """Write the same `text` into each of `rows` rows, as their question or their only context."""

    def shared(value: str) -> pa.Array:
        return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([value]))

    column = shared(text)
    if is_context:
        items = pa.StructArray.from_arrays([shared("a#1"), column], ["chunk_id", "text"])
        column = pa.ListArray.from_arrays(pa.array(range(rows + 1), pa.int32()), items)
    name = "contexts" if is_context else "question"
    table = pa.table({"interaction_id": [str(at) for at in range(rows)], name: column})
    pq.write_table(table, path, compression="zstd", store_schema=False)


def main() -> None:
    folder = Path(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_DATA, (CEILING, CEILING))
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR, PROCESSOR))
    lenient = PARAMS.model_copy(update={"max_failed_fraction": 1.0})
    privacy = Privacy.from_params(load_params(Path("params.yaml")).privacy, Settings(home=folder / "home"))
    inbox, counts = FileSource(name="inbox", url=str(folder / "inbox")), []
    for _ in range(2):
        report = ingest([inbox], folder / "data", lenient, NOW, privacy=privacy, incremental=True, validate=validate)
        counts.append({"read": report.read, "accepted": report.accepted, "refused": report.quarantined})
    reasons: dict[str, list[str]] = {path.name: [] for path in sorted((folder / "inbox").iterdir())}
    quarantine = Quarantine(folder / "data")
    for path in quarantine.list_paths():
        for refused in quarantine.iter_rows(path):
            reasons[refused.source].append(" | ".join(reason.message_with_code for reason in refused.reasons))
    print(json.dumps({"reasons": reasons, "counts": counts}))


if __name__ == "__main__":
    main()
