import asyncio

import pytest

from abstain.serving.service.gate_service import GateService
from abstain.serving.service.keys import ApiKeys
from benchmarks import hostile
from tests.serving.api.conftest import log, make_release, make_service, releases, service  # noqa: F401
from tests.serving.conftest import model, settings  # noqa: F401
from tests.serving.status_page.builders import listening, make_server

pytestmark = pytest.mark.heavy  # a server of a tiny model


def test_hostile_attack_makes_every_attack(service: GateService, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(hostile, "HOSTILE", len(hostile.KINDS))
    monkeypatch.setattr(hostile, "RETRY_S", 0.2)
    monkeypatch.setattr(hostile, "LONG", {**hostile.LONG, "contexts": ["word"], "max_new_tokens": 300})
    with listening(make_server(service, ApiKeys())) as address:

        async def attack() -> None:
            await asyncio.wait_for(hostile.attack(address, hostile.KINDS), 2)

        with pytest.raises(TimeoutError):
            asyncio.run(attack())
    counted = service.metrics.render().decode()
    assert 'abstain_feedback_total{kind="thumb",outcome="recorded"}' in counted
    assert 'source="answer"' in counted
