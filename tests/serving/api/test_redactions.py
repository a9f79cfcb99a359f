import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from abstain.data.decision_log.log import DecisionLog
from abstain.serving.service.callers import Quota, set_caller
from abstain.serving.service.keys import ApiKey
from abstain.serving.service.redactions import CHARACTERS_PER_ROW, Redactions
from tests.data.decision_log.builders import open_log
from tests.serving.clients import GateClient
from tests.serving.conftest import Connect

pytestmark = [pytest.mark.heavy, pytest.mark.anyio]  # servers of a tiny model: not pure functions

SLOW = "a text that is slow to redact"
LONG = 2 * CHARACTERS_PER_ROW
"""Characters of a row that is in the lane of the longest."""


class Stuck:
    """A redaction that takes as long as it is let at a row with `SLOW`, and keeps a processor busy as a real one does.

    `most`: of such rows that were redacted at once.
    """

    def __init__(self) -> None:
        self.go = threading.Event()
        self.most = self._running = 0

    def __call__(self, row: Any) -> Any:
        if SLOW in row.to_json_line():
            self._running += 1
            self.most, end = max(self.most, self._running), time.monotonic() + 20
            while not self.go.is_set() and time.monotonic() < end:
                pass
            self._running -= 1
        return row


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    redact = Stuck()
    yield redact
    redact.go.set()


@pytest.fixture
def log(tmp_path: Path, stuck: Stuck) -> Iterator[DecisionLog]:
    with closing(open_log(f"sqlite:///{tmp_path / 'log.sqlite'}", redact=stuck)) as opened:
        yield opened


@pytest.fixture
def client(connect: Connect) -> GateClient:
    return connect(metadata={"threshold": "0.0"}, timeout_s=0.5, on_unavailable="show")


def thumb(comment: str, key: str = "f") -> dict[str, str]:
    return {"feedback_id": key, "interaction_id": "i", "thumb": "up", "comment": comment}


def test_row_not_redacted_in_time_is_withheld(client: GateClient, stuck: Stuck) -> None:
    decided = client.decide(question=SLOW, interaction_id="i")
    assert (decided["decision"], decided["show"]) == ("unavailable", False), "whatever on_unavailable says"
    assert decided["reason"]["code"] == "A509"
    for path, body in (("/v1/feedback", thumb(SLOW)), ("/v1/contexts", {"call_id": "c", "contexts": [SLOW]})):
        rejected = client.post(path, json=body)
        assert rejected.status_code == 503 and "0.5 s" in rejected.json()["detail"]
    details = client.read_decision("i")
    assert (details.text_state, details.decision.shown, details.feedback) == ("none", False, ())
    stuck.go.set()
    assert client.decide(question=SLOW, interaction_id="i")["show"] is True, "it is decided on again"
    assert client.post("/v1/feedback", json=thumb(SLOW)).json()["outcome"] == "recorded"


def test_slow_rows_of_a_caller_take_one_thread(connect: Connect, stuck: Stuck) -> None:
    client = connect(metadata={"threshold": "0.0"}, timeout_s=15)
    bodies = [thumb(SLOW + "." * 1000, f"f-{number}") for number in range(6)]
    with ThreadPoolExecutor(len(bodies)) as pool:
        replies = [pool.submit(client.post, "/v1/feedback", json=body) for body in bodies]
        assert client.decide()["decision"] == "show" and not any(reply.done() for reply in replies)
        stuck.go.set()
    assert stuck.most == 1 and {reply.result().status_code for reply in replies} == {200}, "in time"


def test_long_row_counts_as_several(connect: Connect) -> None:
    client = connect(caller={"rows_per_minute": 5})
    assert client.post("/v1/feedback", json=thumb("." * (4 * CHARACTERS_PER_ROW))).status_code == 200
    assert client.post("/v1/feedback", json=thumb("") | {"comment": None}).status_code == 429


