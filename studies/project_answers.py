"""Answers and reviews of a project as a study's data: those that a retrain would train and evaluate on."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from abstain.config.params import Params, load_params
from abstain.core import paths
from abstain.core.contracts import Interaction
from abstain.data.labels.training_table import read_training_table
from abstain.data.store.dataset import DataStore
from abstain.data.store.splits import select_reviewed
from abstain.stages.shared.ideal_answers import read_ideal_answers


@dataclass(frozen=True)
class ProjectAnswers:
    """Reviewed answers of the project in the working directory.

    Attributes:
        params: The project's parameters.
        table: The training table (`training_table.COLUMNS`) of answers with a review; `split` is train, validation,
            holdout or newest.
        interactions: The answers, in the order of `table`.
        ideal_answers: The latest ideal answer of a reviewer; None without one. In the order of `table`.
    """

    params: Params
    table: pd.DataFrame
    interactions: list[Interaction]
    ideal_answers: list[str | None]


def read_project_answers() -> ProjectAnswers:
    """Read the reviewed answers of the project in the working directory.

    Raises:
        AbstainError: there are no answers, or too few labels for the splits.
    """
    params, store = load_params(), DataStore(paths.DATA).require_interactions()
    table = select_reviewed(read_training_table(store, params.labels, params.split)[0])
    ideal_answers = read_ideal_answers()
    return ProjectAnswers(
        params,
        table,
        store.read_interactions(table["interaction_id"]),
        [ideal_answers.get(name) for name in table["interaction_id"]],
    )
