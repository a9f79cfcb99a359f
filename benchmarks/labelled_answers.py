"""People's verdicts on answers, for several benchmarks (Gao et al., EMNLP 2023): nine rounds of users' questions.

An answer is correct if the verdict of the user who had asked is Correct. The answers are other models'. The study
`leaderboard` compares all scorers on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from abstain.config.params import Params
from abstain.config.settings import Settings
from abstain.core.contracts import ImportedInteraction, Interaction
from abstain.learning.estimators.training_rows import TrainingRows
from abstain.llm.features.extraction import FeatureSource
from benchmarks.datasets import qa_from_hf

ROOT = Path(__file__).resolve().parents[1]

FILE = ROOT.parent / "shared" / "data" / "qa_from_hf" / "user_feedback.jsonl.gz"
N_RESAMPLES, SEED = 1000, 3


@dataclass(frozen=True)
class LabelledAnswers:
    """Answers with their labels, in order: `correct` 0/1, `topic` and `round`, each (rows,)."""

    interactions: list[Interaction]
    correct: np.ndarray
    topic: np.ndarray
    round: np.ndarray

    def take(self, rows: np.ndarray) -> list[Interaction]:
        """Return the interactions at `rows`."""
        return [self.interactions[row] for row in rows.tolist()]


def read_labelled_answers(file: Path) -> LabelledAnswers:
    """Read every labelled answer, including those that say that there is none."""
    rows = [
        ImportedInteraction.model_validate(item)
        for item in qa_from_hf.read([file], abstentions="keep")
        if isinstance(item, dict)
    ]
    reviews = [row.review for row in rows]
    return LabelledAnswers(
        interactions=[row.to_rows()[0] for row in rows],
        correct=np.array([int(review is not None and review.complete and review.correct) for review in reviews]),
        topic=np.array([row.group for row in rows]),
        round=np.array([int(row.model.rpartition("-")[2]) for row in rows]),
    )


def make_probe_rows(dataset: LabelledAnswers, rows: np.ndarray, params: Params, settings: Settings) -> TrainingRows:
    """Return the answers at `rows` as training rows of a probe at the served site; missing states are computed."""
    source = FeatureSource(params.llm, settings)
    states = sorted(source.read(dataset.take(rows)), key=lambda pair: pair[0])
    correct = torch.tensor(dataset.correct[rows])
    return TrainingRows([row.float() for _, row in states], correct, torch.ones(len(rows)))
