"""A small file cannot take the machine: it is refused by one line that names the limit, and the others go on.

`python -m tests.ingest.test_bombs FOLDER` ingests `FOLDER/inbox` twice, below a ceiling, and prints as JSON the reasons
for the refusal of each file, and the counts: the second ingest has the state of the first, as the hourly one has.
"""

import gzip
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from openpyxl import Workbook

from abstain.config.params import load_params
from abstain.config.settings import Settings
from abstain.data.validation.runner import validate
from abstain.ingest.pipeline.run import ingest
from abstain.ingest.privacy.policy import Privacy
from abstain.ingest.quarantine import Quarantine
from abstain.ingest.sources import converter
from abstain.ingest.sources.files import FileSource
from tests.factories import NOW, row
from tests.ingest.builders import LENIENT
from tests.knowledge.documents.pdf_writer import write_pdf
from tests.knowledge.documents.test_pdf import ENCRYPTED

CEILING = 1_000_000_000
"""Bytes of memory for the whole process, of which Python with its packages takes a third."""
PROCESSOR = 120
"""Seconds."""


def parquet(path: Path, table: dict[str, Any], **options: Any) -> None:
    cheap = {"compression": "zstd", "store_schema": False, "write_statistics": False}
    pq.write_table(pa.table(table), path, **{**cheap, **options})


