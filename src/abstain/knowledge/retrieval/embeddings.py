"""Embedding cache, keyed by content: a text is encoded once per encoder.

Notes:

* There is one SQLite file per encoder, named by its identity. A row's key is the sha256 of its text, independent of
  documents, versions and runs, so a chunk that moves, comes back or is in two documents is not encoded again.
* Texts are encoded and stored block by block: a killed run loses one block. Writers wait for each other.
* Vectors have unit length, so that an inner product is the cosine.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import create_home
from abstain.knowledge.retrieval.encoder import Encoder, Vectors

BLOCK_TEXTS = 512
_WAIT_SECONDS = 60
_MAX_KEYS = 500  # SQLite's default limit of a statement's parameters is 999 in old builds


class Embeddings:
    """Unit-length embeddings, cached on disk.

    Args:
        encoder: Encodes the texts.
        folder: Folder of the cache, created when needed; None caches nothing.

    Attributes:
        encoder: Encodes the texts.
    """

    def __init__(self, encoder: Encoder, folder: Path | None = None) -> None:
        self.encoder = encoder
        self._file = folder and folder / f"{encoder.identity}.sqlite"

    def embed(
        self, texts: Sequence[str], on_progress: Callable[[int, int], None] = lambda done, total: None
    ) -> Vectors:
        """Embed texts; only those that are not cached yet are encoded, each once.

        Args:
            texts: The texts.
            on_progress: Called with the number of texts encoded so far and their total.

        Returns:
            Unit vectors, (texts, dimension), float32.

        Raises:
            AbstainError: The cache cannot be read or written.
        """
        keys = [hashlib.sha256(text.encode()).digest() for text in texts]
        texts_by_key = dict(zip(keys, texts, strict=True))
        vectors: dict[bytes, Vectors] = {}
        if self._file is None:
            for block in self._iter_encoded_blocks(texts_by_key, on_progress):
                vectors |= block
        else:
            with self._open(self._file) as database:
                vectors |= _read_vectors(database, list(texts_by_key))
                for block in self._iter_encoded_blocks(
                    {k: t for k, t in texts_by_key.items() if k not in vectors}, on_progress
                ):
                    vectors |= block
                    with database:
                        rows = [(key, vector.astype("<f4").tobytes()) for key, vector in block.items()]
                        database.executemany("INSERT OR REPLACE INTO embeddings VALUES (?, ?)", rows)
        return np.stack([vectors[key] for key in keys]) if keys else np.zeros((0, 0), np.float32)

    def embed_question(self, text: str) -> Vectors:
        """Embed a single question without caching it.

        Args:
            text: The question.

        Returns:
            Its unit vector, (dimension,), float32.
        """
        vector: Vectors = normalize_rows(self.encoder.encode([text]))[0]
        return vector

    def _iter_encoded_blocks(
        self, texts: dict[bytes, str], on_progress: Callable[[int, int], None]
    ) -> Iterator[dict[bytes, Vectors]]:
        done = 0
        # Long ones together: a batch is as wide as its longest text.
        longest_first = sorted(texts.items(), key=lambda item: -len(item[1]))
        for block in (longest_first[start : start + BLOCK_TEXTS] for start in range(0, len(texts), BLOCK_TEXTS)):
            vectors = normalize_rows(self.encoder.encode([text for _, text in block]))
            yield {key: vector for (key, _), vector in zip(block, vectors, strict=True)}
            done += len(block)
            on_progress(done, len(texts))

    @contextmanager
    def _open(self, file: Path) -> Iterator[sqlite3.Connection]:
        try:
            create_home(file.parent.parent)
            file.parent.mkdir(exist_ok=True)
            with closing(sqlite3.connect(file, timeout=_WAIT_SECONDS)) as database:
                database.execute("CREATE TABLE IF NOT EXISTS embeddings (key BLOB PRIMARY KEY, vector BLOB NOT NULL)")
                yield database
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                remedy = "check who owns that folder, and that its disk has room"
            else:
                remedy = "delete it, and they will be computed again"
            raise AbstainError(
                Code.BAD_ARTIFACT, f"{file}: the embeddings kept there cannot be used ({error}): {remedy}"
            ) from None
        except OSError as error:
            raise AbstainError(
                Code.NOT_WRITABLE, f"{file.parent}: cannot keep embeddings there: {error.strerror}"
            ) from None


def normalize_rows(vectors: Vectors) -> Vectors:
    """Scale rows to length 1.

    Args:
        vectors: Vectors, (rows, dimension).

    Returns:
        Unit vectors, (rows, dimension), float32; a row of zeros stays zero.
    """
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(norms, 1e-12), dtype=np.float32)


def _read_vectors(database: sqlite3.Connection, keys: Sequence[bytes]) -> dict[bytes, Vectors]:
    vectors: dict[bytes, Vectors] = {}
    for batch in (keys[start : start + _MAX_KEYS] for start in range(0, len(keys), _MAX_KEYS)):
        placeholders = ", ".join("?" * len(batch))
        query = f"SELECT key, vector FROM embeddings WHERE key IN ({placeholders})"  # noqa: S608 (marks, no values)
        rows = database.execute(query, batch)
        vectors |= {key: np.frombuffer(vector, "<f4") for key, vector in rows}
    return vectors
