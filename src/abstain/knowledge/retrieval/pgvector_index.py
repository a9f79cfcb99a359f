"""A vector index that many processes share: PostgreSQL with the extension pgvector.

Notes:

* The filters are part of the query, and every search is a scan of all vectors: with an approximate index the filter
  would come after it and leave fewer than k hits. So no such index is made, and an existing one is not used.
* There is one table per encoder: embeddings of different encoders cannot be compared.
* psycopg is an extra (`abstain[postgres]`), imported when an index is opened. A password is never part of a message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from abstain.core.codes import Code
from abstain.core.contracts import Chunk
from abstain.core.errors import AbstainError
from abstain.core.filesystem import redact_url, redact_urls
from abstain.knowledge.retrieval.encoder import Encoder, Vectors
from abstain.knowledge.retrieval.index import (
    EntryRejected,
    IndexEntry,
    SearchHit,
    check_no_tombstones,
    check_search,
    check_vectors,
)

if TYPE_CHECKING:
    import psycopg

_URL = re.compile(r"\w+://([^@/?#\[\]\s]*@)?[^@\s]*")
"""A URL that libpq and our messages read alike, so that no part of a password is taken for a host and shown."""
_LOCK = 0x61627374  # of the session that makes the table: two at once would collide
_CREATE = """
CREATE TABLE IF NOT EXISTS {table} (
    chunk_id text COLLATE "C" PRIMARY KEY,
    digest text NOT NULL,
    entitlements text[] NOT NULL,
    metadata jsonb NOT NULL,
    chunk text NOT NULL,
    embedding vector({dimension}) NOT NULL
)
"""
# Kept in the row itself: fetched from elsewhere, vectors would cost the scan several times as much.
_INLINE = "ALTER TABLE {table} ALTER COLUMN embedding SET STORAGE PLAIN"
# The dimension of the column: reading it from the encoder would load its model.
_DIMENSION = "SELECT atttypmod FROM pg_attribute WHERE attrelid = '{table}'::regclass AND attname = 'embedding'"
_UPSERT = """
INSERT INTO {table} VALUES (%s, %s, %s, %s::jsonb, %s, %s::vector)
ON CONFLICT (chunk_id) DO UPDATE SET digest = excluded.digest, entitlements = excluded.entitlements,
    metadata = excluded.metadata, chunk = excluded.chunk, embedding = excluded.embedding
"""
_SEARCH = """
SELECT chunk, -distance FROM (
    SELECT chunk_id, chunk, embedding <#> %s::vector AS distance FROM {table}
    WHERE entitlements <@ %s::text[] AND metadata @> %s::jsonb
) AS readable ORDER BY distance, chunk_id LIMIT %s
"""


class PgVectorIndex:
    """A `VectorIndex` in a database; creates the extension and the table if they are missing.

    Every method raises `AbstainError` if the server fails.

    Args:
        url: URL of the database, postgresql://...
        encoder: The encoder of the embeddings.
    """

    def __init__(self, url: str, encoder: Encoder) -> None:
        try:
            import psycopg
        except ModuleNotFoundError:
            raise AbstainError(
                Code.NO_PACKAGE, "a PostgreSQL index needs psycopg: pip install 'abstain[postgres]'"
            ) from None
        _require_url(url)
        self._url = url
        self._error, self._data_error = psycopg.Error, psycopg.DataError
        self._table = f"abstain_chunks_{encoder.identity}"
        if not self._table.isidentifier():
            raise ValueError(f"an encoder's identity must be letters and digits, not {encoder.identity!r}")
        with self._translate_errors():
            self._connection: psycopg.Connection[Any] = psycopg.connect(url, autocommit=True)
            with self._connection.transaction():
                self._run("SELECT pg_advisory_xact_lock(%s)", _LOCK)
                self._run("CREATE EXTENSION IF NOT EXISTS vector")
                if self._run("SELECT to_regclass(%s)", self._table) == [(None,)]:
                    self._run(_CREATE.replace("{dimension}", str(encoder.dimension)))
                    self._run(_INLINE)
            ((self._dimension,),) = self._run(_DIMENSION)

    def digests(self) -> Mapping[str, str]:
        """See `VectorIndex.digests`."""
        with self._translate_errors():
            return dict(self._run("SELECT chunk_id, digest FROM {table}"))

    def upsert(self, entries: Sequence[IndexEntry], vectors: Vectors) -> None:
        """See `VectorIndex.upsert`."""
        check_no_tombstones(entries)
        if entries:
            check_vectors(vectors, (len(entries), self._dimension))
        rows = (
            (
                entry.chunk.chunk_id,
                entry.digest,
                list(entry.chunk.entitlements),
                json.dumps(entry.metadata),
                entry.chunk.to_json_line(),
                _format_vector(vector),
            )
            for entry, vector in zip(entries, vectors, strict=True)
        )
        with self._translate_errors():
            try:
                with self._connection.transaction(), self._connection.cursor() as cursor:
                    cursor.executemany(self._sql(_UPSERT), rows)
            except self._data_error as error:
                message = " ".join(str(error).split())
                raise EntryRejected(Code.INVALID_ROW, f"the vector index refuses a value: {message}") from None

    def remove(self, chunk_ids: Iterable[str]) -> None:
        """See `VectorIndex.remove`."""
        with self._translate_errors():
            self._run("DELETE FROM {table} WHERE chunk_id = ANY(%s)", list(chunk_ids))

    def search(
        self, vector: Vectors, k: int, entitlements: Collection[str] = (), where: Mapping[str, str] | None = None
    ) -> list[SearchHit]:
        """See `VectorIndex.search`."""
        check_search(k, where)
        check_vectors(vector, (self._dimension,))
        values = (_format_vector(vector), list(entitlements), json.dumps(dict(where or {})), k)
        with self._translate_errors(), self._connection.transaction():
            self._run("SET LOCAL enable_indexscan = off")
            rows = self._run(_SEARCH, *values)
        return [SearchHit(Chunk.model_validate_json(chunk), score) for chunk, score in rows]

    def close(self) -> None:
        """See `VectorIndex.close`."""
        self._connection.close()

    def _run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(self._sql(statement), values or None)
        return cursor.fetchall() if cursor.description else []

    def _sql(self, statement: str) -> bytes:
        return statement.replace("{table}", self._table).encode()

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            message = redact_urls(" ".join(str(error).split()))
            raise AbstainError(
                Code.NO_SERVICE,
                f"the vector index in {redact_url(self._url)} does not answer ({message}): check ABSTAIN_INDEX, and "
                "that the server runs and has the extension `vector`",
            ) from None


def _require_url(url: str) -> None:
    """Raise `AbstainError`, which shows no part of `url`, if libpq cannot read it or a character is not escaped."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        conninfo_to_dict(url)
        is_read = True
    except psycopg.Error:  # its message quotes the URL
        is_read = False
    if not is_read or not _URL.fullmatch(url):
        raise AbstainError(
            Code.BAD_SETTING,
            "ABSTAIN_INDEX is no URL that PostgreSQL reads: write postgresql://USER:PASSWORD@HOST/DATABASE, special "
            "characters of the password as %40 (for @), %2F (/), %3F (?) and so on",
        )


def _format_vector(vector: Vectors) -> str:
    """Return a vector in pgvector's notation; nine digits distinguish all float32 values."""
    return "[" + ",".join(f"{value:.9g}" for value in vector.tolist()) + "]"