def share(value: Any, kind: pa.DataType | None = None) -> pa.Array:
    """The same value in each of 1,000 rows, which the file holds once."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), pa.array([value], kind))


def document(path: Path, body: str = "x", front: str = "") -> None:
    fields = f"doc_id: {path.stem}\ntitle: A\nupdated_at: 2026-08-01T00:00:00Z\n{front}"
    path.write_text(f"---\n{fields}---\n# A\n\n{body}\n")


def page(path: Path, body: str) -> None:
    names = f'<title>A</title><meta name="doc_id" content="{path.stem}">'
    path.write_text(f'{names}<meta name="updated_at" content="2026-08-01T00:00:00Z"><h1>A</h1>{body}')


def workbook(path: Path, sheets: int, rows: str = "") -> None:
    """Write a spreadsheet, the first sheet with these rows."""
    book = Workbook()
    for _ in range(sheets - 1):
        book.create_sheet()
    book.save(path)
    if rows:
        with zipfile.ZipFile(path) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
        name = "xl/worksheets/sheet1.xml"
        parts[name] = re.sub(rb"<sheetData ?/>", f"<sheetData>{rows}</sheetData>".encode(), parts[name])
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in parts.items():
                archive.writestr(name, content)


def write(folder: Path) -> None:
    """Write a bomb for each limit, and beside them a file with one good row, which is read last."""
    parquet(folder / "dictionary.parquet", {"question": share("x" * 200_000)})
    parquet(folder / "text.parquet", {"user": ["x" * 300_000_000]})
    (folder / "contexts.jsonl").write_bytes(b'{"contexts":[' + b"{}," * 4_000_000 + b"{}]}")
    (folder / "few_contexts.jsonl").write_bytes(b'{"contexts":[' + b"{}," * 1_000_000 + b"{}]}")
    with (folder / "line.jsonl").open("wb") as file:
        file.truncate(600_000_000)
    (folder / "fields.jsonl").write_text(json.dumps({f"field{at}": 1 for at in range(8000)}))
    (folder / "some_fields.jsonl").write_text(json.dumps({f"field{at}": 1 for at in range(2000)}))
    (folder / "brackets.jsonl").write_bytes(b"[" * 3000)
    (folder / "objects.jsonl").write_bytes(b'{"a":' * 1_000_000)
    (folder / "columns.csv").write_text(",".join(["thumb", *map(str, range(200_000))]) + "\n")
    (folder / "blank.jsonl.gz").write_bytes(gzip.compress(b"\n" * 1_000_000) * 300)
    merged = "x: 1"
    for at in range(9):
        merged = f"<<: [&a{at} {{{merged}}}{f', *a{at}' * 9}]"
    document(folder / "merged.md", front=f"{merged}\n")
    table = "| - | - |\n" + "".join(f"| {at} | c |\n" for at in range(5_000))
    document(folder / "header.md", f"| {'a' * 1_000_000} | b |\n{table}")
    document(folder / "sections.md", "".join(f"## {at}\n\nx\n\n" for at in range(12_000)))
    document(folder / "tables.md", "words\n\n" + "<table><tr><td>x " * 5000)
    page(folder / "tags.html", "<b>x" * 1_000_000)
    page(folder / "spans.html", f"<table>{('<tr>' + '<td rowspan=1000>x' * 45) * 200}</table>")
    empty_cells = "".join(f'<row r="{n}"><c r="A{n}"/></row>' for n in range(1, 1_048_577))
    workbook(folder / "rows.xlsx", sheets=1, rows=empty_cells)
    workbook(folder / "sheets.xlsx", sheets=100)
    (folder / "scan.pdf").write_bytes(write_pdf([[]]))
    (folder / "locked.pdf").write_bytes(write_pdf([[(50, 100, 10, "x")]], trailer=ENCRYPTED))
    shutil.copy(folder / "sheets.xlsx", folder / "page.pdf")
    (folder / "z.jsonl").write_text(json.dumps(row("good")))


def write_alike(folder: Path) -> None:
    """Write the bombs of `ALIKE`."""
    large, chain = share("x" * 16_000_000), ["x" * 1_000_000 + str(at) for at in range(400)]
    items = pa.StructArray.from_arrays([share("a#1"), large], ["chunk_id", "text"])
    nested = pa.ListArray.from_arrays(pa.array(range(1001), pa.int32()), items)
    many = pa.ListArray.from_arrays([0, 20_000_000], pa.nulls(20_000_000, pa.string()))
    parquet(folder / "large_dictionary.parquet", {"question": large})
    parquet(folder / "nested.parquet", {"contexts": nested})
    parquet(folder / "chained.parquet", {"user": chain}, use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY")
    parquet(folder / "list.parquet", {"contexts": many})
    parquet(folder / "rows.parquet", {"user": pa.nulls(10_000_000, pa.string())})
    parquet(folder / "fixed.parquet", {"user": share(b"x" * 1_000_000, pa.binary(1_000_000))})
    (folder / "lines.jsonl.gz").write_bytes(gzip.compress(b'{"a":"' + b"x" * 4_000_000 + b'"}\n') * 300)
    (folder / "line.csv.gz").write_bytes(gzip.compress(b"x" * 10_000_000) * 100)
    document(folder / "sexagesimal.md", front=f"product: {':'.join(['59'] * 400_000)}\n")
    packed = zipfile.ZipFile(folder / "zip.docx", "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    with packed as archive, archive.open("docProps/core.xml", "w", force_zip64=True) as part:
        for _ in range(1100):
            part.write(b" " * 1_000_000)


ALIKE = (
    *(f"{name}.parquet" for name in ("large_dictionary", "nested", "chained", "list", "rows", "fixed")),
    *("lines.jsonl.gz", "line.csv.gz", "sexagesimal.md", "zip.docx"),
)
"""Bombs of memory and of processor time in other formats: `make soak` reads them."""
SOAK = pytest.mark.soak(twin="test_ingest_bomb_is_rejected_by_its_limit")
TOO_COSTLY = ("dictionary.parquet", "blank.jsonl.gz", "merged.md", *ALIKE)
REFUSED = dict.fromkeys(TOO_COSTLY, "A111 file: to read it takes more than") | {
    "text.parquet": "A111",
    "contexts.jsonl": "A111 row: 12,000,017 bytes, 4,194,304 allowed",
    "few_contexts.jsonl": "A111 row: more fields, contexts and items of lists than the 5,000 allowed",
    "line.jsonl": "A111 line: 600,000,000 bytes, 16,777,216 allowed",
    "fields.jsonl": "A111 row: more fields, contexts and items of lists than the 5,000 allowed",
    "some_fields.jsonl": "A103 row: it has more problems than these 20",
    "brackets.jsonl": "A103 line: invalid JSON",
    "objects.jsonl": "A111 row: 5,000,000 bytes, 4,194,304 allowed",
    "columns.csv": "A102 file: 200,001 columns, 1,000 allowed",
    "header.md": "A104 text: ",
    "sections.md": "A104 document: the document has more than the 10,000 chunks allowed",
    "tags.html": "A111 file: ",
    "spans.html": "A111 file: ",
    "rows.xlsx": "A103 file: there is no text",
    "sheets.xlsx": "A111 file: it has 100 sheets, 50 allowed",
    "scan.pdf": "A102 file: has no text",
    "locked.pdf": "A102 file: is encrypted",
    "page.pdf": "A102 file: its content is that of ",
}
"""Every bomb that is not read, and a reason for it."""


def main() -> None:
    folder = Path(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_DATA, (CEILING, CEILING))
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR, PROCESSOR))
    # Two minutes for each would only make the test long.
    converter.MIN_PROCESSOR_SECONDS, converter.PROCESSOR_SECONDS_PER_MB = 1, 0
    privacy = Privacy.from_params(load_params(Path("params.yaml")).privacy, Settings(home=folder / "home"))
    inbox, counts = FileSource(name="inbox", url=str(folder / "inbox")), []
    for _ in range(2):
        report = ingest([inbox], folder / "data", LENIENT, NOW, privacy=privacy, incremental=True, validate=validate)
        counts.append({"read": report.read, "accepted": report.accepted, "refused": report.quarantined})
    reasons: dict[str, list[str]] = {path.name: [] for path in (folder / "inbox").iterdir()}
    quarantine = Quarantine(folder / "data")
    for path in quarantine.list_paths():
        for refused in quarantine.iter_rows(path):
            reasons[refused.source].append(" | ".join(reason.message_with_code for reason in refused.reasons))
    print(json.dumps({"reasons": reasons, "counts": counts}))


@pytest.fixture(scope="module")
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What became of the bombs, in one folder, in a process of little memory; of those of `ALIKE` if they are tested."""
    folder = tmp_path_factory.mktemp("bombs")
    (folder / "inbox").mkdir()
    write(folder / "inbox")
    if any(item.module is request.module and "soak" in item.keywords for item in request.session.items):
        write_alike(folder / "inbox")
    done = subprocess.run(
        [sys.executable, "-m", "tests.ingest.test_bombs", str(folder)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=2 * PROCESSOR,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout))


@pytest.mark.heavy
@pytest.mark.parametrize("name", [pytest.param(name, marks=SOAK if name in ALIKE else ()) for name in REFUSED])
def test_ingest_bomb_is_rejected_by_its_limit(outcome: dict[str, Any], name: str) -> None:
    refused = outcome["reasons"][name]
    assert any(REFUSED[name] in reasons for reasons in refused), refused[:3]
    assert len("".join(refused[0])) < 5000, "a broken line has few reasons"


@pytest.mark.heavy
@pytest.mark.parametrize("left_out", [ALIKE, pytest.param((), marks=SOAK)], ids=["each limit", "each format"])
def test_ingest_with_bombs_accepts_the_good_row_and_reads_once(
    outcome: dict[str, Any], left_out: tuple[str, ...]
) -> None:
    assert outcome["reasons"].keys() | {*left_out} == {*REFUSED, "tables.md", "z.jsonl"}
    first, second = outcome["counts"]
    assert outcome["reasons"]["z.jsonl"] == [] and first["accepted"] >= 1
    assert second == {"read": 0, "accepted": 0, "refused": 0}


if __name__ == "__main__":
    main()
