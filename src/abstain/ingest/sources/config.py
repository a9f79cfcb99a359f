"""`sources.yaml`: the sources that `abstain ingest` reads when no file is named."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from abstain.config.yaml_model import FrozenModel, load_yaml_model
from abstain.data.store.dataset import is_review_queue
from abstain.ingest.sources.decision_log import DecisionLogSource
from abstain.ingest.sources.export import ExportSource
from abstain.ingest.sources.files import FileSource
from abstain.ingest.sources.sql import SqlSource

AnySource = FileSource | SqlSource | ExportSource | DecisionLogSource

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")  # no dot, so that a source never looks like a document's file


class _SourcesFile(FrozenModel):
    sources: tuple[Annotated[AnySource, Field(discriminator="kind")], ...]

    @field_validator("sources")
    @classmethod
    def _check_names(cls, sources: Sequence[AnySource]) -> Sequence[AnySource]:
        names = [source.name for source in sources]
        for name in names:
            if not _NAME.fullmatch(name):
                raise ValueError(f"the name '{name}' may hold only lower-case letters, digits, - and _")
            if names.count(name) > 1:
                raise ValueError(f"two sources are called '{name}': rename one, which is then read from its beginning")
            if is_review_queue(name):
                raise ValueError(f"the name '{name}' is reserved for the reviews of `abstain review import`: rename it")
        return sources


def load_sources(path: Path, home: Path) -> tuple[AnySource, ...]:
    """Parse sources.yaml.

    Args:
        path: The file; paths of mapping files are relative to its folder.
        home: Folder that paths of data are relative to.

    Returns:
        The sources, with absolute paths.

    Raises:
        AbstainError: A key or URL is wrong; the message names it and, for a key, the nearest valid one.
    """
    sources = load_yaml_model(path, _SourcesFile, "run this in the root of the project").sources
    return tuple(source.resolve_paths(home.resolve(), path.parent.resolve()) for source in sources)
