"""The process that converts files for `convert_file`: it forks once for each file, and the fork gets the limits.

`python -m abstain.ingest.sources.conversion_worker DESCRIPTOR` reads requests from the socket with this descriptor
until its other end is closed. A parser is imported before the fork, so only the first file of a format waits for it.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import resource
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import IO, TYPE_CHECKING, Any, NoReturn

from abstain.core.codes import Code
from abstain.core.errors import AbstainError

if TYPE_CHECKING:
    from abstain.knowledge.documents.reader import ParseFile

Convert = Callable[[IO[bytes], IO[bytes]], None]
"""Reads the first file and writes the second."""

_MEMORY, _OUTPUT, _ERROR = 10, 11, 12  # exit statuses
_STATUS_BY_EXIT = {0: "done", _MEMORY: "memory", _OUTPUT: "output"}
_EXIT_BY_ERRNO = {errno.ENOMEM: _MEMORY, errno.EFBIG: _OUTPUT}
_STATUS_BY_SIGNAL: Mapping[int, str] = {signal.SIGXCPU: "time", signal.SIGKILL: "memory"}


def serve(connection: socket.socket) -> None:
    """Convert the files of all requests.

    Args:
        connection: Socket of the requests, each one a JSON object with the descriptors of input and output.
    """
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 2)
        if not message:
            return
        request = json.loads(message)
        with os.fdopen(descriptors[0], "rb") as source, os.fdopen(descriptors[1], "wb") as output:
            answer = _convert(request, source, output)
        connection.send(json.dumps(answer).encode())


def _convert(request: Mapping[str, Any], source: IO[bytes], output: IO[bytes]) -> dict[str, str]:
    """Convert one file in a fork and return the answer to the request."""
    try:
        convert = _import_conversion(request["conversion"], request["name"])
    except AbstainError as error:  # a package is not installed
        return _make_answer(error)
    error_reader, error_writer = os.pipe()
    child = os.fork()
    if not child:
        _run_child(convert, source, output, request["limits"], error_writer)
    os.close(error_writer)
    with os.fdopen(error_reader, "rb") as errors:
        error_text = errors.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return {"status": _STATUS_BY_SIGNAL.get(os.WTERMSIG(status), "crash")}
    if os.WEXITSTATUS(status) == _ERROR:
        answer: dict[str, str] = json.loads(error_text)
        return answer
    return {"status": _STATUS_BY_EXIT.get(os.WEXITSTATUS(status), "crash")}


def _run_child(
    convert: Convert, source: IO[bytes], output: IO[bytes], limits: Mapping[str, int], errors: int
) -> NoReturn:
    """Convert one file within the limits, and end this process."""
    status = _ERROR
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (limits["memory"],) * 2)
        resource.setrlimit(resource.RLIMIT_CPU, (limits["seconds"], limits["seconds"] + 1))
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits["output"],) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            convert(source, output)
            output.flush()
            status = 0
        except MemoryError:
            status = _MEMORY
        except OSError as error:
            if error.errno not in _EXIT_BY_ERRNO:
                code = Code.NOT_READABLE if error.errno else Code.WRONG_FORMAT
                raise AbstainError(code, f"cannot be read: {error.strerror or error}: write it again") from None
            status = _EXIT_BY_ERRNO[error.errno]
    except AbstainError as error:
        os.write(errors, json.dumps(_make_answer(error)).encode())
    except Exception as error:  # of a parser, for a file of which its authors did not think
        problem = " ".join(f"cannot be read ({type(error).__name__}: {error})".split())
        answer = _make_answer(AbstainError(Code.WRONG_FORMAT, f"{problem[:200]}: write it again, or leave it out"))
        os.write(errors, json.dumps(answer).encode())
    finally:
        os._exit(status)


def _make_answer(error: AbstainError) -> dict[str, str]:
    return {"status": "error", "code": error.code, "message": error.message[:2000]}


def _import_conversion(conversion: str, name: str) -> Convert:
    """Import what a conversion needs and return it."""
    if conversion == "gzip":
        return unpack_gzip
    if conversion == "parquet":
        from abstain.ingest.sources.parquet_file import write_json_lines

        return write_json_lines
    from abstain.knowledge.documents.reader import get_parser

    return partial(write_document, get_parser(name))


def write_document(parse: ParseFile, source: IO[bytes], output: IO[bytes]) -> None:
    """Write the metadata and the Markdown of a document as one JSON object, `fields` and `body`.

    Args:
        parse: The parser of the file's format.
        source: The file.
        output: The file to write.

    Raises:
        AbstainError: The file cannot be read.
    """
    fields, body = parse(source.read())
    output.write(json.dumps({"fields": fields, "body": body}, default=str).encode())


def unpack_gzip(source: IO[bytes], output: IO[bytes]) -> None:
    """Unpack a file.

    Args:
        source: The packed file.
        output: The file to write.

    Raises:
        AbstainError: The file is damaged or is not packed by gzip.
    """
    import gzip
    import zlib

    try:
        with gzip.open(source) as unpacked:
            shutil.copyfileobj(unpacked, output, 1 << 20)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise AbstainError(Code.WRONG_FORMAT, f"cannot be read: {error}: write it again") from None


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asked decides
    gc.freeze()  # a fork then copies fewer pages
    serve(socket.socket(fileno=int(sys.argv[1])))
