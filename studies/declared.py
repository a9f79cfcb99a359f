"""What a study file declares: models, sizes, and tables, each a grid of cells with the paper's figures beside it.

Notes:

* A cell is the same one in whichever tables it stands, so it is computed once; what all of these want of it is in its
  one result, and asking for some of the tables changes nothing about it.
* The paper's figures are part of the file, with what its captions say of them, and are never computed with.
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

TableName = Annotated[str, BeforeValidator(str)]  # YAML reads the name of table 2 as a number
Where = Literal["entropy", "random"]
When = Literal["single_shot", "iterative"]

VARIED = ("base", "perturbation", "where", "when", "tokens", "metric", "regressor")
"""What a grid may vary, the slowest first."""


class Size(FrozenModel):
    """Answers that regressors are trained on, and those that they are judged by."""

    train: Annotated[int, Field(ge=2)]
    evaluation: Annotated[int, Field(ge=2)]

    def __str__(self) -> str:
        return f"{self.train:,} + {self.evaluation:,}"


class Files(FrozenModel):
    """File names, in the folder that the study is run on: JSON Lines of id, question, context and answers."""

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
    metric: str
    regressor: RegressorKind = "random_forest"
    size: Size

    @property
    def title(self) -> str:
        """Which one it is, in a line."""
        how = f"K = {self.tokens}, {self.where}, {words(self.when)}"
        return f"{self.base} by {self.perturbation}, {how}, {self.metric}, {words(self.regressor)}, {self.size}"

    @property
    def condition(self) -> tuple[object, ...]:
        """What its features depend on: cells that differ in metric or regressor alone have them in common."""
        return self.base, self.perturbation, self.where, self.when, self.tokens, self.size


class Grid(FrozenModel):
    """Cells: the product of these lists, in this order."""

    base: tuple[str, ...] = Field(("embedded",), min_length=1)
    perturbation: tuple[str, ...] = Field(("embedded",), min_length=1)
    where: tuple[Where, ...] = Field(("entropy",), min_length=1)
    when: tuple[When, ...] = Field(("iterative",), min_length=1)
    tokens: tuple[Count, ...] = Field((15,), min_length=1)
    metric: tuple[str, ...] = Field(("cosine",), min_length=1)
    regressor: tuple[RegressorKind, ...] = Field(("random_forest",), min_length=1)

    def cells(self, size: Size) -> list[ExperimentCell]:
        product = itertools.product(*(dict.fromkeys(getattr(self, name)) for name in VARIED))
        return [ExperimentCell(**dict(zip(VARIED, values, strict=True)), size=size) for values in product]

    @property
    def varied(self) -> tuple[str, ...]:
        """Of what there is more than one."""
        return tuple(name for name in VARIED if len(getattr(self, name)) > 1)


class PaperRow(FrozenModel):
    """A row of a table of the paper. What is None is not stated; `mse` is text, for captions give bounds."""

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
    """A table of the paper: `rows`, and above them what holds for all rows that do not say otherwise."""

    rows: tuple[PaperRow, ...] = Field(min_length=1)

    def filled(self) -> list[PaperRow]:
        common = self.model_dump(exclude={"rows"}, exclude_none=True)
        return [PaperRow(**(common | row.model_dump(exclude_none=True))) for row in self.rows]


class ExperimentTable(FrozenModel):
    """A table: of every cell a row, at the t that is tuned for it, or one for every threshold of `at`."""

    title: str
    size: str
    grid: Grid
    at: tuple[OpenFraction, ...] = ()
    buffer: bool = False
    baselines: bool = False
    paper: Paper | None = None
    note: str = ""


class Experiment(FrozenModel):
    """The whole of a study file. `paper`, what the paper's figures are of, is said wherever they stand.

    `thresholds`: candidates for t; `thresholds_of_metric`: others, for a metric whose scores lie elsewhere.
    """

    title: str
    paper: str
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    files: Files
    answer_tokens: Count
    draws: Annotated[int, Field(ge=100)]
    models: dict[str, Model]
    sizes: dict[str, Size]
    regressors: RegressorFit
    thresholds: tuple[OpenFraction, ...] = Field(min_length=1)
    thresholds_of_metric: dict[str, Annotated[tuple[OpenFraction, ...], Field(min_length=1)]] = Field({})
    buffer: OpenFraction
    tables: dict[TableName, ExperimentTable] = Field(min_length=1)

    @model_validator(mode="after")
    def _name_what_there_is(self) -> Experiment:
        _known("thresholds_of_metric", "correctness metric", self.thresholds_of_metric, METRICS)
        for name, table in self.tables.items():
            _known(f"table {name}", "size", [table.size], self.sizes)
            _known(f"table {name}", "model", [*table.grid.base, *table.grid.perturbation], self.models)
            _known(f"table {name}", "correctness metric", table.grid.metric, METRICS)
            for model in table.grid.base:
                layout = self.models[model].layout
                if layout is None:
                    raise ValueError(f"table {name}: the base model '{model}' needs a layout")
                try:
                    load_layout(layout)
                except AbstainError as error:
                    raise ValueError(str(error)) from None
        return self

    def cells(self, tables: Sequence[str] = ()) -> list[ExperimentCell]:
        """The cells of `tables`, of all where none is named, each once; those with the same features stand together.

        Raises `AbstainError` for a table that is none.
        """
        cells = list(dict.fromkeys(cell for name in self.chosen(tables) for cell in self.cells_of(name)))
        first = {cell.condition: at for at, cell in reversed(list(enumerate(cells)))}
        return sorted(cells, key=lambda cell: first[cell.condition])

    def chosen(self, tables: Sequence[str] = ()) -> list[str]:
        """`tables` in the order of the file, all where none is named. Raises `AbstainError` for one that is none."""
        for name in tables:
            if name not in self.tables:
                raise AbstainError(Code.UNKNOWN_NAME, f"no table '{name}': there are {', '.join(self.tables)}")
        return [name for name in self.tables if not tables or name in tables]

    def cells_of(self, table: str) -> list[ExperimentCell]:
        declared = self.tables[table]
        return declared.grid.cells(self.sizes[declared.size])

    def candidates_of(self, cell: ExperimentCell) -> tuple[float, ...]:
        """Of what `cell`'s t is chosen."""
        return self.thresholds_of_metric.get(cell.metric, self.thresholds)

    def thresholds_of(self, cell: ExperimentCell) -> tuple[float, ...]:
        """Where `cell` is judged, beside its tuned t: the candidates, and what its tables want."""
        return tuple(sorted({*self.candidates_of(cell), *itertools.chain(*(table.at for table in self._with(cell)))}))

    def wants_baselines(self, cell: ExperimentCell) -> bool:
        """Whether a table of `cell` compares it with scores that need no perturbation."""
        return any(table.baselines for table in self._with(cell))

    def resized(self, sizes: Mapping[str, tuple[int, int]]) -> Experiment:
        """The same study with other `sizes`, (train, evaluation) by name. Raises `AbstainError` for what is none."""
        for name, (train, evaluation) in sizes.items():
            if name not in self.sizes:
                raise AbstainError(Code.UNKNOWN_NAME, f"no size '{name}': there are {', '.join(self.sizes)}")
            if train < 2 or evaluation < 2:
                raise AbstainError(
                    Code.USAGE, f"size {name}={train},{evaluation}: train and evaluation are at least 2 each"
                )
        made = {name: Size(train=train, evaluation=evaluation) for name, (train, evaluation) in sizes.items()}
        return self.model_copy(update={"sizes": {**self.sizes, **made}})

    def _with(self, cell: ExperimentCell) -> Iterable[ExperimentTable]:
        return (table for name, table in self.tables.items() if cell in self.cells_of(name))


def words(name: object) -> str:
    """A value of the file as words: `single_shot` is "single shot"."""
    return str(name).replace("_", " ")


def load_study(file: Path) -> Experiment:
    """Read and check a study file. Raises `AbstainError` naming the first thing that is wrong."""
    return load_yaml_model(file, Experiment, "studies are in studies/")


def _known(where: str, kind: str, names: Iterable[str], there: Iterable[str]) -> None:
    for name in names:
        if name not in there:
            raise ValueError(f"{where}: no {kind} '{name}': there are {', '.join(there)}")
