"""`python server.py FOLDER OWNER`: runs commands in forks of itself, asked on FOLDER/socket while process OWNER lives."""

import atexit
import fcntl
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import struct
import sys
import threading
import traceback
import types
import weakref
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path

import psutil

MOST_FILES = 64

LIBRARIES = (
    "numpy pandas pyarrow.parquet pyarrow.dataset scipy.optimize scipy.stats yaml rich.progress sklearn.linear_model "
    "sklearn.ensemble sklearn.model_selection sklearn.isotonic sklearn.decomposition torch transformers.models.auto "
    "transformers.models.llama.modeling_llama safetensors.torch onnx onnxruntime skl2onnx "
    "great_expectations venn_abers presidio_analyzer torchmetrics.text rouge_score.rouge_scorer matplotlib.figure "
    "markdown_it pydantic_settings typer httpx anyio fastapi uvicorn sqlalchemy.ext.asyncio jinja2 dvc.cli "
    "dvc.cli.parser dvc.repo dvc.commands.repro dvc.stage dvc.repo.reproduce dvc_data.index"
)
"""What the commands import of other people's code."""
PREFECT = ("prefect.flows", "prefect.artifacts", "prefect.client.orchestration", "prefect.server.api.server")


class SetAside(MetaPathFinder, Loader):
    """Prefect, imported, and yet to be imported: it reads its settings then, which commands change before."""

    def __init__(self) -> None:
        names = [name for name in sys.modules if name.partition(".")[0] == "prefect"]
        self.modules = {name: sys.modules.pop(name) for name in names}

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name == "prefect" else None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        sys.meta_path.remove(self)
        self.spec = self.modules["prefect"].__spec__
        sys.modules.update(self.modules)
        return self.modules["prefect"]

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self.spec
        self.modules["prefect.context"].refresh_global_settings_context()


def main(folder: Path, owner: int) -> None:
    os.environ["PREFECT_HOME"] = str(folder / "prefect")
    gc.set_threshold(200_000, 20, 100)  # as in conftest.py
    for name in (*LIBRARIES.split(), *PREFECT):
        with suppress(ImportError):
            importlib.import_module(name)
    sys.meta_path.insert(0, SetAside())
    atexit._clear()  # what libraries would do at the exit of each fork takes longer than the fork
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "starting"))
        listener.listen(64)
        (folder / "starting").rename(folder / "socket")
        listener.settimeout(2)
        while psutil.pid_exists(owner):
            with suppress(TimeoutError):
                client, _ = listener.accept()
                with client:
                    if os.fork() == 0:
                        listener.close()
                        client.settimeout(None)
                        _serve(client, folder)


def _serve(client: socket.socket, folder: Path) -> None:
    """Run what `client` asks for in this process, and end with its exit status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgid(0, 0)
    client = socket.socket(fileno=_above(client.detach()))
    header, received, _, _ = socket.recv_fds(client, 4, MOST_FILES)
    text = b""
    while len(text) < struct.unpack("!I", header)[0]:
        text += client.recv(1 << 16)
    request = json.loads(text)
    threading.Thread(target=_end_with, args=[client], daemon=True).start()
    for number, file in zip(request["files"], [_above(file) for file in received], strict=True):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    sys.stdin = open(0, closefd=False)
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False, buffering=1 if unbuffered else -1)
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1, errors="backslashreplace")
    sys.executable = str(folder / "python")  # so that what it starts is served, too
    status = _run(request["name"], request["arguments"])
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    with suppress(OSError):
        client.send(bytes([status & 255]))
    os._exit(status & 255)  # C++ libraries do not come through their own exit where they were forked


def _above(file: int) -> int:
    """The same file under a number that no command's own file has."""
    moved = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 500)
    os.close(file)
    return moved


def _end_with(client: socket.socket) -> None:
    """The command ends, with all that it has started, where the client that stands for it was killed."""
    if not client.recv(1):
        os.killpg(os.getpid(), signal.SIGKILL)


def _run(name: str, arguments: list[str]) -> int:
    own = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    try:
        if name == "dvc":
            sys.argv = ["dvc", *arguments]
            from dvc.cli import main as dvc

            return int(dvc(arguments) or 0)
        sys.path[:] = [os.getcwd(), *own, *sys.path[1:]]
        if arguments[0] == "-c":
            sys.argv = ["-c", *arguments[2:]]
            sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(arguments[1], "<string>", "exec", dont_inherit=True), vars(sys.modules["__main__"]))
        else:
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
