"""A gate server as a process of its own: `python -m tests.serving.api.process FOLDER` prints its address.

FOLDER holds the release in production, `v1.0.0`; its log is `log.sqlite` there.
"""

import gc
import sys
from pathlib import Path

from abstain.config.settings import load_settings
from abstain.serving.api.app import make_app
from abstain.serving.api.server import LOOPBACK_NAMES, listen, serve_app
from abstain.serving.service.keys import ApiKeys
from tests.data.decision_log.builders import open_log
from tests.serving.conftest import MadeUpReleases, open_service

if __name__ == "__main__":
    gc.set_threshold(700, 10, 10)  # Python's own, as a server has it: tests/conftest.py makes collections rare
    folder, releases = Path(sys.argv[1]), MadeUpReleases()
    releases.promote("v1.0.0", folder / "v1.0.0" / "probe.onnx")
    log, limits = open_log(f"sqlite:///{folder / 'log.sqlite'}"), {"rows_per_minute": 100_000}
    with listen("127.0.0.1", 0) as listening:
        service = open_service(releases, log, load_settings(), caller=limits)
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        serve_app(make_app(service, ApiKeys(), LOOPBACK_NAMES), listening)
