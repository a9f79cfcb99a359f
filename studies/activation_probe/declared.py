"""Configuration of the study of Huang et al.: what its tables vary, and the paper's numbers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from abstain.config.params import Architecture, Count, Site
from abstain.config.yaml_model import FrozenModel
from abstain.llm.signals.feature_plan import ProbeSite
from studies.leaderboard.tables import DeclaredTable


class DeclaredProbeStudy(FrozenModel):
    """The study's file; its comments say what the keys are."""

    kind: str
    title: str
    pair: Annotated[tuple[str, ...], Field(min_length=2, max_length=2)]
    thresholds_for: tuple[str, ...]
    architecture: Architecture
    layers: tuple[Count, ...]
    chunks: tuple[Count | None, ...]
    sites: Annotated[tuple[Site, ...], Field(min_length=1)]
    timed: Count
    runs: Count
    seeds: Annotated[tuple[int, ...], Field(min_length=1)]
    huber: dict[str, tuple[float, ...]]
    tables: dict[str, DeclaredTable]

    def list_sites(self, chunks: int | None) -> list[ProbeSite]:
        """Return every layer and site with the best `chunks` in the prompt."""
        return [ProbeSite(layer, site, chunks) for layer in self.layers for site in self.sites]
