"""Write the output of an importer into a new folder, completely or not at all.

rows.jsonl          rows of the import format, thumbs and reviews
documents/*.md      documents for the knowledge base
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from benchmarks.datasets import DocumentFile, Item, SkippedRecord

ROWS = "rows.jsonl"
DOCUMENTS = "documents"


@dataclass
class ConversionCounts:
    """Number of rows and documents written, and of records skipped, by reason."""

    interactions: int = 0
    feedback: int = 0
    reviews: int = 0
    documents: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    def count(self, item: Item) -> None:
        """Count one item of an importer."""
        if isinstance(item, SkippedRecord):
            self.skipped[item.reason] += 1
        elif isinstance(item, DocumentFile):
            self.documents += 1
        else:
            self.interactions += "question" in item
            self.feedback += "thumb" in item
            self.reviews += "review" in item or "reviewed_at" in item


def convert(items: Iterable[Item], folder: Path) -> ConversionCounts:
    """Write the `items` of an importer into `folder`, which must not exist or be empty.

    Raises:
        AbstainError: the folder is not empty, or there is nothing to import; nothing is written then.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise AbstainError(Code.NOT_WRITABLE, f"{folder}: is there already: name a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    counts = ConversionCounts()
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
        staging = Path(scratch) / folder.name
        (staging / DOCUMENTS).mkdir(parents=True)
        with (staging / ROWS).open("w", encoding="utf-8") as rows:
            for item in items:
                counts.count(item)
                if isinstance(item, DocumentFile):
                    (staging / DOCUMENTS / item.name).write_text(item.text, encoding="utf-8")
                elif not isinstance(item, SkippedRecord):
                    rows.write(json.dumps(item, ensure_ascii=False) + "\n")
        if not counts.interactions and not counts.documents:
            raise AbstainError(Code.NO_ROWS, "the files hold nothing to import")
        if not counts.interactions:
            (staging / ROWS).unlink()
        if not counts.documents:
            (staging / DOCUMENTS).rmdir()
        staging.replace(folder)
    return counts
