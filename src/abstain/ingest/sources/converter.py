"""Convert untrusted files in a child process, which cannot take more than its limits of memory, time and output.

Every parser of a file that strangers may write (Parquet, gzip, YAML, HTML, Word, PDF, spreadsheets) runs there: one
mechanism bounds all of them, whatever a file does to its parser. The child gets two open files, the input and the
output, and no path.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from io import UnsupportedOperation
from tempfile import TemporaryFile
from threading import Lock
from typing import IO, Literal

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.filesystem import translate_errors

Conversion = Literal["gzip", "parquet", "document"]

MAX_MEMORY_BYTES = 1_000_000_000
MAX_INPUT_BYTES = 4 * 1024**3
"""The largest file of a server, of which a copy is made."""

MIN_PROCESSOR_SECONDS = 120
PROCESSOR_SECONDS_PER_MB = 20
"""Processor time of a larger file: a PDF of a thousand pages has some 5 MB and takes 100 seconds."""

MIN_OUTPUT_BYTES = 64 * 1024 * 1024
"""The output that every file may have, however small it is."""

MAX_OUTPUT_RATIO = 100
"""The output of a larger file, as a multiple of its size: texts and rows are packed some 5 to 30 times."""


def convert_file(conversion: Conversion, stream: IO[bytes], name: str, display_name: str) -> IO[bytes]:
    """Convert one file.

    Args:
        conversion: What is made of the file: unpacked bytes of gzip, JSON Lines of Parquet (an object per record), one
            JSON object of a document (see `conversion_worker.write_document`).
        stream: The open file.
        name: The file's name, whose suffix tells the format.
        display_name: The file's name in messages.

    Returns:
        The output, at its beginning; it has no name and is gone when it is closed.

    Raises:
        AbstainError: The file cannot be read, or reading it exceeds a limit.
    """
    output = TemporaryFile()  # noqa: SIM115 (the caller closes it)
    try:
        with _open_with_descriptor(stream, display_name) as source:
            size = os.fstat(source.fileno()).st_size
            limits = {
                "memory": MAX_MEMORY_BYTES,
                "seconds": max(MIN_PROCESSOR_SECONDS, PROCESSOR_SECONDS_PER_MB * size // 1_000_000),
                "output": max(MIN_OUTPUT_BYTES, MAX_OUTPUT_RATIO * size),
            }
            request = {"conversion": conversion, "name": name, "limits": limits}
            answer = _get_worker(os.getpid()).request(request, source, output)
        if answer["status"] != "done":
            raise _make_error(answer, display_name, limits)
    except BaseException:
        output.close()
        raise
    output.seek(0)
    return output


class _Worker:
    """The process that converts files for this one. It ends with this one, when its socket is closed."""

    def __init__(self) -> None:
        self._socket, worker_socket = socket.socketpair()
        self._lock = Lock()
        command = [sys.executable, "-P", "-m", "abstain.ingest.sources.conversion_worker", str(worker_socket.fileno())]
        with worker_socket:
            self._process = subprocess.Popen(  # noqa: S603 (ours)
                command, stdin=subprocess.DEVNULL, pass_fds=(worker_socket.fileno(),)
            )

    def request(self, request: Mapping[str, object], source: IO[bytes], output: IO[bytes]) -> dict[str, str]:
        """Send a request, and return the answer when the conversion has ended."""
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], [source.fileno(), output.fileno()])
            answer = self._socket.recv(1 << 16)
        if not answer:
            _get_worker.cache_clear()
            raise RuntimeError(f"the process that converts files has ended with status {self._process.wait()}")
        result: dict[str, str] = json.loads(answer)
        return result


@cache
def _get_worker(process_id: int) -> _Worker:
    """Return the worker of the process with this id, which is this one: a fork must not share its parent's socket."""
    return _Worker()


def _open_with_descriptor(stream: IO[bytes], display_name: str) -> IO[bytes]:
    """Return a file of the system with the content of `stream`: another one on the same, or a copy."""
    try:
        return os.fdopen(os.dup(stream.fileno()), "rb")
    except (AttributeError, UnsupportedOperation):
        copy = TemporaryFile()  # noqa: SIM115 (the caller closes it)
        try:
            while True:
                with translate_errors(Code.NOT_READABLE, f"{display_name}: cannot be read", "check the server"):
                    chunk = stream.read(1 << 20)
                if not chunk:
                    break
                if copy.tell() + len(chunk) > MAX_INPUT_BYTES:
                    problem = f"it has more than {MAX_INPUT_BYTES:,} bytes, the most allowed: divide it"
                    raise AbstainError(Code.TOO_LARGE, f"{display_name}: {problem}")
                copy.write(chunk)
            copy.flush()
        except BaseException:
            copy.close()
            raise
        copy.seek(0)
        return copy


def _make_error(answer: dict[str, str], display_name: str, limits: Mapping[str, int]) -> AbstainError:
    match answer["status"]:
        case "error":
            return AbstainError(Code(answer["code"]), f"{display_name}: {answer['message']}")
        case "memory":
            limit = f"more than {limits['memory'] // 1_000_000:,} MB of memory"
        case "time":
            limit = f"more than {limits['seconds']:,} seconds of processor time"
        case "output":
            limit = f"more than {limits['output']:,} bytes of output"
        case _:
            problem = "its parser crashes, so the file is damaged: write it again, or leave it out"
            return AbstainError(Code.WRONG_FORMAT, f"{display_name}: {problem}")
    return AbstainError(Code.TOO_LARGE, f"{display_name}: to read it takes {limit}, the most allowed: divide it")
