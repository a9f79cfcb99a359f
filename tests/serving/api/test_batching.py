import asyncio
import threading
import time
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import pytest

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.engine.pauses import pause
from abstain.serving.service.batching import Batcher

pytestmark = pytest.mark.anyio


class Model:
    """Doubles numbers, slowly; keeps the sizes of its batches and the thread that it ran in."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.threads: set[int] = set()

    def run(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        self.threads.add(threading.get_ident())
        time.sleep(0.02)
        if -1 in items:
            raise AbstainError(Code.TOO_LONG, "-1")
        return [2 * item for item in items]


async def run_all(model: Model, batcher: Batcher, jobs: Iterable[tuple[Hashable, int, str]]) -> list[Any]:
    """The results of (kind, number, caller), or their errors."""
    tasks = (batcher.run(kind, model.run, number, caller=caller) for kind, number, caller in jobs)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    await batcher.close()
    return results


async def test_batcher_reads_waiting_items_together() -> None:
    model = Model()
    results = await run_all(model, Batcher(4, 100, 100), (("a", number, "ann") for number in range(9)))
    assert results == [2 * number for number in range(9)]
    assert [len(batch) for batch in model.batches] == [4, 4, 1] and len(model.threads) == 1
    model, began = Model(), time.monotonic()
    await run_all(model, Batcher(32, 100, 100), [("a", 1, "ann")])
    assert time.monotonic() - began < 1 and model.batches == [[1]], "a lone request waits for no other"


async def test_batcher_bad_item_is_no_error_of_the_others() -> None:
    jobs = (("a", number, "ann") for number in (0, 1, -1, 2))
    zero, two, bad, four = await run_all(Model(), Batcher(10, 100, 100), jobs)
    assert (zero, two, four) == (0, 2, 4) and isinstance(bad, AbstainError)


async def test_batcher_full_queue_has_room_after_a_cancellation() -> None:
    batcher, model = Batcher(1, 3, 3), Model()
    tasks = [asyncio.create_task(batcher.run("a", model.run, number, caller="ann")) for number in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(AbstainError, match="3 requests wait"):
        await batcher.run("a", model.run, 3, caller="ann")
    tasks[2].cancel()
    await asyncio.sleep(0)
    assert await batcher.run("a", model.run, 4, caller="ann") == 8
    await asyncio.gather(*tasks, return_exceptions=True)
    assert [2] not in model.batches


async def test_batcher_caller_cannot_take_the_place_of_others() -> None:
    batcher, model = Batcher(1, 4, 2), Model()
    tasks = [asyncio.create_task(batcher.run("a", model.run, number, caller="ann")) for number in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(AbstainError, match="2 requests of ann wait"):
        await batcher.run("a", model.run, 3, caller="ann")
    assert await batcher.run("a", model.run, 4, caller="bob") == 8
    await asyncio.gather(*tasks)


async def test_batcher_callers_take_turns() -> None:
    model = Model()
    jobs = [*(("a", number, "ann") for number in range(9)), ("a", 20, "bob"), ("a", 21, "bob"), ("a", 30, "eve")]
    await run_all(model, Batcher(4, 100, 100), jobs)
    assert model.batches == [[0, 20, 30, 1], [21, 2, 3, 4], [5, 6, 7, 8]]
    model = Model()
    asked = [*((number, "eve") for number in range(9)), (20, "ann"), (21, "ann"), (30, "bob")]
    await run_all(model, Batcher(4, 100, 100), ((number, number, caller) for number, caller in asked))
    assert model.batches[:6] == [[0], [20], [30], [1], [21], [2]], "also those of many kinds, which are not mixed"


async def test_batcher_decisions_cost_no_turn_of_answers() -> None:
    batcher, model = Batcher(1, 100, 100), Model()
    eve = [asyncio.create_task(batcher.run(number, model.run, number, caller="eve")) for number in range(4)]
    await batcher.run("gate", model.run, 10, caller="ann", is_decision=True)
    await asyncio.gather(batcher.run("a", model.run, 20, caller="ann"), *eve)
    await batcher.close()
    assert model.batches.index([20]) <= 2


class Pausing:
    """Answers whose tokens take a moment each, with a pause after it; keeps what was read, in order."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def run(self, items: Sequence[str]) -> Sequence[str]:
        for _ in range(50):
            self.read.append(",".join(items))
            time.sleep(0.01)
            pause()
        return items


@pytest.mark.heavy
async def test_batcher_decisions_run_first_and_in_pauses() -> None:
    batcher, answers, decisions = Batcher(10, 100, 100), Pausing(), Model()
    tasks = [asyncio.create_task(batcher.run(text, answers.run, text, caller="ann")) for text in ("a", "b")]
    await asyncio.sleep(0.05)
    with pytest.raises(AbstainError, match="-1"):  # it fails alone
        await batcher.run("gate", decisions.run, -1, caller="bob", is_decision=True)
    results = [await batcher.run("gate", decisions.run, number, caller="bob", is_decision=True) for number in (1, 2)]
    assert results == [2, 4] and set(answers.read) == {"a"} and not tasks[0].done()
    assert await asyncio.gather(*tasks) == ["a", "b"]
    await batcher.close()
    assert answers.read == ["a"] * 50 + ["b"] * 50 and len(decisions.threads) == 1


@pytest.mark.heavy
async def test_batcher_cancelled_batch_ends_in_its_pause() -> None:
    batcher, answers = Batcher(10, 100, 100), Pausing()
    tasks = [asyncio.create_task(batcher.run("a", answers.run, text, caller="ann")) for text in ("x", "y", "z")]
    await asyncio.sleep(0.05)
    tasks[1].cancel()
    assert await tasks[0] == "x" and await tasks[2] == "z", "others wait for the batch"
    alone = asyncio.create_task(batcher.run("b", answers.run, "alone", caller="ann"))
    await asyncio.sleep(0.05)
    alone.cancel()
    await batcher.close()
    assert answers.read.count("x,y,z") == 50 and 0 < answers.read.count("alone") < 20
