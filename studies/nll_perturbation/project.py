"""The experiment on a project's reviewed answers: as they are, read with the project's base model and prompt."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from abstain.config.params import LLMParams
from abstain.core.codes import Code
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.core.formatting import format_count
from abstain.learning.estimators.correctness_targets import compute_correctness
from studies.nll_perturbation.declared import LABEL, Experiment, Model, Size
from studies.project_answers import read_project_answers
from studies.rows import hash_order

OF_PROJECT = "project's"
"""The project's base model, as a label."""
MIN_SIZE = Size(train=40, evaluation=20)
"""Fewer answers say nothing about a regressor with more than a hundred columns."""


@dataclass(frozen=True)
class ReviewedAnswers:
    """Answers that a target is known of, in random order.

    Attributes:
        llm: The project's base model and how it is prompted.
        train: Those of the split `train`.
        evaluation: Those of the hold-out and of the newest split.
        groups: Group by id of the answer.
        labels: Whether reviewers call it correct, 0 or 1, by id.
        references: The reviewer's ideal answer by id; empty if too few have one, and the label is the target.
    """

    llm: LLMParams
    train: Sequence[Interaction]
    evaluation: Sequence[Interaction]
    groups: dict[str, str]
    labels: dict[str, int]
    references: dict[str, str]

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the answers and all that is known about them."""
        lines = [
            f"{row.model_dump_json()} {self.groups[name]} {self.labels[name]} {self.references.get(name)}"
            for rows in (self.train, self.evaluation)
            for row in rows
            for name in (row.interaction_id,)
        ]
        return hashlib.sha256("\n".join((self.llm.model_dump_json(), *lines)).encode()).hexdigest()

    @property
    def remark(self) -> str:
        """What the tables hold, in one line."""
        counts = f"{format_count(len(self.train), 'answer')} for training and {len(self.evaluation):,} for evaluation"
        whole = f"Of the project's reviewed answers there are {counts}; each counts once, and none was generated again."
        if self.references:
            return f"{whole} Only answers with an ideal answer of a reviewer count: the target is the similarity to it."
        return (
            f"{whole} There are too few ideal answers ({MIN_SIZE} are needed): the target is the reviewers' label, t "
            "is 0.5, and the MSE is the Brier score."
        )

    def get_target(self, metric: str, rows: Sequence[Interaction]) -> np.ndarray:
        """Return the correctness score of `rows`, float64 (rows,)."""
        names = [row.interaction_id for row in rows]
        if metric == LABEL:
            return np.array([self.labels[name] for name in names], float)
        references = [(self.references[name],) for name in names]
        return compute_correctness([metric], [row.answer for row in rows], references)[metric].to_numpy()

    def adapt(self, experiment: Experiment) -> Experiment:
        """Return `experiment` with the project's base model for the first one, at most these answers, and their target.

        Tables that vary the base model have one only: the answers are those of the project.
        """
        embedded, *other_models = experiment.models
        sizes = {
            name: Size(train=min(size.train, len(self.train)), evaluation=min(size.evaluation, len(self.evaluation)))
            for name, size in experiment.sizes.items()
        }
        tables = {}
        for name, table in experiment.tables.items():
            changes: dict[str, tuple[str, ...]] = {} if self.references else {"metric": (LABEL,)}
            changes["base"] = (OF_PROJECT,)
            changes["perturbation"] = tuple(OF_PROJECT if m == embedded else m for m in table.grid.perturbation)
            tables[name] = table.model_copy(update={"grid": table.grid.model_copy(update=changes)})
        models = {OF_PROJECT: Model(model=self.llm.model, layout=self.llm.layout)}
        models |= {name: experiment.models[name] for name in other_models}
        return experiment.model_copy(update={"sizes": sizes, "tables": tables, "models": models})


def read_reviewed_answers(seed: int) -> ReviewedAnswers:
    """Read the reviewed answers of the project in the working directory; `seed` decides which ones a smaller size has.

    Raises:
        AbstainError: there are too few.
    """
    answers = read_project_answers()
    table, names = answers.table, [row.interaction_id for row in answers.interactions]
    ideal_answers = dict(zip(names, answers.ideal_answers, strict=True))
    references = {name: text for name, text in ideal_answers.items() if text}
    splits = dict(zip(names, table["split"], strict=True))
    rows = hash_order(answers.interactions, names, seed)

    def select(with_reference: bool) -> tuple[list[Interaction], list[Interaction]]:
        counted = [row for row in rows if not with_reference or row.interaction_id in references]
        train = [row for row in counted if splits[row.interaction_id] == "train"]
        return train, [row for row in counted if splits[row.interaction_id] in ("holdout", "newest")]

    train, evaluation = select(with_reference=True)
    if not _are_enough(train, evaluation):
        references = {}
        train, evaluation = select(with_reference=False)
    if not _are_enough(train, evaluation):
        raise AbstainError(
            Code.TOO_FEW_LABELS,
            f"{len(train)} + {len(evaluation)} reviewed answers to train and evaluate on: review more, {MIN_SIZE} are "
            "needed",
        )
    groups = dict(zip(names, table["group"], strict=True))
    labels = dict(zip(names, table["correct"].astype(int), strict=True))
    llm = answers.params.llm.model_copy(update={"layer": 1})  # no layer is read, and there may be none yet
    return ReviewedAnswers(llm, train, evaluation, groups, labels, references)


def _are_enough(train: Sequence[Interaction], evaluation: Sequence[Interaction]) -> bool:
    return len(train) >= MIN_SIZE.train and len(evaluation) >= MIN_SIZE.evaluation
