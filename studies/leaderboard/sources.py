"""The answers that a study's stages run on: a project's own, or a drawn part of a published set of reviews."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Protocol

import numpy as np
from pydantic import Field

from abstain.config.params import ValidationParams
from abstain.config.yaml_model import FrozenModel
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.data.store.dataset import DataStore, create_empty_store
from abstain.ingest.pipeline.run import ingest
from abstain.ingest.sources.files import make_explicit_sources
from benchmarks.datasets import Item, SkippedRecord, qa_from_hf
from benchmarks.datasets.convert import convert

REVIEWS = "user_feedback.jsonl.gz"


class AnswerSource(Protocol):
    """Answers with their reviews, as the data/ of a project."""

    @property
    def name(self) -> str:
        """Name of the folder of the home that holds them."""

    @property
    def changes(self) -> Mapping[str, Mapping[str, Any]]:
        """Section -> key -> value of the parameters that these answers need."""

    def describe(self) -> dict[str, Any]:
        """Return what identifies the answers, as JSON.

        Raises:
            AbstainError: there are none.
        """

    def write(self, folder: Path, validation: ValidationParams) -> None:
        """Write the answers to the data folder `folder`, which does not exist."""


@dataclass(frozen=True)
class ProjectData:
    """All answers of the project in the working directory."""

    folder: Path

    @property
    def name(self) -> str:
        return "project"

    @property
    def changes(self) -> Mapping[str, Mapping[str, Any]]:
        return {}

    def describe(self) -> dict[str, Any]:
        DataStore(self.folder / paths.DATA).require_interactions()
        digest = hashlib.sha256()
        for file in sorted((self.folder / paths.DATA).rglob("*")):
            if file.is_file():
                digest.update(str(file.relative_to(self.folder)).encode() + hashlib.sha256(file.read_bytes()).digest())
        return {"sha256": digest.hexdigest()}

    def write(self, folder: Path, validation: ValidationParams) -> None:
        shutil.copytree(self.folder / paths.DATA, folder)


class ReviewDraw(FrozenModel):
    """How many answers are drawn at least, the first round that is for testing, and the parameters of these answers."""

    seed: int
    train: Annotated[int, Field(ge=2)]
    test: Annotated[int, Field(ge=2)]
    first_test_round: int
    params: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class DrawnReviews:
    """Answers that their askers judged (Gao et al.), of topics that are drawn as a whole.

    Answers of the rounds from `draw.first_test_round` on are for testing. No topic of any of these is in the training
    part.

    Attributes:
        file: The file of the published set.
        draw: How many are drawn.
    """

    file: Path
    draw: ReviewDraw

    @property
    def name(self) -> str:
        return self.file.parent.name

    @property
    def changes(self) -> Mapping[str, Mapping[str, Any]]:
        return {
            **self.draw.params,
            "split": {"by": "time", "holdout_from": self._test_begin, "holdout_frozen_at": None},
        }

    def describe(self) -> dict[str, Any]:
        ids = sorted(row["interaction_id"] for row in self._draw() if isinstance(row, Mapping))
        return {
            "file": self.file.name,
            **self.draw.model_dump(exclude={"params"}),
            "answers": len(ids),
            "sha256": hashlib.sha256(json.dumps(ids).encode()).hexdigest(),
        }

    def write(self, folder: Path, validation: ValidationParams) -> None:
        create_empty_store(folder)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".drawn-") as scratch:
            rows = Path(scratch) / "rows"
            convert(self._draw(), rows)
            ingest(make_explicit_sources([str(rows)]), folder, validation, datetime.now(UTC))

    @property
    def _test_begin(self) -> str:
        return (qa_from_hf.FIRST_ROUND + (self.draw.first_test_round - 1) * qa_from_hf.ROUND).isoformat()

    def _draw(self) -> list[Item]:
        """Return the rows of the drawn topics, and all documents."""
        if not self.file.is_file():
            raise AbstainError(
                Code.NOT_READABLE, f"{self.file.parent} has no file {REVIEWS}: say with --data where it is"
            )
        items = [
            item for item in qa_from_hf.read([self.file], abstentions="keep") if not isinstance(item, SkippedRecord)
        ]
        rows = [item for item in items if isinstance(item, Mapping)]
        test = [row for row in rows if row["asked_at"] >= self._test_begin]
        test_topics = {row["group"] for row in test}
        train = [row for row in rows if row["group"] not in test_topics]
        reviews = draw_topics(train, self.draw.train, self.draw.seed) + draw_topics(
            test, self.draw.test, self.draw.seed
        )
        return [*reviews, *(item for item in items if not isinstance(item, Mapping))]


def draw_topics(rows: list[Mapping[str, Any]], minimum: int, seed: int) -> list[Mapping[str, Any]]:
    """Draw whole topics at random until they have `minimum` rows; all topics if there are fewer.

    Args:
        rows: Rows with their topic as `group`.
        minimum: Smallest number of rows.
        seed: Seed of the draw.

    Returns:
        The rows of the drawn topics, in their order.
    """
    topics, index = np.unique([row["group"] for row in rows], return_inverse=True)
    order = np.random.default_rng(seed).permutation(len(topics))
    counts = np.bincount(index)[order]
    n_before = np.cumsum(counts) - counts
    topic_indices = set(order[n_before < minimum].tolist())
    return [row for row, topic in zip(rows, index.tolist(), strict=True) if topic in topic_indices]
