"""Comparison of a text with its golden file; `REGENERATE_GOLDEN=1 pytest tests/reports` writes the files instead."""

import os

from tests.reports.builders import GOLDEN


def assert_golden(name: str, text: str) -> None:
    """Fail if the text differs from the file `golden/NAME`, with the lines that differ."""
    file = GOLDEN / name
    if os.environ.get("REGENERATE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text.splitlines() == file.read_text(encoding="utf-8").splitlines(), "REGENERATE_GOLDEN=1 rewrites the file"
