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
MAX_WAIT_S = 5.0
"""Maximum wait for an engine that still writes: time for the disk of a busy host, not for a whole answer."""
POLL_INTERVAL_S = 0.005


def read_and_delete(path: str, folder: Path | None, limit_bytes: int, wait_s: float = MAX_WAIT_S) -> bytes:
    """Read a file of states and delete it and its lock, whatever they contain.

    A path outside of the folder, a link, and a file that is still written after `wait_s` are neither read nor deleted.

    Args:
        path: Path of the file; a relative one is relative to `folder`.
        folder: Folder that the file must lie in; None allows no file.
        limit_bytes: Maximum size in bytes.
        wait_s: Maximum wait in seconds for an engine that still writes.

    Returns:
        The content of the file.

    Raises:
        AbstainError: The path is not allowed, there is no such regular file, it is still being written, it is larger
            than `limit_bytes`, or it cannot be deleted.
    """
    if folder is None:
        raise AbstainError(
            Code.NO_ACCESS,
            "states were given as a path, and no folder is allowed: set ABSTAIN_SERVE_STATES_FOLDER, or send the bytes",
        )
    try:
        with _open_parent(path, folder) as (parent, name), _wait_until_written(parent, name, path, wait_s):
            return _read_and_unlink(parent, name, path, limit_bytes)
    except (OSError, ValueError, RuntimeError) as error:  # the last of links that lead to each other
        reason = error.strerror if isinstance(error, OSError) else "no valid path"
        raise AbstainError(
            Code.NOT_READABLE,
            f"the states {path!r} cannot be read ({reason}): give the path that the engine returned, once; a file is "
            "deleted when it was read",
        ) from None


@contextmanager
def _open_parent(path: str, folder: Path) -> Iterator[tuple[int, str]]:
    """Yield a descriptor of the folder that contains `path`, and the name of the file in it.

    No link is followed once `path` is resolved, so that a folder cannot be exchanged in between.
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
        for folder_name in folders:
            inner = os.open(folder_name, flags, dir_fd=parent)
            os.close(parent)
            parent = inner
        yield parent, name
    finally:
        os.close(parent)


def _open_file(parent: int, name: str) -> int:
    """Return a descriptor of a regular file without waiting for a pipe or device."""
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(0, "no regular file")
    return file


@contextmanager
def _wait_until_written(parent: int, name: str, path: str, wait_s: float) -> Iterator[None]:
    """Wait for a shared lock of `name`'s lock file, if there is one; the lock file is deleted afterwards."""
    lock = f"{name}.lock"
    try:
        file = _open_file(parent, lock)
    except FileNotFoundError:  # the engine was told to use none
        yield
        return
    try:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise AbstainError(
                        Code.NOT_READABLE,
                        f"the states {path!r} are still being written after {wait_s:g} s: ask again, or give the "
                        "engine a faster disk, such as one in memory",
                    ) from None
                time.sleep(POLL_INTERVAL_S)
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
        while len(content) <= limit_bytes and (chunk := os.read(file, limit_bytes + 1 - len(content))):
            content += chunk
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


def make_too_large_error(subject: str, limit_bytes: int) -> AbstainError:
    """Return the error for states that exceed the limit.

    Args:
        subject: Subject of the message, such as "the states".
        limit_bytes: Maximum size in bytes.

    Returns:
        The error.
    """
    return AbstainError(
        Code.TOO_LARGE,
        f"{subject} have more than {limit_bytes} bytes: let the engine give the layer that is read alone, or none",
    )
