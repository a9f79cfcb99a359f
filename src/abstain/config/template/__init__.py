"""The files that `abstain init` writes for a new project, before its own values are set."""

from importlib import resources


def read_template(name: str) -> str:
    """Return the template `params.yaml`, `sources.yaml`, `dvc.config` (of .dvc/config) or `data.yaml` (of data.dvc)."""
    return (resources.files(__name__) / name).read_text(encoding="utf-8")
