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

from abstain.config.params import LabelParams
from abstain.config.serve_settings import ServeSettings
from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.data.decision_log.decisions import LoggedDecision
from abstain.data.decision_log.queue import SampledAnswer, fill_queue
from abstain.learning.estimators.onnx_logistic import fusion_to_onnx
from abstain.serving.api.app import make_app
from abstain.serving.api.server import LOOPBACK_NAMES, make_uvicorn_config
from abstain.serving.gate import Gate
from abstain.serving.service.gate_service import GateService
from abstain.serving.service.keys import ApiKeys
from abstain.serving.service.version_follower import VersionFollower, VersionInfo
from abstain.serving.status_page.page import add_page
from tests.data.decision_log.builders import decision, open_log, url_of
from tests.factories import cited, interaction
from tests.learning.thresholds.builders import make_guarantee, make_missing_guarantee
from tests.serving.builders import FUSION, release, write_scorer

SINCE = datetime(2026, 11, 1, 9, 30, tzinfo=UTC)
GUARANTEE = make_guarantee().message
LABELS = LabelParams(
    correct_if=("correct", "truthful"),
    conflicts="latest",
    thumb_weight=0.1,
    max_thumb_weight=0.5,
    thumb_model="agreement",
    min_agreement=20,
    user_shrinkage=5.0,
    max_user_share=1.0,
    refusals=(),
)


class FixedReleases:
    """A registry that names one version, or none."""

    def __init__(self, now: VersionInfo | None, bundle: Path, error: AbstainError | None = None) -> None:
        self.now, self.bundle, self.error = now, bundle, error

    def get_production(self) -> VersionInfo:
        if self.now is None:
            raise AbstainError(Code.NO_VERSION, "nothing is in production yet")
        return self.now

    def get_folder(self, version_info: VersionInfo) -> Path:
        return self.bundle

    def fetch_bundle(self, version_info: VersionInfo) -> Path:
        if self.error:
            raise self.error
        return self.bundle


def fused_release(folder: Path, model: Path, settings: Settings, guaranteed: bool = True) -> Path:
    """The folder of a release whose scorer is a fusion of the probe and a log-probability."""
    content = fusion_to_onnx(FUSION)
    scorer = write_scorer(folder, "fusion", forward_tokens=40.0, fusion=content)
    guarantee = make_guarantee() if guaranteed else make_missing_guarantee()
    changes = {"scorer": scorer, "guarantee": guarantee.model_dump_json()}
    return release(folder, model, settings, **changes).parent


def make_service(folder: Path, releases: FixedReleases, settings: Settings) -> GateService:
    """A service over a log in `folder`; the first version is not opened yet."""
    follower = VersionFollower(releases, lambda bundle: Gate.open(bundle, settings))
    return GateService(follower, open_log(url_of(folder)), ServeSettings(keys=None, keys_file=None))


def make_server(service: GateService, keys: ApiKeys) -> FastAPI:
    """The app as `abstain serve` makes it."""
    app = make_app(service, keys, None if keys.required else (*LOOPBACK_NAMES, "testserver"))
    add_page(app, service, keys, LABELS)
    return app


def withheld(key: str, **changes: Any) -> LoggedDecision:
    """A withheld answer, decided now; texts of its interaction among `changes`."""
    texts = {name: changes.pop(name) for name in ("question", "answer", "contexts") if name in changes}
    return decision(key, shown=False, interaction=interaction(key, **texts), decided_at=datetime.now(UTC), **changes)


def queue_answers(service: GateService, *keys: str, probability: float = 3 / 17) -> None:
    """Put an answer for each of `keys` into the review queue."""
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
