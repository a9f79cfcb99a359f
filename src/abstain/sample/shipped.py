"""A project as it is shipped: the state of the sample in place of a project's own.

Parameters, sources, registry, pointer to the data and DVC remote are the state of a project. The shipped state is made
from the template of a new project and the sample's differences, so that `abstain demo` and the tests have it even in a
clone that `abstain init` has changed.

    python -m abstain.sample.shipped       write it in this folder, after a change of the template or of the sample
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

import yaml

from abstain.config.template import read_template
from abstain.config.yaml_editor import parse_yaml, update_yaml
from abstain.core import paths
from abstain.release.registry import Registry

DATA_POINTER, DVC_CONFIG = Path("data.dvc"), Path(".dvc/config")
MADE_BY_RUNS = (Path("dvc.lock"), Path("release.dvc"), Path("shadow.dvc"), paths.SHADOW_POINTER, paths.APPROVALS)
"""State that runs commit, and that is not shipped."""
MARK = "# As shipped, with the sample: `abstain init` writes this file for a project of its own.\n"
"""The first line of a shipped file, by which a merge tells a newer release from the project's own branches."""


def make_shipped_files() -> dict[Path, str]:
    """Make the state that is shipped.

    Returns:
        Path in the project -> content.
    """
    params = update_yaml(read_template("params.yaml"), parse_yaml(_read_sample_file("params.yaml")))
    return {
        paths.PARAMS: MARK + params,
        paths.SOURCES: MARK + read_template("sources.yaml"),
        paths.REGISTRY: Registry().to_json(),
        DATA_POINTER: _read_sample_file("data.yaml"),
        DVC_CONFIG: read_template("dvc.config"),
    }


def copy_as_shipped(project: Path, names: Iterable[str], folder: Path) -> list[str]:
    """Copy files of a project as they are now, but its state as it is shipped.

    Args:
        project: The project.
        names: Its files.
        folder: The target folder.

    Returns:
        The names of the files in the target folder.
    """
    shipped = make_shipped_files()
    copied = [
        name
        for name in map(Path, names)
        if name not in shipped and not any(name.is_relative_to(run_file) for run_file in MADE_BY_RUNS)
    ]
    for name in copied:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (project / name).is_symlink():
            (folder / name).unlink(missing_ok=True)  # a link is not overwritten
        shutil.copy2(project / name, folder / name, follow_symlinks=False)
    for name, text in shipped.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return [str(name) for name in (*copied, *shipped)]


def parse_data_digest(pointer: str) -> str:
    """Parse the digest of the data from the text of a `data.dvc`.

    Args:
        pointer: Content of the file.

    Returns:
        The digest.
    """
    digest: str = yaml.safe_load(pointer)["outs"][0]["md5"]
    return digest


def _read_sample_file(name: str) -> str:
    return (resources.files("abstain.sample") / name).read_text(encoding="utf-8")


if __name__ == "__main__":
    if not paths.PARAMS.is_file() or not paths.PARAMS.read_text(encoding="utf-8").startswith(MARK):
        raise SystemExit("error: params.yaml is not as shipped: run this in a clone without a project of its own")
    copy_as_shipped(Path(), (), Path())
