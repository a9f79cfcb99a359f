import asyncio
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.serving.service.version_follower import VersionInfo
from abstain.serving.status_page import status_cache as module
from abstain.serving.status_page.status_cache import StatusCache
from tests.data.decision_log.builders import open_log, url_of
from tests.serving.status_page.builders import LABELS, SINCE

pytestmark = pytest.mark.anyio


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


async def test_get_at_once_computes_once_in_a_thread(cache: StatusCache, threads: list[str]) -> None:
    cancelled, *others = (asyncio.create_task(cache.get(None)) for _ in range(20))
    await asyncio.sleep(0)
    cancelled.cancel()
    assert [(await other).days for other in others] == [[]] * 19, "the result is left to the others"
    await cache.get(None)
    assert len(threads) == 1 and threads[0].startswith("figures")


async def test_get_later_or_for_another_version_computes_again(
    cache: StatusCache, threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await cache.get(None)
    await cache.get(VersionInfo("v1.0.0", "d", SINCE))
    assert len(threads) == 2
    monkeypatch.setattr(module, "CACHE_TTL_S", 0.0)
    await cache.get(VersionInfo("v1.0.0", "d", SINCE))
    assert len(threads) == 3


async def test_get_after_an_error_reads_again(cache: StatusCache, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, "load_days", Mock(side_effect=AbstainError(Code.NO_SERVICE, "away")))
        with pytest.raises(AbstainError):
            await cache.get(None)
    assert (await cache.get(None)).days
