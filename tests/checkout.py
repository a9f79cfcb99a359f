"""This checkout's files, and copies of them."""

import subprocess
from functools import cache
from pathlib import Path

import yaml

from abstain.config.params import Params
from abstain.sample.shipped import MARK, copy_as_shipped, make_shipped_files

ROOT = Path(__file__).resolve().parents[1]
TEMPLATE = ROOT / "src" / "abstain" / "config" / "template"
SHIPPED = {str(path): text for path, text in make_shipped_files().items()}
"""The project's state as it is shipped, by file: `abstain init` may have changed this clone's."""


def tracked_files() -> list[str]:
    """The files that are in git, or will be with the next `git add --all`, relative to `ROOT`."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return [name for name in filter(None, listed.split("\0")) if (ROOT / name).is_file() or (ROOT / name).is_symlink()]


def copy_checkout(folder: Path) -> None:
    """Copy `tracked_files`, as they are now, to `folder`, but the project's state as it is shipped."""
    copy_as_shipped(ROOT, tracked_files(), folder)


def is_as_shipped() -> bool:
    """Whether `abstain init` has not been run in this clone."""
    return (ROOT / "params.yaml").read_text(encoding="utf-8").startswith(MARK)


@cache
def shipped_params() -> Params:
    return Params.model_validate(yaml.safe_load(SHIPPED["params.yaml"]))
