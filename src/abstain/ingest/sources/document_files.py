"""Documents of a source's folder: what the file says of itself, completed by its folder, its path and its time."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

from pydantic import field_validator

from abstain.config.yaml_model import FrozenModel
from abstain.core.contracts import NOBODY
from abstain.core.errors import AbstainError
from abstain.ingest.parsing import ParsedRow, make_document_row
from abstain.ingest.sources.storage import SourceFile, Storage
from abstain.knowledge.documents.reader import MARKDOWN_SUFFIXES, FieldName, FileOrigin, make_document

_GIT_SECONDS = 60
_MAX_NAMES = 5
"""The maximum number of names in a note."""


class FolderDefaults(FrozenModel):
    """What is true of the documents of a folder that do not say it themselves.

    Attributes:
        product: Their product.
        entitlements: Who may read them: a reader must hold all of these; `[]` is everyone.
    """

    product: str | None = None
    entitlements: tuple[str, ...] | None = None


class DocumentRules(FrozenModel):
    """How the documents of a source get their fields.

    Attributes:
        fields: Field of a document -> the name that its files use for it; a dot enters, as in `last_update.date`.
        defaults: Folder below the source, `.` for all -> its defaults; those of a deeper folder come first.
    """

    fields: Mapping[FieldName, str] = {}
    defaults: Mapping[str, FolderDefaults] = {}

    @field_validator("defaults")
    @classmethod
    def _normalize_folders(cls, defaults: Mapping[str, FolderDefaults]) -> Mapping[str, FolderDefaults]:
        return {folder.strip("/").removeprefix("./"): values for folder, values in defaults.items()}

    @property
    def digest(self) -> str:
        """Changes when the rules change; empty if there are none."""
        rules = self.model_dump(mode="json")
        return hashlib.sha256(json.dumps(rules).encode()).hexdigest()[:16] if any(rules.values()) else ""

    def make_origin(self, name: str, updated_at: datetime | None) -> FileOrigin:
        """Return what the rules say of the file with this path, which was changed last at `updated_at`."""
        product, entitlements = None, None
        for folder, defaults in sorted(self.defaults.items(), key=lambda item: len(item[0])):
            if folder == "." or name.startswith(f"{folder}/"):
                product = product if defaults.product is None else defaults.product
                entitlements = entitlements if defaults.entitlements is None else defaults.entitlements
        return FileOrigin(name, updated_at, product, entitlements, self.fields)


class DocumentFiles:
    """Reads the documents of one source and remembers what its report has to tell of them.

    Args:
        rules: How documents get their fields.
        storage: The files.
    """

    def __init__(self, rules: DocumentRules, storage: Storage) -> None:
        self._rules, self._storage = rules, storage
        self._commit_times_by_folder: dict[str, Mapping[str, datetime]] = {}
        self._unused_counts = Counter[str]()
        self._unreadable_by_anyone: list[str] = []
        self._renamed: list[str] = []

    def read(self, file: SourceFile, earlier_id: str | None) -> ParsedRow:
        """Read one document.

        Args:
            file: The file.
            earlier_id: Id of the document that an earlier read found in this file.

        Returns:
            The row.

        Raises:
            AbstainError: The file cannot be read.
        """
        chunks = self._storage.iter_chunks(file)
        content = json.loads(b"".join(chunks))
        origin = self._rules.make_origin(file.name, self._get_time(file))
        try:
            read = make_document(content["fields"], content["body"], origin)
        except AbstainError as error:
            raise AbstainError(error.code, f"{file.display_name}: {error.message}") from None
        document = read.document
        if file.name.lower().endswith(MARKDOWN_SUFFIXES):  # pages have dozens of other `<meta>`
            self._unused_counts.update(read.unused_fields)
        if document.entitlements == (NOBODY,):
            self._unreadable_by_anyone.append(file.name)
        if earlier_id not in (None, document.doc_id):
            self._renamed.append(f"{file.name} ('{earlier_id}', now '{document.doc_id}')")
        return make_document_row(document, file.name, has_own_time=read.has_own_time)

    def make_notes(self) -> Iterator[str]:
        """Yield lines for the report."""
        if self._unreadable_by_anyone:
            yield (
                f"nobody may read {len(self._unreadable_by_anyone):,} documents, because nothing says who may "
                f"({_join(self._unreadable_by_anyone)}): add "
                "`entitlements` to their front matter, or to `documents.defaults` of the source; `[]` is everyone"
            )
        if self._unused_counts:
            counts = (f"{name} ({count:,})" for name, count in self._unused_counts.most_common())
            yield f"fields in front matter that no document has, not taken: {', '.join(counts)}"
        if self._renamed:
            names = _join(self._renamed)
            yield f"files whose document has another id now, the earlier one stays unless `mirror`: {names}"

    def _get_time(self, file: SourceFile) -> datetime | None:
        """Return the time of a file's last commit, else of its last change."""
        if not self._storage.is_local:
            return file.updated_at
        folder = file.path[: len(file.path) - len(file.name)]
        if folder not in self._commit_times_by_folder:
            self._commit_times_by_folder[folder] = read_commit_times(Path(folder))
        return self._commit_times_by_folder[folder].get(file.name, file.updated_at)


def read_commit_times(folder: Path) -> dict[str, datetime]:
    """Read from git when the files of a folder were last changed.

    Args:
        folder: The folder.

    Returns:
        Path relative to the folder -> time of the last commit that changed the file, without files that were changed
        since; empty if the folder is in no repository, or git is not installed.
    """
    try:
        changed = set(_run_git(folder, "ls-files", "--modified", "--others", "-z").split("\0"))
        log = _run_git(folder, "log", "--format=%x01%cI", "--name-only", "--relative", "--", ".")
    except (OSError, subprocess.SubprocessError):
        return {}
    times: dict[str, datetime] = {}
    moment: datetime | None = None
    for line in log.splitlines():
        if line.startswith("\x01"):
            moment = datetime.fromisoformat(line[1:])
        elif line and moment is not None and line not in changed:
            times.setdefault(line, moment)
    return times


def _run_git(folder: Path, *arguments: str) -> str:
    """Run git in a folder that others may write to: none of the programs that its configuration names is started."""
    options = ["-c", "core.fsmonitor=false", "-c", "core.quotePath=false", "-c", "log.showSignature=false"]
    result = subprocess.run(  # noqa: S603
        ["git", *options, *arguments],  # noqa: S607 (the user's git)
        cwd=folder,
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        capture_output=True,
        check=True,
        timeout=_GIT_SECONDS,
    )
    return result.stdout.decode("utf-8", "surrogateescape")


def _join(names: list[str]) -> str:
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more:,} more" if more > 0 else "")
