"""The content-addressed feature cache: the key of a row of states is a digest of its inputs.

Notes:

* A *space* fixes everything that is equal for many rows (base model and tokenizer, dtype, request kind,
  engine version); a *key* is the digest of one pass's text. Nothing about runs or hosts is in either.
* Any number of hosts write at the same time without a lock: a shard appears whole, and is named by its rows, so
  two writers of one row store it twice at most.
* Rows are read shard by shard, so memory holds one shard, and a damaged one costs a recomputation, never a run.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from abstain.llm.engine.prompts import PromptSegments
from abstain.llm.features.file_store import FileStore
from abstain.llm.features.shard import (
    CacheNamespace,
    DamagedShard,
    Header,
    encode,
    load_shard,
    parse_header,
    quarantine,
    shards,
)

__all__ = ["CacheNamespace", "FeatureCache", "prompt_key", "write_rows"]

log = logging.getLogger(__name__)


def prompt_key(pass_: PromptSegments) -> str:
    """sha256 (hex) of a pass's segments: equal text in equal segments, equal key."""
    return hashlib.sha256(repr([(s.name, s.text, s.literal, s.eos) for s in pass_]).encode()).hexdigest()


def write_rows(store: FileStore, namespace: CacheNamespace, rows: Mapping[str, Tensor]) -> Header:
    """Write `rows`, key -> (n, w), as one shard, without reading the index."""
    header, content = encode(namespace, rows)
    store.write(header.name, content)
    return header


class FeatureCache:
    """Rows of one `CacheNamespace` under `root`, a local path or an fsspec URL.

    Sees the shards that were there when it was opened or refreshed, and its own. Opening writes nothing, unless a
    shard with a damaged header is there to be moved. Every method raises `AbstainError` where the root cannot be
    read or written.
    """

    def __init__(self, root: str | Path, space: CacheNamespace) -> None:
        self.space = space
        self._store = FileStore(root)
        self._shards: dict[str, Header] = {}
        self._holders: dict[str, list[str]] = {}  # key -> the shards that hold it
        self.refresh()

    def refresh(self) -> None:
        """List the shards again: other writers' new ones are seen, and pruned ones forgotten."""
        there = {entry.name: entry for entry in shards(self._store, self.space.digest)}
        for name in self._shards.keys() - there.keys():
            self._forget(name)
        for entry, head in self._store.heads([there[name] for name in there.keys() - self._shards.keys()]):
            if head is None:
                continue
            try:
                header = parse_header(head, entry.size)
                if header.name != entry.name:
                    raise DamagedShard("its name is another shard's")
            except DamagedShard as damage:
                quarantine(self._store, entry.name)
                self._quarantine_shard(entry.name, damage)
            else:
                self._remember(header)

    def missing(self, keys: Iterable[str]) -> list[str]:
        """The `keys` that are not in the cache, each once, in order."""
        return [key for key in dict.fromkeys(keys) if key not in self._holders]

    def put(self, rows: Mapping[str, Tensor]) -> None:
        """Write `rows`, key -> (n, w), as one shard; nothing where there are none.

        ValueError for rows that are not of the space's one width and float dtype.
        """
        if not rows:
            return
        kind = next((row.shape[-1], row.dtype) for row in rows.values())
        if self.width_dtype() not in (None, kind):
            raise ValueError(f"rows of this space are {self.width_dtype()}, not {kind}")
        self._remember(write_rows(self._store, self.space, rows))

    def lengths(self, keys: Iterable[str]) -> list[int]:
        """The number of vectors of each of `keys`, from the index alone. KeyError for one that is missing."""
        places = [self._shards[self._holders[key][0]].rows[key] for key in keys]
        return [last - first for first, last in places]

    def width_dtype(self) -> tuple[int, torch.dtype] | None:
        """Width and dtype of all rows, from the index alone; None while there are none."""
        return next(((header.width, header.dtype) for header in self._shards.values()), None)

    def read(self, keys: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield every cached one of `keys` once, with its row (n, w), shard by shard, in no guaranteed order.

        A shard's checksum is verified before any of its rows is given. Rows of a damaged shard come from another
        shard that holds them; otherwise they are not given and are `missing` again: compute them, and read again.
        """
        todo = list(dict.fromkeys(keys))
        while todo := [key for key in todo if key in self._holders]:
            again: list[str] = []
            for name, wanted in self._by_shard(todo).items():
                try:
                    header, states = load_shard(self._store, name)
                except (DamagedShard, FileNotFoundError) as damage:
                    self._quarantine_shard(name, damage)
                    again += wanted
                    continue
                for key in wanted:
                    first, last = header.rows[key]
                    yield key, states[first:last].clone()  # a row must not keep its shard in memory
                del states  # before the next one is read
            todo = again

    def _by_shard(self, keys: Iterable[str]) -> dict[str, list[str]]:
        """The shard from which to read each of `keys`; where there is a choice, one that is read anyway."""
        chosen: dict[str, list[str]] = {}
        for key in keys:
            holders = self._holders[key]
            name = next((name for name in holders if name in chosen), holders[0])
            chosen.setdefault(name, []).append(key)
        return chosen

    def _remember(self, header: Header) -> None:
        self._forget(header.name)
        self._shards[header.name] = header
        for key in header.rows:
            self._holders.setdefault(key, []).append(header.name)

    def _quarantine_shard(self, name: str, damage: Exception) -> None:
        self._forget(name)
        if isinstance(damage, DamagedShard):
            log.warning("%s/%s: %s; it is in quarantine/ now, its rows are missing", self._store.url, name, damage)

    def _forget(self, name: str) -> None:
        header = self._shards.pop(name, None)
        for key in header.rows if header else ():
            self._holders[key].remove(name)
            if not self._holders[key]:
                del self._holders[key]
