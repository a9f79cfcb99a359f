"""`python -m abstain.sample DATA` writes the sample's data: handbook and history, as ingest accepts them.

What it writes is what `data.dvc` records, byte for byte, so a fresh clone needs no remote.
"""

from __future__ import annotations

import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from abstain import paths
from abstain.errors import AbstainError
from abstain.feedback.ingest import ingest
from abstain.params import load_params
from abstain.sample.write import write_sample


def main(arguments: list[str]) -> None:
    if len(arguments) != 1 or Path(arguments[0]).exists():
        raise AbstainError("usage: python -m abstain.sample DATA, where DATA is a folder that is not there yet")
    with tempfile.TemporaryDirectory() as folder:
        write_sample(Path(folder))
        files = [Path(folder) / "handbook", Path(folder) / "history.jsonl"]
        ingest(files, Path(arguments[0]), load_params(paths.PARAMS).validation, datetime.now(UTC))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except AbstainError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
