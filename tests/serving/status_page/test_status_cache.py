import asyncio
import threading
import time
from pathlib import Path

import pytest

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.serving.service.version_follower import VersionInfo
from abstain.serving.status_page import status_cache as module
from abstain.serving.status_page.status_cache import StatusCache
from tests.data.decision_log.builders import open_log, url_of
from tests.serving.status_page.builders import LABELS, SINCE


@pytest.fixture
def cache(tmp_path: Path) -> StatusCache:
    return StatusCache(open_log(url_of(tmp_path)), LABELS)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of the thread of each computation."""
    names: list[str] = []
    load = lambda *_: names.append(threading.current_thread().name) or time.sleep(0.05) or []  # noqa: E731
    monkeypatch.setattr(module, "load_days", load)
    return names


def test_get_at_once_computes_once_in_a_thread(cache: StatusCache, threads: list[str]) -> None:
    async def load() -> None:
        await asyncio.gather(*(cache.get(None) for _ in range(20)))
        await cache.get(None)

    asyncio.run(load())
    assert len(threads) == 1 and threads[0].startswith("figures")


def test_get_later_or_for_another_version_computes_again(
    cache: StatusCache, threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def load() -> None:
        await cache.get(None)
        await cache.get(VersionInfo("v1.0.0", "d", SINCE))
        assert len(threads) == 2
        monkeypatch.setattr(module, "CACHE_TTL_S", 0.0)
        await cache.get(VersionInfo("v1.0.0", "d", SINCE))

    asyncio.run(load())
    assert len(threads) == 3


def test_get_cancelled_leaves_the_result_to_others(cache: StatusCache, threads: list[str]) -> None:
    async def load() -> None:
        first, second = (asyncio.create_task(cache.get(None)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).days == []

    asyncio.run(load())
    assert len(threads) == 1


def test_get_after_an_error_reads_again(cache: StatusCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AbstainError(Code.NO_SERVICE, "away")

    async def load() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(module, "load_days", fail)
            with pytest.raises(AbstainError):
                await cache.get(None)
        assert (await cache.get(None)).days

    asyncio.run(load())
