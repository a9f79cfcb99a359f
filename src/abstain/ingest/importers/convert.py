"""`abstain import`: run an importer by its name and write what it gives into a new folder, whole or not at all.

rows.jsonl          rows of the import format, thumbs and reviews
documents/*.md      documents for the knowledge base
"""

from __future__ import annotations

import difflib
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from abstain.config.yaml_model import Section
from abstain.core.errors import AbstainError
from abstain.ingest.importers import DocumentFile, Importer, Item, Skipped, feedbackqa, qa_from_hf, squad

IMPORTERS: dict[str, Importer] = {one.name: one for one in (squad.IMPORTER, qa_from_hf.IMPORTER, feedbackqa.IMPORTER)}

ROWS = "rows.jsonl"
DOCUMENTS = "documents"


@dataclass
class Converted:
    """How much was written, and how many records were skipped, by reason."""

    interactions: int = 0
    feedback: int = 0
    reviews: int = 0
    documents: int = 0
    skipped: Counter[str] = field(default_factory=Counter)


def find_importer(name: str) -> Importer:
    """The importer of that name. Raises `AbstainError` that names the nearest."""
    if name in IMPORTERS:
        return IMPORTERS[name]
    nearest = difflib.get_close_matches(name, IMPORTERS, n=1)
    raise AbstainError(
        f"unknown format '{name}': "
        + (f"did you mean '{nearest[0]}'?" if nearest else f"there are {', '.join(IMPORTERS)}")
    )


def parse_options(importer: Importer, settings: Sequence[str]) -> Section:
    """Options from `name=value` texts. Raises `AbstainError` for one that the format does not have."""
    valid = ", ".join(importer.options.model_fields)
    pairs = [setting.partition("=")[::2] for setting in settings]
    try:
        return importer.options.model_validate(dict(pairs))
    except ValidationError as error:
        problem = error.errors()[0]
        name = str(problem["loc"][0])
        if problem["type"] == "extra_forbidden":
            nearest = difflib.get_close_matches(name, importer.options.model_fields, n=1)
            hint = f"did you mean '{nearest[0]}'?" if nearest else f"valid: {valid}"
            raise AbstainError(f"{importer.name} has no option '{name}': {hint}") from None
        raise AbstainError(f"option {name}: {problem['msg']}") from None


def convert(importer: Importer, files: Sequence[Path], options: Section, folder: Path) -> Converted:
    """Write what `importer` makes of `files` into `folder`, which must not be there yet, or be empty.

    Raises `AbstainError`, with nothing written, for a file that cannot be read or is of another format.
    """
    if not files:
        raise AbstainError(f"nothing to import: name the files of {importer.summary}")
    with _new_folder(folder) as made:
        converted = Converted()
        with (made / ROWS).open("w", encoding="utf-8") as rows:
            for item in importer.read(files, options):
                _count(item, converted)
                if isinstance(item, DocumentFile):
                    (made / DOCUMENTS).mkdir(exist_ok=True)
                    (made / DOCUMENTS / item.name).write_text(item.text, encoding="utf-8")
                elif not isinstance(item, Skipped):
                    rows.write(json.dumps(item, ensure_ascii=False) + "\n")
        if not converted.interactions:
            (made / ROWS).unlink()
        if not converted.interactions and not converted.documents:
            raise AbstainError(f"{', '.join(map(str, files))}: nothing in there to import")
    return converted


def _count(item: Item, converted: Converted) -> None:
    if isinstance(item, Skipped):
        converted.skipped[item.reason] += 1
    elif isinstance(item, DocumentFile):
        converted.documents += 1
    else:
        converted.interactions += "question" in item
        converted.feedback += "thumb" in item
        converted.reviews += "review" in item or "reviewed_at" in item


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """A folder beside `folder` that takes its place at the end, and is removed on failure."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise AbstainError(f"{folder}: is there already: name a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield made
        made.chmod(0o755)  # mkdtemp's 0700 would lock out other users of a shared folder
        made.replace(folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
