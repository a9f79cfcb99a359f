"""The version that the server decides by, and its exchange while requests run.

This module does not know where versions come from: the caller that starts the server passes a `VersionSource`. A new
version is fetched, opened, smoke-tested and warmed up while the old one decides, and takes over between two requests.
If it fails to load, the old one stays. It is tried again once its files here have changed, and after a pause: the pause
doubles each time, or is the longest one at once if the error is in the files.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.serving.gate import Gate

_log = logging.getLogger("abstain.serve")
PERMANENT_ERROR_CODES = frozenset({Code.BAD_ARTIFACT, Code.VERSION_MISMATCH, Code.EXPORT_DIFFERS})
"""Errors in the files of a version: another try would read the same files."""
FIRST_PAUSE_S, MAX_PAUSE_S = 15.0, 600.0

_Files = tuple[tuple[str, int, int, int], ...]
"""Name, inode, size and time of each file."""


@dataclass(frozen=True)
class VersionInfo:
    """A version that the registry names.

    Attributes:
        version: Name of the version.
        digest: Digest of its files, since a version may be repaired in place.
        live_since: When it went live.
        notices: What users should know about it, such as that it guarantees nothing.
    """

    version: str
    digest: str
    live_since: datetime
    notices: tuple[str, ...] = ()


class VersionSource(Protocol):
    """A source of versions."""

    def get_production(self) -> VersionInfo | None:
        """Return the version that should decide; None if none should.

        Returns:
            The version.

        Raises:
            AbstainError: No version may decide (`Code.NO_VERSION`), or the registry cannot be read.
        """

    def get_folder(self, version_info: VersionInfo) -> Path:
        """Return the folder of a version's files, which exists once they are fetched."""

    def fetch_bundle(self, version_info: VersionInfo) -> Path:
        """Fetch, verify and smoke-test the files of a version.

        Args:
            version_info: The version.

        Returns:
            The folder of its bundle.

        Raises:
            AbstainError: The bundle is damaged or fails the test.
        """


@dataclass(frozen=True)
class LoadedVersion:
    """A version with its gate.

    Attributes:
        version_info: The version.
        gate: Its gate.
    """

    version_info: VersionInfo
    gate: Gate


class VersionFollower:
    """Loads the version that a `VersionSource` names and swaps it in while requests run.

    `refresh` polls the source. Reading `current` needs no lock.

    Args:
        source: Where versions come from.
        open_gate: Opens the gate of a bundle folder.
        warm_up: Called with a new gate before it takes over.

    Attributes:
        current: The live version; None if there is none.
        last_error: Why the newest version is not live, or why the registry cannot be read; None if there is no error.
        n_swaps: Number of versions that took over from another one.
        n_failed_loads: Number of failed loads.
    """

    def __init__(
        self,
        source: VersionSource,
        open_gate: Callable[[Path], Gate],
        warm_up: Callable[[Gate], None] = Gate.warm_up,
    ) -> None:
        self._source, self._open, self._warm_up = source, open_gate, warm_up
        self._refreshing = threading.Lock()
        self.current: LoadedVersion | None = None
        self.last_error: AbstainError | None = None
        self.n_swaps, self.n_failed_loads = 0, 0
        self._failed: _FailedLoad | None = None

    def refresh(self) -> None:
        """Load the version that the source names, if it is not the live one. Never raises.

        Errors are in `last_error`. The current version stays live unless the registry says that none may decide.
        """
        with self._refreshing:
            try:
                version_info = self._source.get_production()
            except Exception as error:  # whatever it is, the next time may be better
                if isinstance(error, AbstainError) and error.code is Code.NO_VERSION:
                    self.current = None
                self._set_error(_to_abstain_error(error))
                return
            if version_info is None:
                self.current = None
                self._set_error(None)
            elif self.current and version_info == self.current.version_info:
                self._set_error(None)
            elif self._failed and self._failed.is_backing_off(
                version_info, _read_file_stats(self._source.get_folder(version_info))
            ):
                self._set_error(self._failed.error)
            else:
                self._load(version_info)

    def require_current(self) -> LoadedVersion:
        """Return the live version.

        Returns:
            The version.

        Raises:
            AbstainError: There is none.
        """
        version, error = self.current, self.last_error
        if version is None:
            raise AbstainError(Code.NO_VERSION, error.message_with_code if error else "nothing is live")
        return version

    def _load(self, version_info: VersionInfo) -> None:
        try:
            gate = self._open(self._source.fetch_bundle(version_info))
            self._warm_up(gate)
        except Exception as error:  # whatever is wrong with it, the version so far must go on
            known_error = _to_abstain_error(error, f"{version_info.version} fails to load: ")
            is_bad = known_error.code in PERMANENT_ERROR_CODES
            n_tries = self._failed.n_tries + 1 if self._failed and self._failed.version_info == version_info else 1
            pause = MAX_PAUSE_S if is_bad else min(FIRST_PAUSE_S * 2 ** (n_tries - 1), MAX_PAUSE_S)
            files = _read_file_stats(self._source.get_folder(version_info))
            self._failed = _FailedLoad(version_info, files, known_error, n_tries, time.monotonic() + pause)
            self.n_failed_loads += 1
            self._set_error(known_error)
            return
        previous, self.current = self.current, LoadedVersion(version_info, gate)
        self._failed, self.n_swaps = None, self.n_swaps + (previous is not None)
        self._set_error(None)
        _log.info(
            "%s decides now%s", version_info.version, f", after {previous.version_info.version}" if previous else ""
        )

    def _set_error(self, error: AbstainError | None) -> None:
        if error and (self.last_error is None or error.args != self.last_error.args):
            _log.warning("%s", error.message_with_code)
        self.last_error = error


@dataclass(frozen=True)
class _FailedLoad:
    """A version that failed to load with these `files`, and when it is tried again."""

    version_info: VersionInfo
    files: _Files
    error: AbstainError
    n_tries: int
    retry_at: float

    def is_backing_off(self, version_info: VersionInfo, files: _Files) -> bool:
        return (version_info, files) == (self.version_info, self.files) and time.monotonic() < self.retry_at


def _read_file_stats(folder: Path) -> _Files:
    """Return name, inode, size and time of each file in `folder`; empty if there is none."""
    try:
        file_stats = [(str(file), file.stat()) for file in folder.rglob("*")]
    except OSError:  # it is being changed
        return ()
    return tuple(sorted((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in file_stats))


def _to_abstain_error(error: Exception, prefix: str = "") -> AbstainError:
    """Return `error` with `prefix` before its message; an unexpected one is named by its type."""
    if isinstance(error, AbstainError):
        return AbstainError(error.code, prefix + error.message)
    return AbstainError(Code.PROCESS_DIED, f"{prefix}{type(error).__name__}: {error}")
