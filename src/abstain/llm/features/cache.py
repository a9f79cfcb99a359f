"""Content-addressed feature cache: the key of a row of states is a digest of its inputs.

Notes:

* A namespace fixes the properties that many rows share (base model and tokenizer, dtype, operation, engine version). A
  key is the digest of the text of one prompt. Neither depends on a run or a host.
* Any number of hosts can write at the same time without a lock. A shard appears whole and is named by its rows, so two
  writers of one row store it twice at most.
* Rows are read shard by shard, so memory holds one shard, and a damaged shard costs a recomputation, never a run.
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
    encode_shard,
    list_shards,
    load_shard,
    parse_header,
    quarantine,
)

__all__ = ["CacheNamespace", "FeatureCache", "prompt_key", "write_rows"]

log = logging.getLogger(__name__)


def prompt_key(prompt: PromptSegments) -> str:
    """Return the sha256 (hex) of the segments of a prompt: equal text in equal segments gives an equal key."""
    return hashlib.sha256(
        repr([(segment.name, segment.text, segment.literal, segment.eos) for segment in prompt]).encode()
    ).hexdigest()


def write_rows(store: FileStore, namespace: CacheNamespace, rows: Mapping[str, Tensor]) -> Header:
    """Write rows as one shard without reading the index.

    Args:
        store: Storage of the cache.
        namespace: Namespace of the rows.
        rows: Key -> row `(n, width)`; at least one.

    Returns:
        The header of the new shard.

    Raises:
        ValueError: The rows differ in width or dtype, or the dtype is not a float.
        AbstainError: The storage cannot be written.
    """
    header, content = encode_shard(namespace, rows)
    store.write(header.name, content)
    return header


class FeatureCache:
    """Rows of one `CacheNamespace`, stored below a root.

    The cache sees the shards that existed when it was opened or refreshed, and those that it writes. Opening it writes
    nothing, unless a shard with a damaged header has to be moved.

    Args:
        root: A local path or an fsspec URL.
        namespace: Namespace of the rows.

    Raises:
        AbstainError: The root cannot be read or written; this applies to every method.
    """

    def __init__(self, root: str | Path, namespace: CacheNamespace) -> None:
        self.namespace = namespace
        self._store = FileStore(root)
        self._shards: dict[str, Header] = {}
        self._shards_by_key: dict[str, list[str]] = {}  # names of the shards that hold a key
        self.refresh()

    def refresh(self) -> None:
        """List the shards again: add the new ones of other writers, and drop those that were pruned."""
        entries_by_name = {entry.name: entry for entry in list_shards(self._store, self.namespace.digest)}
        for name in self._shards.keys() - entries_by_name.keys():
            self._remove_shard(name)
        for entry, head in self._store.read_heads(
            [entries_by_name[name] for name in entries_by_name.keys() - self._shards.keys()]
        ):
            if head is None:
                continue
            try:
                header = parse_header(head, entry.size)
                if header.name != entry.name:
                    raise DamagedShard("its name is another shard's")
            except DamagedShard as error:
                quarantine(self._store, entry.name)
                self._quarantine_shard(entry.name, error)
            else:
                self._add_shard(header)

    def find_missing(self, keys: Iterable[str]) -> list[str]:
        """Return the keys that are not in the cache, each once, in the order of `keys`."""
        return [key for key in dict.fromkeys(keys) if key not in self._shards_by_key]

    def write(self, rows: Mapping[str, Tensor]) -> None:
        """Write rows as one shard; do nothing if there are none.

        Args:
            rows: Key -> row `(n, width)`.

        Raises:
            ValueError: The rows differ from the width or the float dtype of the namespace.
        """
        if not rows:
            return
        width_and_dtype = next((row.shape[-1], row.dtype) for row in rows.values())
        if self.get_width_and_dtype() not in (None, width_and_dtype):
            raise ValueError(f"rows of this namespace are {self.get_width_and_dtype()}, not {width_and_dtype}")
        self._add_shard(write_rows(self._store, self.namespace, rows))

    def get_lengths(self, keys: Iterable[str]) -> list[int]:
        """Return the number of vectors of each key, read from the index only.

        Args:
            keys: Keys of cached rows.

        Returns:
            One number per key, in order.

        Raises:
            KeyError: A key is not in the cache.
        """
        spans = [self._shards[self._shards_by_key[key][0]].rows[key] for key in keys]
        return [last - first for first, last in spans]

    def get_width_and_dtype(self) -> tuple[int, torch.dtype] | None:
        """Return width and dtype of all rows, read from the index only; None if there are no rows."""
        return next(((header.width, header.dtype) for header in self._shards.values()), None)

    def read(self, keys: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield each cached row once, shard by shard, in no guaranteed order.

        The checksum of a shard is verified before any of its rows is yielded. Rows of a damaged shard come from another
        shard that holds them. If there is none, they are not yielded, and `find_missing` reports them again: compute
        them, then read again.

        Args:
            keys: Keys of the rows to read; those that are not cached are ignored.

        Yields:
            Key and row `(n, width)`.
        """
        remaining = list(dict.fromkeys(keys))
        while remaining := [key for key in remaining if key in self._shards_by_key]:
            retry: list[str] = []
            for name, shard_keys in self._group_by_shard(remaining).items():
                try:
                    header, states = load_shard(self._store, name)
                except (DamagedShard, FileNotFoundError) as error:
                    self._quarantine_shard(name, error)
                    retry += shard_keys
                    continue
                for key in shard_keys:
                    first, last = header.rows[key]
                    yield key, states[first:last].clone()  # a row must not keep its shard in memory
                del states  # before the next one is read
            remaining = retry

    def _group_by_shard(self, keys: Iterable[str]) -> dict[str, list[str]]:
        """Choose a shard for each key: if several hold it, one that is read anyway."""
        keys_by_shard: dict[str, list[str]] = {}
        for key in keys:
            shard_names = self._shards_by_key[key]
            name = next((name for name in shard_names if name in keys_by_shard), shard_names[0])
            keys_by_shard.setdefault(name, []).append(key)
        return keys_by_shard

    def _add_shard(self, header: Header) -> None:
        self._remove_shard(header.name)
        self._shards[header.name] = header
        for key in header.rows:
            self._shards_by_key.setdefault(key, []).append(header.name)

    def _quarantine_shard(self, name: str, error: Exception) -> None:
        self._remove_shard(name)
        if isinstance(error, DamagedShard):
            log.warning("%s/%s: %s; it is in quarantine/ now, its rows are missing", self._store.url, name, error)

    def _remove_shard(self, name: str) -> None:
        header = self._shards.pop(name, None)
        for key in header.rows if header else ():
            self._shards_by_key[key].remove(name)
            if not self._shards_by_key[key]:
                del self._shards_by_key[key]
