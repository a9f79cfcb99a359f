"""Pages that are loaded together, or soon after each other, cost the figures once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.data.decision_log.log import DecisionLog
from abstain.serving.service.version_follower import VersionInfo
from abstain.serving.status_page import status_cache as module
from abstain.serving.status_page.status_cache import StatusCache
from abstain.serving.status_page.status_data import DayStatistics
from tests.data.decision_log.builders import open_log, url_of
from tests.serving.status_page.builders import LABELS, SINCE


@pytest.fixture
def log(tmp_path: Path) -> Iterator[DecisionLog]:
    opened = open_log(url_of(tmp_path))
    yield opened
    opened.close()


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of the thread of each computing."""
    threads: list[str] = []

    def days(*_: object) -> list[DayStatistics]:
        threads.append(threading.current_thread().name)
        time.sleep(0.05)
        return []

    monkeypatch.setattr(module, "load_days", days)
    return threads


def test_pages_that_are_loaded_together_compute_once_beside_the_others_threads(
    log: DecisionLog, computed: list[str]
) -> None:
    async def load() -> None:
        kept = StatusCache(log, LABELS)
        await asyncio.gather(*(kept.get(None) for _ in range(20)))
        await kept.get(None)

    asyncio.run(load())
    assert len(computed) == 1 and computed[0].startswith("figures")


def test_after_their_time_and_for_another_release_they_are_computed_anew(
    log: DecisionLog, computed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def load() -> None:
        kept = StatusCache(log, LABELS)
        await kept.get(None)
        await kept.get(VersionInfo("v1.0.0", "d", SINCE))
        assert len(computed) == 2
        monkeypatch.setattr(module, "CACHE_TTL_S", 0.0)
        await kept.get(VersionInfo("v1.0.0", "d", SINCE))

    asyncio.run(load())
    assert len(computed) == 3


def test_who_leaves_does_not_take_them_from_the_others(log: DecisionLog, computed: list[str]) -> None:
    async def load() -> None:
        kept = StatusCache(log, LABELS)
        first, second = (asyncio.create_task(kept.get(None)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).days == []

    asyncio.run(load())
    assert len(computed) == 1


def test_a_log_that_cannot_be_read_is_asked_again(log: DecisionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> list[DayStatistics]:
        raise AbstainError(Code.NO_SERVICE, "away")

    async def load() -> None:
        kept = StatusCache(log, LABELS)
        with monkeypatch.context() as patch:
            patch.setattr(module, "load_days", away)
            with pytest.raises(AbstainError, match="away"):
                await kept.get(None)
        assert (await kept.get(None)).days

    asyncio.run(load())
