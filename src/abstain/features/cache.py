"""The content-addressed feature cache: a row of states is found by what it was computed from.

Three decisions:

* A *space* fixes everything that is equal for many rows (base model and tokenizer, prompt layout, layer,
  site, dtype); a *key* is the digest of one pass's text. Nothing about runs is in either.
* Rows are kept in shards, safetensors files written under a temporary name and renamed: a killed run
  leaves whole shards or nothing, and two writers of one row merely store it twice.
* A shard's index stands in its header, so listing what is there never reads a payload.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from abstain.files import write_atomically
from abstain.llm.layout import Pass


@dataclass(frozen=True)
class Space:
    """What all rows of one cache folder have in common."""

    model: str
    layout: str
    layer: int
    site: str
    dtype: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


def pass_key(pass_: Pass) -> str:
    """sha256 (hex) of a pass's segments: equal text in equal segments, equal key."""
    return hashlib.sha256(repr([(s.name, s.text, s.literal, s.eos) for s in pass_]).encode()).hexdigest()


class FeatureCache:
    """States of one `Space` under `root`. Reading sees the shards that were there when it was opened or written."""

    def __init__(self, root: Path, space: Space) -> None:
        self.folder = root / space.digest
        self._places: dict[str, tuple[Path, int, int]] = {}
        for shard in sorted(self.folder.glob("*.safetensors")):
            self._index(shard)

    def missing(self, keys: Iterable[str]) -> list[str]:
        """Those of `keys` that are not in the cache, each once, in order."""
        return [key for key in dict.fromkeys(keys) if key not in self._places]

    def put(self, rows: Mapping[str, Tensor]) -> None:
        """Write `rows`, key -> (tokens, d), as one shard."""
        index, at = [], 0
        for key, states in rows.items():
            index.append([key, at, at + len(states)])
            at += len(states)
        name = hashlib.sha256(json.dumps(index).encode()).hexdigest()[:32]
        shard = self.folder / f"{name}.safetensors"
        write_atomically(shard, save({"states": torch.cat(list(rows.values()))}, {"index": json.dumps(index)}))
        self._index(shard)

    def get(self, keys: Iterable[str]) -> list[Tensor]:
        """The states of `keys`, each (tokens, d), read from memory-mapped shards. KeyError for one that is missing."""
        places = [self._places[key] for key in keys]
        slices = {}
        for shard in {place[0] for place in places}:
            with safe_open(shard, framework="pt") as opened:
                slices[shard] = opened.get_tensor("states")
        return [slices[shard][first:last].clone() for shard, first, last in places]

    def _index(self, shard: Path) -> None:
        try:
            with safe_open(shard, framework="pt") as opened:
                index = json.loads(opened.metadata()["index"])
                places = {key: (shard, first, last) for key, first, last in index}
        except (SafetensorError, KeyError, TypeError, ValueError, FileNotFoundError):
            shard.unlink(missing_ok=True)  # damaged, or gone: its rows are missing again, and will be recomputed
            return
        self._places |= places
