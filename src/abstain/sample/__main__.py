"""`python -m abstain.sample DATA` writes the sample's data: handbook and history, as ingest accepts them.

The result is what `data.dvc` records, byte for byte, so a fresh clone needs no remote.
"""

from __future__ import annotations

import sys
from pathlib import Path

from abstain.config.params import ValidationParams
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.ingest.pipeline.run import ingest
from abstain.ingest.sources.files import make_explicit_sources
from abstain.sample.files import EXPORTED, HANDBOOK, HISTORY

VALIDATION = ValidationParams(
    max_failed_fraction=0,
    min_failed_rows=1,
    max_feedback_delay_days=90,
    max_text_chars=20_000,
    max_clock_skew_seconds=0,
)


def main(arguments: list[str]) -> None:
    """Write the sample's data.

    Args:
        arguments: The folder, which must not exist.

    Raises:
        AbstainError: The arguments are wrong.
    """
    if len(arguments) != 1 or Path(arguments[0]).exists():
        raise AbstainError(
            Code.USAGE, "usage: python -m abstain.sample DATA, where DATA is a folder that is not there yet"
        )
    # Not the user's own limits, nor the clock: the bytes are always the same.
    ingest(make_explicit_sources([str(HANDBOOK), str(HISTORY)]), Path(arguments[0]), VALIDATION, EXPORTED[0])


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except AbstainError as error:
        print(f"error {error.message_with_code}", file=sys.stderr)
        raise SystemExit(1) from None
