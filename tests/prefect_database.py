"""A Prefect database that has its tables: a new home's first server takes ten seconds of a core to make them."""

import fcntl
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from abstain_tasks.runs.shell import QUIET


def give_tables(home: Path, cache: Path) -> None:
    """Put an empty database where servers of the project with `home` look for theirs; `cache` keeps one a version."""
    made = cache / f"prefect-{version('prefect')}.db"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "prefect.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.is_file():
            _make(made)
    (home / "prefect").mkdir(parents=True)
    shutil.copyfile(made, home / "prefect" / "prefect.db")


def _make(file: Path) -> None:
    scratch = file.with_suffix("")
    shutil.rmtree(scratch, ignore_errors=True)
    subprocess.run(
        [sys.executable, "-m", "prefect", "server", "database", "upgrade", "-y"],
        env=os.environ | QUIET | {"PREFECT_HOME": str(scratch)},
        check=True,
        capture_output=True,
    )
    (scratch / "prefect.db").rename(file)
    shutil.rmtree(scratch)
