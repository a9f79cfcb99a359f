"""What a study is: parts that are computed one by one and kept, and a report of them.

A study's file, `studies/NAME.yaml`, names in `kind` the package of `studies/` that reads it. Its `load_study` has the
arguments of the one here, and then the settings of this machine and the runner of the models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from abstain.config.settings import load_settings
from abstain.config.yaml_model import read_yaml
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.features.feature_store import OnProgress
from abstain_tasks.training.fan_out import make_runner

FOLDER = Path(__file__).parent
REMEDY = "studies are in studies/"


@dataclass(frozen=True)
class StudySource:
    """Where the answers of a study come from: one of the two is given.

    Attributes:
        data: A folder with the files of the paper's data.
        project: A project's folder, which is the working directory while its study runs.
    """

    data: Path | None = None
    project: Path | None = None


@dataclass(frozen=True)
class Part:
    """A unit of work whose result is kept.

    Attributes:
        title: The part in one line, unique within its study.
        inputs: Everything that the result depends on, as JSON.
        compute: Returns the result as JSON; raises AbstainError with the reason if it cannot be made.
    """

    title: str
    inputs: Mapping[str, Any]
    compute: Callable[[OnProgress], Mapping[str, Any]]


@dataclass(frozen=True)
class Outcome:
    """Result of a part as JSON; or None, and the reason."""

    result: Mapping[str, Any] | None = None
    reason: str = "it was not computed"


@dataclass(frozen=True)
class StudyReport:
    """A study's tables: `document` is report.json, `markdown` report.md, `figures` SVG by file name."""

    document: Mapping[str, Any]
    markdown: str
    figures: Mapping[str, str] = field(default_factory=dict)


class Study(Protocol):
    """A study as its file declares it, with its source. `studies.KIND.load_study` makes it."""

    @property
    def title(self) -> str:
        """The title of its report."""

    def list_parts(self, tables: Sequence[str]) -> list[Part]:
        """Return the parts that `tables` need, by default all.

        Raises:
            AbstainError: there is no such table, or the source is invalid.
        """

    def make_report(self, tables: Sequence[str], outcomes: Mapping[str, Outcome]) -> StudyReport:
        """Return the report of `tables`, by default all; `outcomes` are by title of the part."""


def load_study(file: Path, source: StudySource, sizes: Mapping[str, tuple[int, int]]) -> Study:
    """Read the study of `file`, by the package that its `kind` names.

    Args:
        file: The study's file.
        source: Its answers.
        sizes: Other sizes than the file's, (train, evaluation) by name.

    Returns:
        The study.

    Raises:
        AbstainError: the file or a size is invalid.
    """
    content = read_yaml(file, REMEDY)
    kind = content.get("kind") if isinstance(content, dict) else None
    kinds = sorted(path.parent.name for path in FOLDER.glob("*/__init__.py"))
    if kind not in kinds:
        raise AbstainError(Code.BAD_SETTING, f"{file}: kind: no kind of study '{kind}': there are {', '.join(kinds)}")
    settings = load_settings()
    loaded: Study = import_module(f"studies.{kind}").load_study(file, source, sizes, settings, make_runner(settings))
    return loaded


def select_tables(tables: Sequence[str], names: Iterable[str]) -> list[str]:
    """Return `tables` in the order of `names`, by default all.

    Raises:
        AbstainError: there is no such table.
    """
    names = list(names)
    for name in tables:
        if name not in names:
            raise AbstainError(Code.UNKNOWN_NAME, f"no table '{name}': there are {', '.join(names)}")
    return [name for name in names if not tables or name in tables]
