"""What `abstain serve` follows in the origin: the version in production and its shadow, fetched and smoke-tested."""

from __future__ import annotations

from pathlib import Path

from abstain.core import paths
from abstain.release.registry import RegistryEvent, parse_registry
from abstain.release.shadow import Shadow
from abstain.serving.api.version_follower import VersionInfo
from tasks.release.bundles import fetch_bundle, fetch_shadow, smoke_test, stored
from tasks.release.shadow import read_shadow
from tasks.runs.shell import git
from tasks.runs.workspace import origin_snapshot


class OriginVersionSource:
    """The releases of the origin (serving/api/version_follower.py `VersionSource`)."""

    def __init__(self) -> None:
        self._event: RegistryEvent | None = None
        self._repository = Path()

    def live(self) -> VersionInfo:
        """The version in production. Raises `AbstainError` as `Registry.require_prod` does."""
        self._repository, revision = origin_snapshot()
        registry = parse_registry(git(self._repository, "show", f"{revision}:{paths.REGISTRY}"))
        event = self._event = registry.require_prod()
        marks = (event.notice, str(registry.taint or ""))
        return VersionInfo(event.version, event.bundle_sha256, event.at, "; ".join(filter(None, marks)))

    def folder(self, release: VersionInfo) -> Path:
        """The folder of `release` in the local store."""
        return stored(release.version)

    def fetch(self, release: VersionInfo) -> Path:
        """The folder of what `live` gave last. Raises `AbstainError` where it is not what was promoted."""
        event = self._event
        assert event is not None and event.version == release.version
        bundle = fetch_bundle(self._repository, event)
        smoke_test(bundle, event)
        return bundle


class OriginShadowSource:
    """The shadow in the origin, as `VersionSource` has versions: only beside the version that it was set beside."""

    def __init__(self) -> None:
        self._shadow: Shadow | None = None
        self._repository = Path()

    def live(self) -> VersionInfo | None:
        """The shadow; None where there is none, or another version is in production since."""
        self._repository, revision = origin_snapshot()
        registry = parse_registry(git(self._repository, "show", f"{revision}:{paths.REGISTRY}"))
        shadow = self._shadow = read_shadow(self._repository, revision)
        if shadow is None or shadow.beside != registry.production_version:
            return None
        return VersionInfo(shadow.version, shadow.bundle_sha256, shadow.at)

    def folder(self, release: VersionInfo) -> Path:
        """The folder in the local store of what `live` gave last."""
        assert self._shadow is not None
        return stored(self._shadow.tag)

    def fetch(self, release: VersionInfo) -> Path:
        """The folder of what `live` gave last. Raises `AbstainError` where it is not what was set."""
        shadow = self._shadow
        assert shadow is not None and shadow.version == release.version
        bundle = fetch_shadow(self._repository, shadow)
        smoke_test(bundle, shadow)
        return bundle
