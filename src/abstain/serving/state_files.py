"""Files of hidden states that an engine wrote into a folder it shares with this machine: read once, then deleted.

vLLM's connector writes `ID.safetensors`, and holds an exclusive lock on `ID.safetensors.lock` until the file is whole.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from abstain.core.codes import Code
from abstain.core.errors import AbstainError

SUFFIX = ".safetensors"
WAIT_S = 5.0
"""For an engine that still writes: the disk of a busy host, not a whole answer."""
PAUSE_S = 0.005


def read_and_delete(path: str, folder: Path | None, limit_bytes: int, wait_s: float = WAIT_S) -> bytes:
    """The content of the file `path` inside `folder`; the file, and its lock, are deleted, whatever they hold.

    A relative `path` is relative to `folder`. What is outside it, a link, or still written after `wait_s` seconds is
    neither read nor deleted. Raises `AbstainError` for such a path, for a file that is not there, is none, or has more
    than `limit_bytes`, and where it cannot be deleted.
    """
    if folder is None:
        raise AbstainError(
            Code.NO_ACCESS,
            "states were given as a path, and no folder is allowed: set ABSTAIN_SERVE_STATES_FOLDER, or send the bytes",
        )
    try:
        with _opened_parent(path, folder) as (parent, name), _wait_until_written(parent, name, path, wait_s):
            return _read_and_unlink(parent, name, path, limit_bytes)
    except (OSError, ValueError, RuntimeError) as error:  # the last of links that lead to each other
        reason = error.strerror if isinstance(error, OSError) else "no valid path"
        raise AbstainError(
            Code.NOT_READABLE,
            f"the states {path!r} cannot be read ({reason}): give the path that the engine returned, once; a file is "
            "deleted when it was read",
        ) from None


@contextmanager
def _opened_parent(path: str, folder: Path) -> Iterator[tuple[int, str]]:
    """The descriptor of the folder that holds `path`, and its name there.

    No link is followed once `path` is resolved: nobody can exchange a folder in between.
    """
    root, real = folder.resolve(), (folder / path).resolve()
    if not real.is_relative_to(root) or real.suffix != SUFFIX:
        raise AbstainError(
            Code.NOT_READABLE,
            f"the states {path!r} are no {SUFFIX} file inside the folder of states: let the engine write there",
        )
    *folders, name = real.relative_to(root).parts
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    parent = os.open(root, flags)
    try:
        for part in folders:
            inner = os.open(part, flags, dir_fd=parent)
            os.close(parent)
            parent = inner
        yield parent, name
    finally:
        os.close(parent)


def _open_file(parent: int, name: str) -> int:
    """A descriptor of a regular file; a pipe or device is not waited for."""
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(0, "no regular file")
    return file


@contextmanager
def _wait_until_written(parent: int, name: str, path: str, wait_s: float) -> Iterator[None]:
    """Wait until nobody writes `name`: a shared lock of its lock, where there is one, which is deleted then."""
    lock = f"{name}.lock"
    try:
        file = _open_file(parent, lock)
    except FileNotFoundError:  # the engine was told to use none
        yield
        return
    try:
        until = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise AbstainError(
                        Code.NOT_READABLE,
                        f"the states {path!r} are still being written after {wait_s:g} s: ask again, or give the "
                        "engine a faster disk, such as one in memory",
                    ) from None
                time.sleep(PAUSE_S)
        try:
            yield
        finally:
            with suppress(FileNotFoundError):
                os.unlink(lock, dir_fd=parent)
    finally:
        os.close(file)


def _read_and_unlink(parent: int, name: str, path: str, limit_bytes: int) -> bytes:
    file = _open_file(parent, name)
    try:
        content = bytearray()
        while len(content) <= limit_bytes and (more := os.read(file, limit_bytes + 1 - len(content))):
            content += more
    finally:
        os.close(file)
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:  # somebody else read it at the same time
        pass
    except OSError as error:
        raise AbstainError(
            Code.NOT_WRITABLE,
            f"the states {path!r} cannot be deleted after use ({error.strerror}): let this user write to their folder",
        ) from None
    if len(content) > limit_bytes:
        raise make_too_large_error(f"the states {path!r}", limit_bytes)
    return bytes(content)


def make_too_large_error(what: str, limit_bytes: int) -> AbstainError:
    """The error for states that exceed `limit_bytes`."""
    return AbstainError(
        Code.TOO_LARGE,
        f"{what} have more than {limit_bytes} bytes: let the engine give the layer that is read alone, or none",
    )
