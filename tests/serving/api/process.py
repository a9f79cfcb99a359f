"""A gate server as a process of its own: `python -m tests.serving.api.process FOLDER` prints its address.

FOLDER holds a release a version and the file `live`, with the version in production; its log is `log.sqlite` there.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

from abstain.config.serve_settings import load_serve_settings
from abstain.config.settings import load_settings
from abstain.serving.api import app
from abstain.serving.api.server import LOOPBACK_NAMES, listen, serve_app
from abstain.serving.gate import Gate
from abstain.serving.service.gate_service import GateService
from abstain.serving.service.keys import ApiKeys
from abstain.serving.service.version_follower import VersionFollower, VersionInfo
from tests.data.decision_log.builders import open_log


class FolderReleases:
    def __init__(self, root: Path) -> None:
        self.root = root

    def get_production(self) -> VersionInfo | None:
        version = (self.root / "live").read_text().strip()
        return VersionInfo(version, version, datetime(2026, 11, 1, tzinfo=UTC))

    def get_folder(self, version_info: VersionInfo) -> Path:
        return self.root / version_info.version

    def fetch_bundle(self, version_info: VersionInfo) -> Path:
        return self.get_folder(version_info)


def main(folder: Path) -> None:
    settings, serving = load_settings(), load_serve_settings()
    follower = VersionFollower(FolderReleases(folder), lambda bundle: Gate.open(bundle, settings))
    log = open_log(f"sqlite:///{folder / 'log.sqlite'}")
    with listen("127.0.0.1", 0) as listening:
        service = GateService(follower, log, serving)
        follower.refresh()
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        app.REFRESH_INTERVAL_S = 0.2
        serve_app(app.make_app(service, ApiKeys(), LOOPBACK_NAMES), listening)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
