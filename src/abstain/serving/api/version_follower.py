"""The version that the server decides by, and its exchange while requests run.

Where versions come from is not known here: `VersionSource` is given by who starts the server. A new version is fetched,
opened, smoke-tested and warmed beside the old one, and takes over between two requests. One that fails is refused, and
the old one goes on. It is tried again once its files here are others, and after a pause: one that doubles, or the
longest where its files are what is wrong.
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
"""What is wrong with the files of a version: another try would read the same ones."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 15.0, 600.0

_Files = tuple[tuple[str, int, int, int], ...]
"""Name, inode, size and time of each file."""


@dataclass(frozen=True)
class VersionInfo:
    """A version that the registry names. `digest`: of its files, since a version may be repaired in place; `notice`: what
    users should know about it, such as that it guarantees nothing."""

    version: str
    digest: str
    since: datetime
    notice: str = ""


class VersionSource(Protocol):
    """Where released versions come from."""

    def get_production(self) -> VersionInfo | None:
        """What decides; None where nothing is meant to.

        Raises `AbstainError` with `Code.NO_VERSION` where no version may decide, and where the registry cannot be read.
        """

    def folder(self, release: VersionInfo) -> Path:
        """Where the files of `release` are once they were fetched."""

    def fetch_bundle(self, release: VersionInfo) -> Path:
        """`folder`, complete, verified and smoke-tested. Raises `AbstainError` for a bad one."""


@dataclass(frozen=True)
class LoadedVersion:
    """A version with its gate."""

    version_info: VersionInfo
    gate: Gate


class VersionFollower:
    """The live version; `refresh` follows the registry. Reading `current` needs no lock.

    `warm`: what is done with a gate before it takes over.
    """

    def __init__(
        self,
        releases: VersionSource,
        open_gate: Callable[[Path], Gate],
        warm: Callable[[Gate], None] = Gate.warm_up,
    ) -> None:
        self._releases, self._open, self._warm = releases, open_gate, warm
        self._refreshing = threading.Lock()
        self.current: LoadedVersion | None = None
        self.last_error: str | None = None
        """Why the newest version is not the live one, or why the registry cannot be read; None where all is well."""
        self.n_swaps, self.n_failed_loads = 0, 0
        self._failed: _FailedLoad | None = None

    def refresh(self) -> None:
        """Follow the registry. It never raises: what goes wrong is in `last_error`, and the version so far stays, unless
        the registry says that none may decide."""
        with self._refreshing:
            try:
                release = self._releases.get_production()
            except Exception as error:  # whatever it is, the next time may be better
                if isinstance(error, AbstainError) and error.code is Code.NO_VERSION:
                    self.current = None
                self._set_error(_format_error(error))
                return
            if release is None:
                self.current = None
                self._set_error(None)
            elif self.current and release == self.current.version_info:
                self._set_error(None)
            elif self._failed and self._failed.is_backing_off(release, _state(self._releases.folder(release))):
                self._set_error(self._failed.message)
            else:
                self._load(release)

    def _load(self, release: VersionInfo) -> None:
        try:
            gate = self._open(self._releases.fetch_bundle(release))
            self._warm(gate)
        except Exception as error:  # whatever is wrong with it, the version so far must go on
            is_bad = isinstance(error, AbstainError) and error.code in PERMANENT_ERROR_CODES
            times = self._failed.times + 1 if self._failed and self._failed.release == release else 1
            pause = LONGEST_PAUSE_S if is_bad else min(FIRST_PAUSE_S * 2 ** (times - 1), LONGEST_PAUSE_S)
            files, message = (
                _state(self._releases.folder(release)),
                f"{release.version} is refused: {_format_error(error)}",
            )
            self._failed = _FailedLoad(release, files, message, times, time.monotonic() + pause)
            self.n_failed_loads += 1
            self._set_error(self._failed.message)
            return
        before, self.current = self.current, LoadedVersion(release, gate)
        self._failed, self.n_swaps = None, self.n_swaps + (before is not None)
        self._set_error(None)
        _log.info("%s decides now%s", release.version, f", after {before.version_info.version}" if before else "")

    def _set_error(self, trouble: str | None) -> None:
        if trouble and trouble != self.last_error:
            _log.warning("%s", trouble)
        self.last_error = trouble


@dataclass(frozen=True)
class _FailedLoad:
    """A version that could not take over with these `files`, and when it is tried `retry_at`."""

    release: VersionInfo
    files: _Files
    message: str
    times: int
    retry_at: float

    def is_backing_off(self, release: VersionInfo, files: _Files) -> bool:
        return (release, files) == (self.release, self.files) and time.monotonic() < self.retry_at


def _state(folder: Path) -> _Files:
    """What differs once a file in `folder` was changed; empty where there is none."""
    try:
        found = [(str(file), file.stat()) for file in folder.rglob("*")]
    except OSError:  # it is being changed
        return ()
    return tuple(sorted((name, own.st_ino, own.st_size, own.st_mtime_ns) for name, own in found))


def _format_error(error: Exception) -> str:
    return error.message_with_code if isinstance(error, AbstainError) else f"{type(error).__name__}: {error}"
