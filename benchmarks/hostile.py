"""Decisions beside hostile callers: `python -m benchmarks.hostile`.

Notes:

* Decisions by states come at a steady rate from one address: alone, and beside twenty callers of other addresses, each
  of which takes what one caller may, and more where it is not refused: long answers, bodies that never end, thumbs,
  registered calls, and connections.
* Without keys a caller is an address, so the limits are those of keys.
* The callers have a process of their own. Server and callers share the machine, so their own work counts, too. What it
  costs is seen where they attack another server of the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import psutil

from abstain.config.serve_settings import CallerLimits
from benchmarks.serving import send_at_rate, server

LIMITS = CallerLimits()
HOSTILE = 20
LONG = {"question": "Tell me everything.", "contexts": ["word " * 300], "max_new_tokens": 1024, "temperature": 2.0}
FORM_BYTES = 64 * 1024
RETRY_S = 5.0
"""How long a caller waits after it was refused, in the mean: not all come again at once."""
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Attacker:
    """A hostile caller of the server at `address`, with an address of its own."""

    def __init__(self, address: str, number: int) -> None:
        self._host, self._port = urlsplit(address).hostname, urlsplit(address).port
        self._source, self._ids = f"127.0.1.{number + 1}", itertools.count()

    async def long_answers(self) -> None:
        """Request as many answers as may be written or queued, each with other settings."""
        await self._attack_in_parallel(LIMITS.max_queued + 1, self._long_answer)

    async def endless_bodies(self) -> None:
        """Send forms that lack their last byte."""
        await self._attack_in_parallel(LIMITS.max_connections // 4, self._endless_body)

    async def idle_connections(self) -> None:
        """Open connections and send nothing."""
        await self._attack_in_parallel(LIMITS.max_connections, self._idle_connection)

    async def thumbs(self) -> None:
        """Send thumbs as fast as the log accepts them."""
        thumb = {"interaction_id": "i-1", "thumb": "up"}
        await self._attack_in_parallel(
            1, lambda: self._flood("/v1/feedback", lambda key: {"feedback_id": key, **thumb})
        )

    async def registered_calls(self) -> None:
        """Register calls as fast as the log accepts them."""
        call = {"contexts": ["word " * 400]}
        await self._attack_in_parallel(1, lambda: self._flood("/v1/contexts", lambda key: {"call_id": key, **call}))

    async def _attack_in_parallel(self, count: int, attack: Callable[[], Awaitable[None]]) -> None:
        async def repeat() -> None:
            while True:
                await asyncio.sleep(random.uniform(0, 2 * RETRY_S))
                with suppress(OSError, asyncio.IncompleteReadError):
                    await attack()

        await asyncio.gather(*(repeat() for _ in range(count)))

    async def _connect(self) -> Streams:
        return await asyncio.open_connection(self._host, self._port, local_addr=(self._source, 0))

    async def _long_answer(self) -> None:
        await self._post(await self._connect(), "/v1/answer", {**LONG, "seed": next(self._ids)})

    async def _endless_body(self) -> None:
        reader, writer = await self._connect()
        head = f"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: {FORM_BYTES}\r\n\r\n"
        writer.write(head.encode() + b"x" * (FORM_BYTES - 1))
        await reader.read()

    async def _idle_connection(self) -> None:
        reader, _ = await self._connect()
        await reader.read()

    async def _flood(self, path: str, body: Callable[[str], dict[str, object]]) -> None:
        """Send as many requests as the log takes from one caller, over one connection."""
        streams = await self._connect()
        while True:
            started = time.monotonic()
            await self._post(streams, path, body(f"{self._source}-{next(self._ids)}-{time.time_ns()}"))
            await asyncio.sleep(started + 60 / LIMITS.rows_per_minute - time.monotonic())

    @staticmethod
    async def _post(streams: Streams, path: str, body: dict[str, object]) -> None:
        reader, writer = streams
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
        writer.write(f"{head}{len(content)}\r\n\r\n".encode() + content)
        head_of_reply = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = head_of_reply.partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length or 0))


KINDS = (
    *(Attacker.long_answers, Attacker.endless_bodies, Attacker.thumbs, Attacker.registered_calls),
    Attacker.idle_connections,
)


async def attack(address: str, kinds: Sequence[Callable[[Attacker], Awaitable[None]]]) -> None:
    """Attack until the process is ended."""
    await asyncio.gather(*(kinds[number % len(kinds)](Attacker(address, number)) for number in range(HOSTILE)))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    parser.add_argument("--only", choices=[kind.__name__ for kind in KINDS], help="one kind of attack; default: all")
    parser.add_argument("--rate", type=float, default=20.0, help="decisions a second by states")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each run at that rate")
    options = parser.parse_args(arguments)
    if options.attack:
        asyncio.run(attack(options.attack, [kind for kind in KINDS if options.only in (None, kind.__name__)]))
        return
    only = ["--only", options.only] if options.only else []
    with tempfile.TemporaryDirectory() as name:
        server_folder, other_folder = Path(name, "server"), Path(name, "other")
        for folder in (server_folder, other_folder):
            folder.mkdir()
            subprocess.run([sys.executable, "-m", "benchmarks.serving", "--export", str(folder)], check=True)
        with server(server_folder) as (address, _, pid), server(other_folder) as (other_address, _, _):
            gc.freeze()  # a collection here would count as the server's time
            send_at_rate(address, options.rate, 3.0)
            for what, attacked in (
                ("alone", None),
                (f"beside {HOSTILE} hostile callers of another server", other_address),
                (f"beside {HOSTILE} hostile callers", address),
            ):
                with attacking(attacked, only) if attacked else nullcontext():
                    replies = send_at_rate(address, options.rate, options.seconds)
                    memory = psutil.Process(pid).memory_info().rss / 2**20
                p50, p99 = np.quantile([1000 * reply.seconds for reply in replies], (0.5, 0.99))
                own_p99 = np.quantile([reply.own_ms for reply in replies], 0.99)
                print(f"{what}: p50 {p50:.2f} ms, p99 {p99:.2f} ms of {len(replies)} decisions by states")
                print(f"  p99 {own_p99:.2f} ms of that by Server-Timing, without the log; memory {memory:,.0f} MiB")


@contextmanager
def attacking(address: str, options: Sequence[str]) -> Iterator[None]:
    """Attack a server from another process; the block begins when the attack is under way."""
    attacker = subprocess.Popen([sys.executable, "-m", "benchmarks.hostile", "--attack", address, *options])
    try:
        time.sleep(10)
        yield
    finally:
        attacker.terminate()
        attacker.wait()


if __name__ == "__main__":
    main()
