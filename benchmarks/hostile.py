"""Decisions beside hostile callers: `python -m benchmarks.hostile`.

Notes:

* Decisions by states come at a steady rate from one address: alone, and beside twenty callers of other addresses, each
  of which takes what one caller may, and more where it is not refused: long answers, bodies that never end, thumbs,
  registered calls, and connections.
* Without keys a caller is an address, so the limits are those of keys.
* The callers have a process of their own. Server and callers share the machine, so their own work counts, too.
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
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import psutil

from abstain.config.serve_settings import CallerLimits
from benchmarks.serving import at_rate, server

LIMITS = CallerLimits()
HOSTILE = 20
LONG = {"question": "Tell me everything.", "contexts": ["word " * 300], "max_new_tokens": 1024, "temperature": 2.0}
FORM_BYTES = 64 * 1024
AGAIN_S = 5.0
"""How long a caller waits after it was refused, in the mean: not all come again at once."""
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Attacker:
    """One hostile caller of the server at `address`, with an address of its own."""

    def __init__(self, address: str, number: int) -> None:
        self._host, self._port = urlsplit(address).hostname, urlsplit(address).port
        self._source, self._ids = f"127.0.1.{number + 1}", itertools.count()

    async def long_answers(self) -> None:
        """One that is written and as many as may wait, all with other settings."""
        await self._at_once(LIMITS.waiting + 1, self._long_answer)

    async def endless_bodies(self) -> None:
        """Forms that lack their last byte."""
        await self._at_once(LIMITS.connections // 4, self._endless_body)

    async def idle_connections(self) -> None:
        await self._at_once(LIMITS.connections, self._idle_connection)

    async def thumbs(self) -> None:
        thumb = {"interaction_id": "i-1", "thumb": "up"}
        await self._at_once(1, lambda: self._flood("/v1/feedback", lambda key: {"feedback_id": key, **thumb}))

    async def registered_calls(self) -> None:
        call = {"contexts": ["word " * 400]}
        await self._at_once(1, lambda: self._flood("/v1/contexts", lambda key: {"call_id": key, **call}))

    async def _at_once(self, many: int, attack: Callable[[], Awaitable[None]]) -> None:
        async def again() -> None:
            while True:
                await asyncio.sleep(random.uniform(0, 2 * AGAIN_S))
                with suppress(OSError, asyncio.IncompleteReadError):
                    await attack()

        await asyncio.gather(*(again() for _ in range(many)))

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
        """As many requests as the log takes of one caller, over one connection."""
        streams = await self._connect()
        while True:
            began = time.monotonic()
            await self._post(streams, path, body(f"{self._source}-{next(self._ids)}-{time.time_ns()}"))
            await asyncio.sleep(began + 60 / LIMITS.rows_a_minute - time.monotonic())

    @staticmethod
    async def _post(streams: Streams, path: str, body: dict[str, object]) -> None:
        reader, writer = streams
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
        writer.write(f"{head}{len(content)}\r\n\r\n".encode() + content)
        replied = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = replied.partition(b"content-length: ")[2].partition(b"\r\n")[0]
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
    chosen = parser.parse_args(arguments)
    if chosen.attack:
        asyncio.run(attack(chosen.attack, [kind for kind in KINDS if chosen.only in (None, kind.__name__)]))
        return
    with tempfile.TemporaryDirectory() as name:
        subprocess.run([sys.executable, "-m", "benchmarks.serving", "--export", name], check=True)
        with server(Path(name)) as (address, _, pid):
            process = psutil.Process(pid)
            gc.freeze()  # a collection here would count as the server's time
            at_rate(address, chosen.rate, 3.0)
            alone, resting = at_rate(address, chosen.rate, chosen.seconds), process.memory_info().rss
            only = ["--only", chosen.only] if chosen.only else []
            attacker = subprocess.Popen([sys.executable, "-m", "benchmarks.hostile", "--attack", address, *only])
            try:
                time.sleep(10)
                beside, attacked = at_rate(address, chosen.rate, chosen.seconds), process.memory_info().rss
            finally:
                attacker.terminate()
                attacker.wait()
    for what, replies in (("alone", alone), (f"beside {HOSTILE} hostile callers", beside)):
        p50, p99 = np.quantile([1000 * one.seconds for one in replies], (0.5, 0.99))
        own = np.quantile([one.own_ms for one in replies], 0.99)
        print(f"{what}: p50 {p50:.2f} ms, p99 {p99:.2f} ms of {len(replies)} decisions by states")
        print(f"  p99 {own:.2f} ms of that by Server-Timing, without the log")
    print(f"memory: {resting / 2**20:,.0f} MiB at rest, {attacked / 2**20:,.0f} MiB under attack")


if __name__ == "__main__":
    main()
