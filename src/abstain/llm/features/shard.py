"""The file format of the feature cache: self-describing safetensors files with a checksum.

Notes:

* The header holds everything but the numbers: the space, the rows, and the payload's sha256. Listing never reads a
  payload; reading always verifies it.
* The header is one metadata entry, because safetensors writes several in random order and equal shards must be
  equal files. The name is the digest of the rows' keys and places, so writers of the same rows write the same file.
* Damaged shards are moved to `quarantine/` for inspection, and never read again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from abstain.llm.features.file_store import FileStore, StoredFile, header_end

NAME = re.compile(r"(?P<space>[0-9a-f]{16})/[0-9a-f]{32}\.safetensors")
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class CacheNamespace:
    """The common properties of all rows of one cache folder.

    `model` is name@revision, `ask` the request kind as text, `engine` the version of the numerics.
    """

    model: str
    dtype: str
    ask: str
    engine: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


class DamagedShard(Exception):
    """A file that does not match its name and header; the message states why. Never leaves the cache."""


@dataclass(frozen=True)
class Header:
    """The header of a shard: `rows` maps a key to the first and the last (exclusive) of its vectors."""

    namespace: CacheNamespace
    rows: dict[str, tuple[int, int]]
    sha256: str
    width: int
    dtype: torch.dtype
    start: int

    @cached_property
    def name(self) -> str:
        """Relative to the cache's root. Cached: it is read once a row, and computing it digests all rows."""
        index = [[key, first, last] for key, (first, last) in self.rows.items()]
        return f"{self.namespace.digest}/{hashlib.sha256(json.dumps(index).encode()).hexdigest()[:32]}.safetensors"


def encode(space: CacheNamespace, rows: Mapping[str, Tensor]) -> tuple[Header, bytes]:
    """One shard of at least one row, each (n, w) with one w and one dtype. ValueError for others."""
    if {row.ndim for row in rows.values()} != {2}:
        raise ValueError("a row of the feature cache is a tensor (n, w)")
    kinds = {(row.shape[1], row.dtype) for row in rows.values()}
    if len(kinds) != 1 or not kinds <= {(width, dtype) for width, _ in kinds for dtype in DTYPES.values()}:
        raise ValueError(f"rows of one space have one width and one float dtype, not {kinds}")
    (width, dtype), places, at = kinds.pop(), {}, 0
    for key, row in rows.items():
        places[key] = (at, at + len(row))
        at += len(row)
    states = torch.cat([row.detach().cpu() for row in rows.values()]).contiguous()
    sha256 = hashlib.sha256(states.flatten().view(torch.uint8).numpy().data).hexdigest()
    index = {"space": asdict(space), "rows": [[key, *place] for key, place in places.items()], "sha256": sha256}
    content = save({"states": states}, {"index": json.dumps(index)})
    return Header(space, places, sha256, width, dtype, header_end(content)), content


def parse_header(head: bytes, size: int) -> Header:
    """The header of a shard of `size` bytes that begins with `head`. Raises `DamagedShard`."""
    try:
        start = header_end(head)
        header = json.loads(head[8:start])
        index, states = json.loads(header["__metadata__"]["index"]), header["states"]
        (tokens, width), (first, last) = states["shape"], states["data_offsets"]
        rows = {str(key): (int(a), int(b)) for key, a, b in index["rows"]}
        parsed = Header(
            CacheNamespace(**index["space"]), rows, str(index["sha256"]), int(width), DTYPES[states["dtype"]], start
        )
        whole = start + last == size and (first, last) == (0, tokens * width * parsed.dtype.itemsize)
        inside = all(0 <= a <= b <= tokens for a, b in rows.values())
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DamagedShard("its header cannot be read") from error
    if not whole:
        raise DamagedShard("it is cut off, or longer than its header states")
    if not inside:
        raise DamagedShard("its index points outside")
    return parsed


def decode(name: str, content: bytes) -> tuple[Header, Tensor]:
    """Header and vectors (tokens, w) of the shard `name`, checked against name and checksum. Raises `DamagedShard`."""
    header = parse_header(content, len(content))
    if header.name != name:
        raise DamagedShard("its name is another shard's")
    if hashlib.sha256(memoryview(content)[header.start :]).hexdigest() != header.sha256:
        raise DamagedShard("its checksum is wrong")
    try:
        return header, load(content)["states"]
    except SafetensorError as error:
        raise DamagedShard("its header cannot be read") from error


def load_shard(store: FileStore, name: str) -> tuple[Header, Tensor]:
    """`decode` of the shard in `store`.

    Raises FileNotFoundError where it is gone, and `DamagedShard` where it was damaged: it is in quarantine now.
    """
    try:
        return decode(name, store.read(name))
    except DamagedShard:
        try:
            # Once more, for a network that garbled it, or a writer that replaced an object between two ranges of it.
            return decode(name, store.read(name))
        except DamagedShard:
            quarantine(store, name)
            raise


def quarantine(store: FileStore, name: str) -> None:
    """Move the shard `name` to quarantine."""
    with suppress(FileNotFoundError):  # another reader was faster
        store.move(name, f"quarantine/{name.replace('/', '-')}")


def shards(store: FileStore, folder: str = "") -> list[StoredFile]:
    """The shards in `store`, or of one space of it; other files are ignored."""
    return [entry for entry in store.list(folder) if NAME.fullmatch(entry.name)]
