"""A small file cannot take the machine: it is refused by one line that names the limit, and the others go on."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.ingest import bombs

REFUSED = {
    "dictionary.parquet": "A111 file: its first 336 rows unpack to 67",
    "large_dictionary.parquet": "A111 row: about 16,000,033 bytes, 4,194,304 allowed",
    "nested.parquet": "A111 row: about 16,000,068 bytes, 4,194,304 allowed",
    "chained.parquet": "A111 file: its first 68 rows unpack to 68",
    "list.parquet": "A111 file: row group 1 has 20,000,000 values in lists, 16,000,000 allowed",
    "rows.parquet": "A111 file: 10,000,000 rows in ",
    "text.parquet": "A111 file: row group 1 unpacks to 300,000,054 bytes",
    "fixed.parquet": "A111 file: the column 'user' has values of 1,000,000 bytes, 1,024 allowed",
    "contexts.jsonl": "A111 row: 12,000,017 bytes, 4,194,304 allowed",
    "few_contexts.jsonl": "A111 row: more fields, contexts and items of lists than the 5,000 allowed",
    "fields.jsonl": "A111 row: more fields, contexts and items of lists than the 5,000 allowed",
    "some_fields.jsonl": "A103 row: it has more problems than these 20",
    "brackets.jsonl": "A103 line: invalid JSON",
    "objects.jsonl": "A111 row: 5,000,000 bytes, 4,194,304 allowed",
    "columns.csv": "A102 file: 200,001 columns, 1,000 allowed",
    "blank.jsonl.gz": "A111 file: unpacks to more than 100 times its size",
    "lines.jsonl.gz": "A111 file: unpacks to more than 100 times its size",
    "line.csv.gz": "A111 file: unpacks to more than 100 times its size",
    "merged.md": "A103 the front matter has the alias '*a0'",
    "sexagesimal.md": "A103 the front matter has 1,200,061 characters, 20,000 allowed",
    "tables.html": "A103 its tags are nested too deeply to be read, more than the 100 allowed",
    "tags.html": "A103 its tags are nested too deeply to be read, more than the 100 allowed",
    "spans.html": "A103 a table has more than the 200,000 places allowed",
    "cells.html": "A103 a table has more than the 200,000 places allowed",
    "header.md": "A104 text: ",
    "sections.md": "A104 document: the document has more than the 10,000 chunks allowed",
}
"""Every bomb that is not read, and a reason for it."""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What became of all bombs, in one folder, in a process of little memory."""
    folder = tmp_path_factory.mktemp("bombs")
    (folder / "inbox").mkdir()
    bombs.write(folder / "inbox")
    done = subprocess.run(
        [sys.executable, "-m", "tests.ingest.bombs", str(folder)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=2 * bombs.PROCESSOR,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout))


@pytest.mark.heavy
@pytest.mark.parametrize("name", REFUSED)
def test_ingest_bomb_is_rejected_by_its_limit(outcome: dict[str, Any], name: str) -> None:
    refused = outcome["reasons"][name]
    assert any(REFUSED[name] in reasons for reasons in refused), refused[:3]
    assert len("".join(refused[0])) < 5000, "a broken line has few reasons"


@pytest.mark.heavy
def test_ingest_with_bombs_accepts_the_good_row_and_reads_once(outcome: dict[str, Any]) -> None:
    assert outcome["reasons"].keys() == {*REFUSED, "tables.md", "z.jsonl"}
    first, second = outcome["counts"]
    assert outcome["reasons"]["z.jsonl"] == [] and first["accepted"] >= 1
    assert second == {"read": 0, "accepted": 0, "refused": 0}
