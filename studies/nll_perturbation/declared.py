"""Configuration of an experiment: models, sizes, and tables, each a grid of cells with the paper's numbers.

Notes:

* A cell is the same one in every table that contains it, so it is computed once. Its one result has everything that
  these tables need, so selecting some of the tables changes nothing about it.
* The paper's numbers are part of the file, with the remarks of its captions, and are never computed with.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from abstain.config.params import Count, OpenFraction, RegressorFit, RegressorKind
from abstain.config.yaml_model import FrozenModel, load_yaml_model
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.learning.estimators.correctness_targets import METRICS
from abstain.llm.engine.prompts import load_layout
from studies.study import REMEDY, select_tables

TableName = Annotated[str, BeforeValidator(str)]  # YAML reads the name of table 2 as a number
Where = Literal["entropy", "random"]
When = Literal["single_shot", "iterative"]
Outputs = Literal["normal", "own"]
"""What is scored under B_c and P_c: the answer under N_c, or what the base model answers there (section 3.4)."""

VARIED = ("base", "perturbation", "where", "when", "tokens", "outputs", "metric", "regressor")
"""What a grid may vary, the slowest first."""
LABEL = "label"
"""The target of a project's answers without ideal answers: correct or not."""
LABEL_THRESHOLD = 0.5


class Size(FrozenModel):
    """Number of answers for training regressors, and for evaluating them."""

    train: Annotated[int, Field(ge=2)]
    evaluation: Annotated[int, Field(ge=2)]

    def __str__(self) -> str:
        return f"{self.train:,} + {self.evaluation:,}"


class Files(FrozenModel):
    """File names, in the folder of the experiment's data: JSON Lines of id, question, context and answers."""

    train: str
    evaluation: str


class Model(FrozenModel):
    """A model, as `llm.model` of params.yaml names one. As a base model it needs a `layout`."""

    model: str
    layout: str | None = None


class ExperimentCell(FrozenModel):
    """One base model under one perturbation, and the correctness metric that is estimated."""

    base: str
    perturbation: str
    where: Where
    when: When
    tokens: Count
    outputs: Outputs = "normal"
    metric: str
    regressor: RegressorKind = "random_forest"
    size: Size

    @property
    def title(self) -> str:
        """The cell in one line."""
        outputs = ", own outputs" if self.outputs == "own" else ""
        how = f"K = {self.tokens}, {self.where}, {format_words(self.when)}{outputs}"
        return f"{self.base} by {self.perturbation}, {how}, {self.metric}, {format_words(self.regressor)}, {self.size}"

    @property
    def condition(self) -> tuple[object, ...]:
        """What its features depend on: cells that differ only in metric or regressor share them."""
        return self.base, self.perturbation, self.where, self.when, self.tokens, self.outputs, self.size


class Grid(FrozenModel):
    """Cells: the product of these lists, in this order."""

    base: tuple[str, ...] = Field(("embedded",), min_length=1)
    perturbation: tuple[str, ...] = Field(("embedded",), min_length=1)
    where: tuple[Where, ...] = Field(("entropy",), min_length=1)
    when: tuple[When, ...] = Field(("iterative",), min_length=1)
    tokens: tuple[Count, ...] = Field((15,), min_length=1)
    outputs: tuple[Outputs, ...] = Field(("normal",), min_length=1)
    metric: tuple[str, ...] = Field(("cosine",), min_length=1)
    regressor: tuple[RegressorKind, ...] = Field(("random_forest",), min_length=1)

    def list_cells(self, size: Size) -> list[ExperimentCell]:
        """Return all cells of `size`."""
        product = itertools.product(*(dict.fromkeys(getattr(self, name)) for name in VARIED))
        return [ExperimentCell(**dict(zip(VARIED, values, strict=True)), size=size) for values in product]

    @property
    def varied_keys(self) -> tuple[str, ...]:
        """Keys with more than one value."""
        return tuple(name for name in VARIED if len(getattr(self, name)) > 1)


class PaperRow(FrozenModel):
    """A row of a table of the paper. None is not stated; `mse` is text, because captions give bounds."""

    base: str | None = None
    perturbation: str | None = None
    where: Where | None = None
    when: When | None = None
    tokens: Count | None = None
    metric: str | None = None
    threshold: OpenFraction | None = None
    mse: str | None = None
    accuracy: float | None = None
    f1: float | None = None
    auroc: float | None = None
    f1_buffered: float | None = None


