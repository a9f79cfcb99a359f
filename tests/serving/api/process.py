"""A gate server as a process of its own: `python -m tests.serving.api.process FOLDER` prints its address.

FOLDER holds the release in production, `v1.0.0`; its log is `log.sqlite` there.
"""

import sys
from pathlib import Path

from abstain.config.serve_settings import load_serve_settings
from abstain.config.settings import load_settings
from abstain.serving.api.app import make_app
from abstain.serving.api.server import LOOPBACK_NAMES, listen, serve_app
from abstain.serving.gate import Gate
from abstain.serving.service.gate_service import GateService
from abstain.serving.service.keys import ApiKeys
from abstain.serving.service.version_follower import VersionFollower
from tests.data.decision_log.builders import open_log
from tests.serving.api.conftest import MadeUpReleases

if __name__ == "__main__":
    folder, settings, releases = Path(sys.argv[1]), load_settings(), MadeUpReleases()
    releases.promote("v1.0.0", folder / "v1.0.0" / "probe.onnx")
    follower = VersionFollower(releases, lambda bundle: Gate.open(bundle, settings))
    service = GateService(follower, open_log(f"sqlite:///{folder / 'log.sqlite'}"), load_serve_settings())
    with listen("127.0.0.1", 0) as listening:
        follower.refresh()
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        serve_app(make_app(service, ApiKeys(), LOOPBACK_NAMES), listening)
