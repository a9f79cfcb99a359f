"""Commands that find their libraries imported: hundreds are started by the tests.

Measured: of a core, the imports of a stage take 4 s (torch, transformers, scikit-learn, ONNX), those of a flow 1.6 s and
those of `dvc` 0.5 s. `make test` runs about ten retrains of 13 stages, so this saves some ten minutes of a core.

A server (`server.py`) imports other people's code and forks once a command; `client.py` takes the place of `python` and
`dvc` on a project's PATH. A fork reads the project's own code, in its own folder, environment and streams. What is sent
signals but SIGKILL, or whose start is tested, is started cold.
"""

import fcntl
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SERVER, CLIENT = (Path(__file__).with_name(f"{name}.py") for name in ("server", "client"))
COMMANDS = ("python", "dvc")


def warm_commands(environment: dict[str, str]) -> Path:
    """The folder with the commands; the server behind them is started by the first that asks, one for a run of tests.

    `environment` is what the libraries see while they are imported. The server ends with the run's first process.
    """
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    owner = os.getppid() if "PYTEST_XDIST_TESTRUNUID" in os.environ else os.getpid()
    folder = Path(tempfile.gettempdir()) / f"abstain-warm-{run}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "socket").exists():
            for name in COMMANDS:
                command = folder / name
                command.write_text(f"#!{sys.executable} -IS\n{CLIENT.read_text()}")
                command.chmod(0o755)
            with (folder / "log").open("wb") as log:
                server = subprocess.Popen(
                    [sys.executable, str(SERVER), str(folder), str(owner)],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            while not (folder / "socket").exists():
                assert server.poll() is None, (folder / "log").read_text()
                time.sleep(0.05)
    return folder