class Paper(PaperRow):
    """A table of the paper: `rows`, and the values that hold for all rows that do not override them."""

    rows: tuple[PaperRow, ...] = Field(min_length=1)

    def fill_rows(self) -> list[PaperRow]:
        """Return the rows with the common values."""
        common = self.model_dump(exclude={"rows"}, exclude_none=True)
        return [PaperRow(**(common | row.model_dump(exclude_none=True))) for row in self.rows]


class ExperimentTable(FrozenModel):
    """A table with a row for every cell at its tuned t, or one for every threshold of `at`."""

    title: str
    size: str
    grid: Grid
    at: tuple[OpenFraction, ...] = ()
    buffer: bool = False
    baselines: bool = False
    paper: Paper | None = None
    note: str = ""


class Experiment(FrozenModel):
    """A whole experiment file. `paper`, the source of the paper's numbers, is shown with them.

    `quantiles` of the training answers' scores are the candidates for t.
    """

    kind: Literal["nll_perturbation"]
    title: str
    paper: str
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    files: Files
    answer_tokens: Count
    draws: Annotated[int, Field(ge=100)]
    models: dict[str, Model]
    sizes: dict[str, Size]
    regressors: RegressorFit
    quantiles: tuple[OpenFraction, ...] = Field(min_length=1)
    buffer: OpenFraction
    tables: dict[TableName, ExperimentTable] = Field(min_length=1)

    @model_validator(mode="after")
    def _name_what_there_is(self) -> Experiment:
        for name, table in self.tables.items():
            _check_names(f"table {name}", "size", [table.size], self.sizes)
            _check_names(f"table {name}", "model", [*table.grid.base, *table.grid.perturbation], self.models)
            _check_names(f"table {name}", "correctness metric", table.grid.metric, METRICS)
            for model in table.grid.base:
                layout = self.models[model].layout
                if layout is None:
                    raise ValueError(f"table {name}: the base model '{model}' needs a layout")
                try:
                    load_layout(layout)
                except AbstainError as error:
                    raise ValueError(str(error)) from None
        return self

    def list_cells(self, tables: Sequence[str] = ()) -> list[ExperimentCell]:
        """Return the cells of `tables`, by default of all, each once; those with the same features are neighbours.

        Raises:
            AbstainError: there is no such table.
        """
        cells = list(
            dict.fromkeys(cell for name in select_tables(tables, self.tables) for cell in self.list_table_cells(name))
        )
        first = {cell.condition: index for index, cell in reversed(list(enumerate(cells)))}
        return sorted(cells, key=lambda cell: first[cell.condition])

    def list_table_cells(self, table: str) -> list[ExperimentCell]:
        """Return the cells of a table."""
        declared = self.tables[table]
        return declared.grid.list_cells(self.sizes[declared.size])

    def get_thresholds(self, cell: ExperimentCell) -> tuple[float, ...]:
        """Return the thresholds of `cell` other than its tuned t: those of its tables."""
        return tuple(sorted(set(itertools.chain(*(table.at for table in self._get_tables(cell))))))

    def wants_baselines(self, cell: ExperimentCell) -> bool:
        """Whether a table of `cell` compares it with scores that need no perturbation."""
        return any(table.baselines for table in self._get_tables(cell))

    def resize(self, sizes: Mapping[str, tuple[int, int]]) -> Experiment:
        """Return the experiment with other `sizes`, (train, evaluation) by name.

        Raises:
            AbstainError: there is no such size, or it is too small.
        """
        for name, (train, evaluation) in sizes.items():
            if name not in self.sizes:
                raise AbstainError(Code.UNKNOWN_NAME, f"no size '{name}': there are {', '.join(self.sizes)}")
            if train < 2 or evaluation < 2:
                raise AbstainError(
                    Code.USAGE, f"size {name}={train},{evaluation}: train and evaluation are at least 2 each"
                )
        new_sizes = {name: Size(train=train, evaluation=evaluation) for name, (train, evaluation) in sizes.items()}
        return self.model_copy(update={"sizes": {**self.sizes, **new_sizes}})

    def _get_tables(self, cell: ExperimentCell) -> Iterable[ExperimentTable]:
        return (table for name, table in self.tables.items() if cell in self.list_table_cells(name))


def format_words(name: object) -> str:
    """Return a value of the file as words: `single_shot` is "single shot"."""
    return str(name).replace("_", " ")


def load_experiment(file: Path) -> Experiment:
    """Read and check an experiment file.

    Raises:
        AbstainError: the file is invalid; the message names the first error.
    """
    return load_yaml_model(file, Experiment, REMEDY)


def _check_names(where: str, kind: str, names: Iterable[str], known_names: Iterable[str]) -> None:
    for name in names:
        if name not in known_names:
            raise ValueError(f"{where}: no {kind} '{name}': there are {', '.join(known_names)}")
