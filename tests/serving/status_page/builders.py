"""The server with its page over a tiny release and a real log."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from abstain.config.settings import Settings
from abstain.data.decision_log.decisions import LoggedDecision
from abstain.data.decision_log.queue import SampledAnswer, fill_queue
from abstain.learning.estimators.onnx_logistic import fusion_to_onnx
from abstain.serving.api.app import make_app
from abstain.serving.api.server import LOOPBACK_NAMES, make_uvicorn_config
from abstain.serving.service.gate_service import GateService
from abstain.serving.service.keys import ApiKeys
from abstain.serving.status_page.page import add_page
from tests.data import frames
from tests.data.decision_log.builders import decision
from tests.factories import cited, interaction
from tests.knowledge.builders import chunk
from tests.serving.builders import FUSION, GUARANTEE, release, write_scorer

SINCE = datetime(2026, 11, 1, 9, 30, tzinfo=UTC)
CHUNKS = {"manual#1": chunk("manual#1", "Gold > Fees\nThe fee is 90 euros.", section_path=("Gold", "Fees"), page=3)}
"""The knowledge base that the page knows."""
LABELS = frames.LABELS.model_copy(update={"correct_if": ("correct", "truthful")})


def fused_release(folder: Path, model: Path, settings: Settings) -> Path:
    """The folder of a release whose scorer is a fusion of the probe and a log-probability."""
    scorer = write_scorer(folder, "fusion", forward_tokens=40.0, fusion=fusion_to_onnx(FUSION))
    return release(folder, model, settings, scorer=scorer, guarantee=GUARANTEE).parent


def make_server(service: GateService, keys: ApiKeys) -> FastAPI:
    """The app as `abstain serve` makes it."""
    app = make_app(service, keys, None if keys.required else (*LOOPBACK_NAMES, "testserver"))
    add_page(app, service, keys, LABELS, CHUNKS)
    return app


def withheld(key: str, **changes: Any) -> LoggedDecision:
    """A withheld answer, decided now; texts of its interaction among `changes`."""
    texts = {name: changes.pop(name) for name in ("question", "answer", "contexts") if name in changes}
    return decision(key, shown=False, interaction=interaction(key, **texts), decided_at=datetime.now(UTC), **changes)


def queue_answers(service: GateService, *keys: str, probability: float = 3 / 17) -> None:
    rows = [interaction(key, question=f"Is it {key}?", contexts=cited(f"about {key}")) for key in keys]
    fill_queue(service.log.database, [SampledAnswer(row, probability) for row in rows], (), datetime.now(UTC))


@contextmanager
def listening(app: FastAPI) -> Iterator[str]:
    """The address of `app`, served on this machine while the block runs."""
    port = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(make_uvicorn_config(app))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [port]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{port.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
