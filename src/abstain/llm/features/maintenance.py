"""Maintenance of a feature cache with many writers: list its content, verify it, prune it.

Notes:

* All information comes from the files themselves, over all spaces of a root; there is no ledger that could be wrong.
* Only files with the cache's own names are moved or deleted, so a root that is shared with other files, or set
  incorrectly, loses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from abstain.llm.features.file_store import FileStore, StoredFile
from abstain.llm.features.job_files import left_jobs
from abstain.llm.features.shard import NAME, CacheNamespace, DamagedShard, Header, load_shard, parse_header, shards

LEFT_BEHIND = re.compile(
    r"quarantine/[0-9a-f]{16}-[0-9a-f]{32}\.safetensors|[0-9a-f]{16}/\.[0-9a-f]{32}\.safetensors\.\w+"
)


@dataclass(frozen=True)
class NamespaceStats:
    """One space of a cache. `rows` counts a row as often as it is stored, `distinct` once."""

    digest: str
    space: CacheNamespace | None  # None where no shard's header can be read
    rows: int
    distinct: int
    shards: int
    unreadable: int  # of `shards`: those whose header is damaged, or of an older format
    bytes: int
    written: datetime


@dataclass(frozen=True)
class VerifyResult:
    """The number of shards read, and the names, relative to the root, of those moved to quarantine."""

    checked: int
    damaged: tuple[str, ...]


@dataclass(frozen=True)
class PruneResult:
    """The names, relative to the root, of removed files (in a dry run, of those to be removed), and their bytes."""

    names: tuple[str, ...]
    bytes: int


def stats(root: str | Path) -> list[NamespaceStats]:
    """Every space under `root`, newest first. Reads headers only, and moves nothing."""
    store = FileStore(root)
    spaces: dict[str, list[tuple[StoredFile, Header | None]]] = {}
    for entry, header in _headers(store):
        spaces.setdefault(entry.name.partition("/")[0], []).append((entry, header))
    result = []
    for digest, found in spaces.items():
        headers = [header for _, header in found if header]
        result.append(
            NamespaceStats(
                digest=digest,
                space=headers[0].namespace if headers else None,
                rows=sum(len(header.rows) for header in headers),
                distinct=len({key for header in headers for key in header.rows}),
                shards=len(found),
                unreadable=len(found) - len(headers),
                bytes=sum(entry.size for entry, _ in found),
                written=max(entry.written for entry, _ in found),
            )
        )
    return sorted(result, key=lambda space: space.written, reverse=True)


def verify(root: str | Path, progress: Callable[[int, int], None] = lambda done, total: None) -> VerifyResult:
    """Read every shard under `root` and move the damaged ones to quarantine."""
    store = FileStore(root)
    names = [entry.name for entry in shards(store)]
    bad = []
    for done, name in enumerate(names, start=1):
        try:
            load_shard(store, name)
        except DamagedShard:
            bad.append(name)
        except FileNotFoundError:  # pruned since
            pass
        progress(done, len(names))
    return VerifyResult(len(names), tuple(bad))


def prune(root: str | Path, keep: Mapping[str, Set[str]], older_than: timedelta, dry_run: bool = False) -> PruneResult:
    """Delete the shards that were last written more than `older_than` ago and hold no row that `keep` names.

    `keep` maps a space's digest to keys. Quarantined shards and what killed writers left are deleted at that age, too;
    the jobs of killed runs after a week, whatever `older_than` is. A row deleted in error costs one forward pass.
    """
    store = FileStore(root)
    before = datetime.now(UTC) - older_than
    entries = store.list()
    old = [entry for entry in entries if entry.written < before]
    doomed = left_jobs(entries) + [entry for entry in old if LEFT_BEHIND.fullmatch(entry.name)]
    for entry, header in _headers(store, [entry for entry in old if NAME.fullmatch(entry.name)]):
        kept = keep.get(entry.name.partition("/")[0], frozenset())
        if header is None or kept.isdisjoint(header.rows):
            doomed.append(entry)
    if not dry_run:
        for entry in doomed:
            store.delete(entry.name)
    return PruneResult(tuple(sorted(entry.name for entry in doomed)), sum(entry.size for entry in doomed))


def _headers(store: FileStore, entries: list[StoredFile] | None = None) -> list[tuple[StoredFile, Header | None]]:
    """Each shard with its header, None where that is damaged; without those that are gone."""
    result: list[tuple[StoredFile, Header | None]] = []
    for entry, head in store.heads(shards(store) if entries is None else entries):
        if head is None:
            continue
        try:
            result.append((entry, parse_header(head, entry.size)))
        except DamagedShard:
            result.append((entry, None))
    return result
