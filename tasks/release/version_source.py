"""What `abstain serve` follows in the origin: the version in production and its shadow, fetched and smoke-tested."""

from __future__ import annotations

from pathlib import Path

from abstain.core import paths
from abstain.release.registry import RegistryEvent, parse_registry
from abstain.release.shadow import Shadow
from abstain.serving.service.version_follower import VersionInfo
from abstain_tasks.release.bundles import fetch_bundle, fetch_shadow, get_bundle_folder, smoke_test
from abstain_tasks.release.shadow import read_shadow
from abstain_tasks.runs.shell import git
from abstain_tasks.runs.workspace import fetch_origin_snapshot


class OriginVersionSource:
    """The versions of the origin, as `VersionSource` of serving/service/version_follower.py."""

    def __init__(self) -> None:
        self._event: RegistryEvent | None = None
        self._repository = Path()

    def get_production(self) -> VersionInfo:
        """Return the version in production. Raises `AbstainError` as `Registry.require_production` does."""
        self._repository, revision = fetch_origin_snapshot()
        registry = parse_registry(git(self._repository, "show", f"{revision}:{paths.REGISTRY}"))
        event = self._event = registry.require_production()
        notices = (event.notice, str(registry.taint or ""))
        return VersionInfo(event.version, event.bundle_sha256, event.occurred_at, tuple(filter(None, notices)))

    def get_folder(self, version_info: VersionInfo) -> Path:
        """Return the folder of `release` in the local store."""
        return get_bundle_folder(version_info.version)

    def fetch_bundle(self, version_info: VersionInfo) -> Path:
        """Fetch the version that `get_production` returned last; raises `AbstainError` if it was not promoted so."""
        event = self._event
        assert event is not None and event.version == version_info.version
        bundle = fetch_bundle(self._repository, event)
        smoke_test(bundle, event)
        return bundle


class OriginShadowSource:
    """The shadow in the origin, as a `VersionSource`; only with the production version that it was set for."""

    def __init__(self) -> None:
        self._shadow: Shadow | None = None
        self._repository = Path()

    def get_production(self) -> VersionInfo | None:
        """Return the shadow; None if there is none, or another version is in production since."""
        self._repository, revision = fetch_origin_snapshot()
        registry = parse_registry(git(self._repository, "show", f"{revision}:{paths.REGISTRY}"))
        shadow = self._shadow = read_shadow(self._repository, revision)
        if shadow is None or shadow.production_version != registry.production_version:
            return None
        return VersionInfo(shadow.version, shadow.bundle_sha256, shadow.created_at)

    def get_folder(self, version_info: VersionInfo) -> Path:
        """Return the folder in the local store of the shadow that `get_production` returned last."""
        assert self._shadow is not None
        return get_bundle_folder(self._shadow.tag)

    def fetch_bundle(self, version_info: VersionInfo) -> Path:
        """Fetch the shadow that `get_production` returned last. Raises `AbstainError` if it is not what was set."""
        shadow = self._shadow
        assert shadow is not None and shadow.version == version_info.version
        bundle = fetch_shadow(self._repository, shadow)
        smoke_test(bundle, shadow)
        return bundle