class Rows:
    """Rows that are brought for several callers, each redacted by `work`.

    The names of those that were redacted are in `done`, of those that were recorded in `recorded`, in order.
    """

    def __init__(self) -> None:
        self.redactions = Redactions(Quota(10**9, "rows"))
        self.done, self.recorded = list[str](), list[str]()

    def bring(
        self, caller: str, name: str, work: Callable[[], object], characters: int = LONG, seconds: float = 60
    ) -> asyncio.Task[Any]:
        async def bring() -> Any:
            set_caller({}, ApiKey(caller, frozenset(), ""))
            return await self.redactions.redact_and_write(characters, seconds, self._put, work, name)

        return asyncio.create_task(bring())

    def _put(self, work: Callable[[], object], name: str, answer: Future[Any]) -> Future[Any]:
        work()
        self.done.append(name)
        if answer.set_running_or_notify_cancel():
            self.recorded.append(name)
            answer.set_result("recorded")
        return answer


def compute() -> None:
    """Keep a processor busy for 0.03 s, however many share it."""
    end = time.thread_time() + 0.03
    while time.thread_time() < end:
        pass


@pytest.mark.parametrize("characters", [10, LONG])
async def test_redactions_row_waits_for_few_of_another_caller(characters: int) -> None:
    rows = Rows()
    many = [rows.bring("eve", "long", compute) for _ in range(60)]
    many += [rows.bring("eve", "short", compute, 10) for _ in range(60)]
    while len(rows.done) < 4:
        await asyncio.sleep(0)
    before = len(rows.done)
    await rows.bring("ann", "row", compute, characters)
    assert len(rows.done) - before < 30, "of 120"
    for row in many:
        row.cancel()
    await asyncio.gather(*many, return_exceptions=True)


async def test_redactions_take_the_shortest_row_first() -> None:
    rows, go = Rows(), threading.Event()
    first = rows.bring("eve", "first", lambda: go.wait(20), seconds=0.05)
    await asyncio.sleep(0)
    others = {kilo: rows.bring("eve", str(kilo), int, 1000 * kilo) for kilo in (30, 10, 50, 20, 40)}
    late = rows.bring("eve", "late", int, 9000, seconds=0.05)
    for row in (first, late):
        with pytest.raises(TimeoutError):
            await row
    others.pop(20).cancel()
    await asyncio.sleep(0.05)
    assert rows.done == [], "a row whose caller has given up has its thread as long as it is redacted"
    go.set()
    await asyncio.wait(others.values())
    assert rows.done == ["first", "10", "30", "40", "50"], "what nobody waits for is not begun"
    assert rows.recorded == rows.done[1:]


async def test_redactions_begin_no_row_after_its_time() -> None:
    rows, go = Rows(), threading.Event()
    held = [rows.bring(name, name, lambda: go.wait(20)) for name in ("ann", "bob")]
    await asyncio.sleep(0.05)
    with pytest.raises(TimeoutError):
        await rows.bring("eve", "late", int, seconds=0.05)
    next_one = rows.bring("eve", "next", int)
    go.set()
    await asyncio.gather(*held, next_one)
    assert sorted(rows.done) == ["ann", "bob", "next"]


async def test_redactions_pass_on_the_turn_of_a_left_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, go = Rows(), threading.Event()
    first = rows.bring("eve", "first", lambda: go.wait(20))
    await asyncio.sleep(0)
    left, later = rows.bring("eve", "left", int), rows.bring("eve", "later", int, seconds=5)
    await asyncio.sleep(0)
    give_turn = rows.redactions._give_turn

    def give_and_leave(key: tuple[str, float]) -> None:
        monkeypatch.undo()
        give_turn(key)
        left.cancel()

    monkeypatch.setattr(rows.redactions, "_give_turn", give_and_leave)
    go.set()
    assert await asyncio.gather(first, later) == ["recorded"] * 2
    assert rows.done == ["first", "later"]
