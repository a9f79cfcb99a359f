"""The files that `abstain init` writes for a new project, as they are before its own values."""

from importlib import resources


def template(name: str) -> str:
    """The text of `params.yaml`, `sources.yaml`, `dvc.config` (of `.dvc/config`) or `data.yaml` (of `data.dvc`)."""
    return (resources.files(__name__) / name).read_text(encoding="utf-8")
