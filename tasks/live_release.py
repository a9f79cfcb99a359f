"""What `abstain serve` follows: the version in production by the origin's registry, fetched and smoke-tested."""

from __future__ import annotations

from pathlib import Path

from abstain.core import paths
from abstain.release.registry import Event, parse_registry
from abstain.serving.api.live_gate import Release
from tasks.release_bundle import fetch_release, smoke_test
from tasks.shell import git
from tasks.workspace import origin_snapshot


class OriginReleases:
    """The releases of the origin (serving/api/live_gate.py `Releases`)."""

    def __init__(self) -> None:
        self._event: Event | None = None
        self._repository = Path()

    def live(self) -> Release | None:
        """The version in production; None where nothing is."""
        self._repository, revision = origin_snapshot()
        registry = parse_registry(git(self._repository, "show", f"{revision}:{paths.REGISTRY}"))
        event = self._event = registry.prod
        if event is None:
            return None
        marks = (event.mark, str(registry.taint or ""))
        return Release(event.version, event.bundle_sha256 or event.sha256, event.at, "; ".join(filter(None, marks)))

    def fetch(self, release: Release) -> Path:
        """The folder of what `live` gave last. Raises `AbstainError` where it is not what was promoted."""
        event = self._event
        assert event is not None and event.version == release.version
        bundle = fetch_release(self._repository, event)
        smoke_test(bundle, event)
        return bundle
