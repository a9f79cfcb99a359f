"""Maintenance of a feature cache with many writers: list its content, verify it, prune it.

Notes:

* All information comes from the files themselves, over all namespaces of a root. There is no ledger that could be
  wrong.
* Only files with the names of the cache are moved or deleted, so a root that is shared with other files, or that is set
  incorrectly, loses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from abstain.llm.features.file_store import FileStore, StoredFile
from abstain.llm.features.job_files import find_abandoned_jobs
from abstain.llm.features.shard import (
    SHARD_NAME,
    CacheNamespace,
    DamagedShard,
    Header,
    list_shards,
    load_shard,
    parse_header,
)

ABANDONED_FILE = re.compile(
    r"quarantine/[0-9a-f]{16}-[0-9a-f]{32}\.safetensors|[0-9a-f]{16}/\.[0-9a-f]{32}\.safetensors\.\w+"
)


@dataclass(frozen=True)
class NamespaceStats:
    """Statistics of one namespace of a cache.

    Attributes:
        digest: Digest of the namespace, the name of its folder.
        namespace: The namespace; None if no header of its shards can be read.
        rows: Number of stored rows; a row that is stored twice counts twice.
        distinct: Number of distinct rows.
        shards: Number of shards.
        unreadable: Number of shards whose header is damaged or of an older format.
        bytes: Size of all shards.
        written_at: Time of the last write (UTC).
    """

    digest: str
    namespace: CacheNamespace | None
    rows: int
    distinct: int
    shards: int
    unreadable: int
    bytes: int
    written_at: datetime


@dataclass(frozen=True)
class VerifyResult:
    """Result of a verification.

    Attributes:
        checked: Number of shards read.
        damaged: Names, relative to the root, of the shards that were moved to quarantine.
    """

    checked: int
    damaged: tuple[str, ...]


@dataclass(frozen=True)
class PruneResult:
    """Result of a prune.

    Attributes:
        names: Names, relative to the root, of the removed files; in a dry run, of those that would be removed.
        bytes: Their size.
    """

    names: tuple[str, ...]
    bytes: int


def collect_namespace_stats(root: str | Path) -> list[NamespaceStats]:
    """Return the statistics of each namespace, newest first. Only headers are read, and nothing is moved.

    Args:
        root: A local path or an fsspec URL.

    Returns:
        One entry per namespace.
    """
    store = FileStore(root)
    shards_by_namespace: dict[str, list[tuple[StoredFile, Header | None]]] = {}
    for entry, header in _read_headers(store):
        shards_by_namespace.setdefault(entry.name.partition("/")[0], []).append((entry, header))
    result = []
    for digest, namespace_shards in shards_by_namespace.items():
        headers = [header for _, header in namespace_shards if header]
        result.append(
            NamespaceStats(
                digest=digest,
                namespace=headers[0].namespace if headers else None,
                rows=sum(len(header.rows) for header in headers),
                distinct=len({key for header in headers for key in header.rows}),
                shards=len(namespace_shards),
                unreadable=len(namespace_shards) - len(headers),
                bytes=sum(entry.size for entry, _ in namespace_shards),
                written_at=max(entry.written_at for entry, _ in namespace_shards),
            )
        )
    return sorted(result, key=lambda stats: stats.written_at, reverse=True)


def verify(root: str | Path, on_progress: Callable[[int, int], None] = lambda done, total: None) -> VerifyResult:
    """Read every shard and move the damaged ones to quarantine.

    Args:
        root: A local path or an fsspec URL.
        on_progress: Called with (shards read, shards in total).

    Returns:
        The number of shards, and the damaged ones.
    """
    store = FileStore(root)
    names = [entry.name for entry in list_shards(store)]
    damaged = []
    for checked, name in enumerate(names, start=1):
        try:
            load_shard(store, name)
        except DamagedShard:
            damaged.append(name)
        except FileNotFoundError:  # pruned in the meantime
            pass
        on_progress(checked, len(names))
    return VerifyResult(len(names), tuple(damaged))


def prune(
    root: str | Path, keys_to_keep: Mapping[str, Set[str]], older_than: timedelta, dry_run: bool = False
) -> PruneResult:
    """Delete old shards that hold none of the given rows.

    Quarantined shards and files that killed writers left behind are deleted at the same age; jobs of killed runs after
    a week, whatever `older_than` is. A row that is deleted in error costs one forward pass.

    Args:
        root: A local path or an fsspec URL.
        keys_to_keep: Digest of a namespace -> keys of its rows. A shard with one of these stays.
        older_than: Minimum age, since the last write, of a deleted shard.
        dry_run: Only list the files.

    Returns:
        The removed files, and their size.
    """
    store = FileStore(root)
    cutoff = datetime.now(UTC) - older_than
    entries = store.list()
    old = [entry for entry in entries if entry.written_at < cutoff]
    obsolete = find_abandoned_jobs(entries) + [entry for entry in old if ABANDONED_FILE.fullmatch(entry.name)]
    for entry, header in _read_headers(store, [entry for entry in old if SHARD_NAME.fullmatch(entry.name)]):
        namespace_keys = keys_to_keep.get(entry.name.partition("/")[0], frozenset())
        if header is None or namespace_keys.isdisjoint(header.rows):
            obsolete.append(entry)
    if not dry_run:
        for entry in obsolete:
            store.delete(entry.name)
    return PruneResult(tuple(sorted(entry.name for entry in obsolete)), sum(entry.size for entry in obsolete))


def _read_headers(store: FileStore, entries: list[StoredFile] | None = None) -> list[tuple[StoredFile, Header | None]]:
    """Return each existing shard with its header; None if the header is damaged."""
    result: list[tuple[StoredFile, Header | None]] = []
    for entry, head in store.read_heads(list_shards(store) if entries is None else entries):
        if head is None:
            continue
        try:
            result.append((entry, parse_header(head, entry.size)))
        except DamagedShard:
            result.append((entry, None))
    return result
