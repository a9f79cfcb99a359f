"""File format of the feature cache: self-describing safetensors files with a checksum.

Notes:

* The header holds everything except the numbers: the namespace, the rows, and the sha256 of the payload. Listing never
  reads a payload; reading always verifies it.
* The header is one metadata entry, because safetensors writes several in random order and equal shards must be equal
  files. The name is the digest of the keys and positions of the rows, so writers of the same rows write the same file.
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

from abstain.llm.features.file_store import FileStore, StoredFile, get_header_end

SHARD_NAME = re.compile(r"[0-9a-f]{16}/[0-9a-f]{32}\.safetensors")
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class CacheNamespace:
    """Common properties of all rows of one cache folder.

    Attributes:
        model: Base model as name@revision.
        dtype: Data type of the computation.
        operation: The operation, as text.
        engine: Version of the numerics.
    """

    model: str
    dtype: str
    operation: str
    engine: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


class DamagedShard(Exception):
    """A file that does not match its name and header; the message states the reason. It never leaves the cache."""


@dataclass(frozen=True)
class Header:
    """Header of a shard.

    Attributes:
        namespace: Namespace of the rows.
        rows: Key -> first and last (exclusive) index of its vectors.
        sha256: Checksum of the payload.
        width: Length of a vector.
        dtype: Data type of the vectors.
        start: Start of the payload in bytes.
    """

    namespace: CacheNamespace
    rows: dict[str, tuple[int, int]]
    sha256: str
    width: int
    dtype: torch.dtype
    start: int

    @cached_property
    def name(self) -> str:
        """Path relative to the root, cached because it is read once per row and computing it digests all rows."""
        index = [[key, first, last] for key, (first, last) in self.rows.items()]
        return f"{self.namespace.digest}/{hashlib.sha256(json.dumps(index).encode()).hexdigest()[:32]}.safetensors"


def encode_shard(namespace: CacheNamespace, rows: Mapping[str, Tensor]) -> tuple[Header, bytes]:
    """Encode rows as one shard.

    Args:
        namespace: Namespace of the rows.
        rows: Key -> row `(n, width)`; at least one.

    Returns:
        The header, and the content of the file.

    Raises:
        ValueError: A row is not a matrix, or the rows differ in width or float dtype.
    """
    if {row.ndim for row in rows.values()} != {2}:
        raise ValueError("a row of the feature cache is a tensor (n, w)")
    kinds = {(row.shape[1], row.dtype) for row in rows.values()}
    if len(kinds) != 1 or not kinds <= {(width, dtype) for width, _ in kinds for dtype in DTYPES.values()}:
        raise ValueError(f"rows of one namespace have one width and one float dtype, not {kinds}")
    (width, dtype), spans, start = kinds.pop(), {}, 0
    for key, row in rows.items():
        spans[key] = (start, start + len(row))
        start += len(row)
    states = torch.cat([row.detach().cpu() for row in rows.values()]).contiguous()
    sha256 = hashlib.sha256(states.flatten().view(torch.uint8).numpy().data).hexdigest()
    index = {"namespace": asdict(namespace), "rows": [[key, *span] for key, span in spans.items()], "sha256": sha256}
    content = save({"states": states}, {"index": json.dumps(index)})
    return Header(namespace, spans, sha256, width, dtype, get_header_end(content)), content


def parse_header(head: bytes, size: int) -> Header:
    """Parse the header of a shard.

    Args:
        head: First bytes of the file, at least up to the end of the header.
        size: Size of the file in bytes.

    Returns:
        The header.

    Raises:
        DamagedShard: The header cannot be read, or does not match the size.
    """
    try:
        start = get_header_end(head)
        header = json.loads(head[8:start])
        index, states = json.loads(header["__metadata__"]["index"]), header["states"]
        (tokens, width), (first, last) = states["shape"], states["data_offsets"]
        rows = {str(key): (int(a), int(b)) for key, a, b in index["rows"]}
        parsed = Header(
            CacheNamespace(**index["namespace"]), rows, str(index["sha256"]), int(width), DTYPES[states["dtype"]], start
        )
        is_complete = start + last == size and (first, last) == (0, tokens * width * parsed.dtype.itemsize)
        is_inside = all(0 <= a <= b <= tokens for a, b in rows.values())
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DamagedShard("its header cannot be read") from error
    if not is_complete:
        raise DamagedShard("it is cut off, or longer than its header states")
    if not is_inside:
        raise DamagedShard("its index points outside")
    return parsed


def decode_shard(name: str, content: bytes) -> tuple[Header, Tensor]:
    """Decode a shard and check it against its name and checksum.

    Args:
        name: Name of the shard, relative to the root.
        content: Content of the file.

    Returns:
        The header, and the vectors `(tokens, width)`.

    Raises:
        DamagedShard: The content does not match the name, the header or the checksum.
    """
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
    """Read and decode a shard.

    Args:
        store: Storage of the cache.
        name: Name of the shard, relative to the root.

    Returns:
        The header, and the vectors `(tokens, width)`.

    Raises:
        FileNotFoundError: The shard no longer exists.
        DamagedShard: The shard is damaged; it was moved to quarantine.
    """
    try:
        return decode_shard(name, store.read(name))
    except DamagedShard:
        try:
            # Once more, for a network that garbled it, or a writer that replaced an object between two ranges of it.
            return decode_shard(name, store.read(name))
        except DamagedShard:
            quarantine(store, name)
            raise


def quarantine(store: FileStore, name: str) -> None:
    """Move the shard `name` to quarantine.

    Args:
        store: Storage of the cache.
        name: Name of the shard, relative to the root.
    """
    with suppress(FileNotFoundError):  # another reader was faster
        store.move(name, f"quarantine/{name.replace('/', '-')}")


def list_shards(store: FileStore, folder: str = "") -> list[StoredFile]:
    """Return the shards of a store; other files are ignored.

    Args:
        store: Storage of the cache.
        folder: Digest of one namespace; empty for all.

    Returns:
        The shards, by name.
    """
    return [entry for entry in store.list(folder) if SHARD_NAME.fullmatch(entry.name)]
