from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

import pytest

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.engine.pauses import pause
from abstain.serving.service.batching import Batcher


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


def test_what_waits_while_the_model_is_busy_is_read_together() -> None:
    model = Model()

    async def ask() -> list[int]:
        batcher = Batcher(4, 100, 100)
        found = await asyncio.gather(*(batcher.run("a", model.run, number, caller="ann") for number in range(9)))
        await batcher.close()
        return list(found)

    assert asyncio.run(ask()) == [2 * number for number in range(9)]
    assert [len(of) for of in model.batches] == [4, 4, 1] and len(model.threads) == 1


def test_a_lone_request_waits_for_no_company() -> None:
    model = Model()

    async def ask() -> float:
        batcher = Batcher(32, 100, 100)
        began = time.monotonic()
        await batcher.run("a", model.run, 1, caller="ann")
        return time.monotonic() - began

    assert asyncio.run(ask()) < 1 and model.batches == [[1]]


def test_kinds_are_not_mixed() -> None:
    model = Model()

    async def ask() -> None:
        batcher = Batcher(10, 100, 100)
        await asyncio.gather(
            *(batcher.run("odd" if number % 2 else "even", model.run, number, caller="ann") for number in range(6))
        )

    asyncio.run(ask())
    assert all(len({number % 2 for number in of}) == 1 for of in model.batches)
    assert sorted(number for of in model.batches for number in of) == list(range(6))


def test_one_bad_item_is_no_error_of_the_others() -> None:
    model = Model()

    async def ask() -> list[object]:
        batcher = Batcher(10, 100, 100)
        return await asyncio.gather(
            *(batcher.run("a", model.run, number, caller="ann") for number in (0, 1, -1, 2)), return_exceptions=True
        )

    zero, two, bad, four = asyncio.run(ask())
    assert (zero, two, four) == (0, 2, 4) and isinstance(bad, AbstainError)


def test_one_more_than_may_wait_is_refused_and_who_gives_up_makes_room() -> None:
    model = Model()

    async def ask() -> None:
        batcher = Batcher(1, 3, 3)
        tasks = [asyncio.create_task(batcher.run("a", model.run, number, caller="ann")) for number in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(AbstainError, match="3 requests wait"):
            await batcher.run("a", model.run, 3, caller="ann")
        tasks[2].cancel()
        await asyncio.sleep(0)
        assert await batcher.run("a", model.run, 4, caller="ann") == 8
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(ask())
    assert [2] not in model.batches


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
def test_decisions_go_first_and_into_the_pauses() -> None:
    answers, decisions = Pausing(), Model()

    async def ask() -> None:
        batcher = Batcher(10, 100, 100)
        tasks = [asyncio.create_task(batcher.run(text, answers.run, text, caller="ann")) for text in ("a", "b")]
        await asyncio.sleep(0.05)
        found = [await batcher.run("gate", decisions.run, number, caller="bob", is_decision=True) for number in (1, 2)]
        assert found == [2, 4] and set(answers.read) == {"a"} and not tasks[0].done()
        assert await asyncio.gather(*tasks) == ["a", "b"]
        await batcher.close()

    asyncio.run(ask())
    assert answers.read == ["a"] * 50 + ["b"] * 50 and len(decisions.threads) == 1


def test_a_bad_decision_in_a_pause_is_no_error_of_the_answer() -> None:
    answers, decisions = Pausing(), Model()

    async def ask() -> None:
        batcher = Batcher(10, 100, 100)
        answer = asyncio.create_task(batcher.run("a", answers.run, "a", caller="ann"))
        await asyncio.sleep(0.05)
        with pytest.raises(AbstainError, match="-1"):
            await batcher.run("gate", decisions.run, -1, caller="bob", is_decision=True)
        assert await answer == "a"

    asyncio.run(ask())


def test_what_nobody_waits_for_any_more_ends_in_its_pause() -> None:
    answers = Pausing()

    async def ask() -> None:
        batcher = Batcher(10, 100, 100)
        tasks = [asyncio.create_task(batcher.run("a", answers.run, text, caller="ann")) for text in ("x", "y", "z")]
        await asyncio.sleep(0.05)
        tasks[1].cancel()
        assert await tasks[0] == "x" and await tasks[2] == "z", "others wait for the batch"
        alone = asyncio.create_task(batcher.run("b", answers.run, "alone", caller="ann"))
        await asyncio.sleep(0.05)
        alone.cancel()
        await batcher.close()

    asyncio.run(ask())
    assert answers.read.count("x,y,z") == 50 and 0 < answers.read.count("alone") < 20


def test_one_caller_cannot_take_the_place_of_others() -> None:
    async def ask() -> None:
        batcher, model = Batcher(1, 4, 2), Model()
        tasks = [asyncio.create_task(batcher.run("a", model.run, number, caller="ann")) for number in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(AbstainError, match="2 requests of ann wait"):
            await batcher.run("a", model.run, 3, caller="ann")
        assert await batcher.run("a", model.run, 4, caller="bob") == 8
        await asyncio.gather(*tasks)

    asyncio.run(ask())


def test_callers_take_turns() -> None:
    model = Model()

    async def ask() -> None:
        batcher = Batcher(4, 100, 100)
        asked = [*((number, "ann") for number in range(9)), (20, "bob"), (21, "bob"), (30, "eve")]
        await asyncio.gather(*(batcher.run("a", model.run, number, caller=caller) for number, caller in asked))
        await batcher.close()

    asyncio.run(ask())
    assert model.batches == [[0, 20, 30, 1], [21, 2, 3, 4], [5, 6, 7, 8]]


def test_callers_take_turns_with_answers_of_many_kinds() -> None:
    model = Model()

    async def ask() -> None:
        batcher = Batcher(4, 100, 100)
        asked = [*((number, "eve") for number in range(9)), (20, "ann"), (21, "ann"), (30, "bob")]
        await asyncio.gather(*(batcher.run(number, model.run, number, caller=caller) for number, caller in asked))
        await batcher.close()

    asyncio.run(ask())
    assert [number for (number,) in model.batches[:6]] == [0, 20, 30, 1, 21, 2]


def test_who_asks_for_many_decisions_waits_no_longer_for_answers() -> None:
    model = Model()

    async def ask() -> None:
        batcher = Batcher(1, 100, 100)
        eve = [asyncio.create_task(batcher.run(number, model.run, number, caller="eve")) for number in range(4)]
        await batcher.run("gate", model.run, 10, caller="ann", is_decision=True)
        await asyncio.gather(batcher.run("a", model.run, 20, caller="ann"), *eve)
        await batcher.close()

    asyncio.run(ask())
    assert model.batches.index([20]) <= 2
