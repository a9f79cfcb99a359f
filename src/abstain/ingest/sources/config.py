"""`sources.yaml`: the sources that `abstain ingest` reads when no file is named.

Parsed into frozen models like `params.yaml`; an unknown key is an error that names the nearest valid one. Relative
paths are relative to `ABSTAIN_HOME`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from abstain.config.settings import Settings
from abstain.config.yaml_model import Section, load, nearest
from abstain.core.contracts import Feedback, Interaction, Review, Row
from abstain.ingest.sources import Source
from abstain.ingest.sources.files import SUFFIXES, FileSource

CONTRACTS: dict[str, type[Row]] = {"interactions": Interaction, "feedback": Feedback, "reviews": Review}
"""The tables that a database may give, in the order in which they are read."""

DEFAULT_DATABASE = "feedback.db"

# Without a dot, so that no row's source looks like the name of a document.
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class FilesConfig(Section):
    """A folder or file: a path or an fsspec URL."""

    name: Name
    kind: Literal["files"]
    url: Words
    mirror: bool = Field(False, description="its documents are all that there are: what is gone here is removed")


class TableConfig(Section):
    """Rows of one contract: a table, or a query whose rows are taken as one."""

    table: Words | None = Field(None, description="a table or view, also schema.table")
    query: Words | None = None
    columns: dict[str, Words] = Field({}, description="contract field -> column; others go by their own names")
    watermark: Words | None = Field(
        None, description="column of the time a row was written; default: the row's own time"
    )
    key: tuple[Words, ...] = Field((), description="columns that tell rows apart; default: the table's primary key")

    @field_validator("key", mode="before")
    @classmethod
    def _one_is_enough(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _has_one_origin(self) -> TableConfig:
        if (self.table is None) == (self.query is None):
            raise ValueError("name either a table or a query")
        if self.query is not None and not self.key:
            raise ValueError("a query needs a key: the columns that tell its rows apart, as in key: [id]")
        return self


class TablesConfig(Section):
    interactions: TableConfig | None = None
    feedback: TableConfig | None = None
    reviews: TableConfig | None = None

    @model_validator(mode="after")
    def _maps_known_fields(self) -> TablesConfig:
        for name, contract in CONTRACTS.items():
            table: TableConfig | None = getattr(self, name)
            for field in table.columns if table else ():
                if field not in contract.model_fields:
                    hint = nearest(field, list(contract.model_fields))
                    raise ValueError(f"{name}.columns: unknown field '{field}': {hint}")
        return self


class SqlConfig(Section):
    """A database that SQLAlchemy speaks to."""

    name: Name
    kind: Literal["sql"]
    url: Words | None = Field(
        None, description="SQLAlchemy URL, ${VARIABLE} from the environment; default: SQLite in home"
    )
    tables: TablesConfig | None = Field(
        None, description="default: those of the tables interactions, feedback, reviews"
    )
    late_by_days: Annotated[float, Field(ge=0)] = Field(1, description="how far back each reading begins")
    naive_is_utc: bool = Field(False, description="timestamps without a time zone are in UTC; else they are refused")


SourceConfig = FilesConfig | SqlConfig


class _File(Section):
    sources: tuple[Annotated[SourceConfig, Field(discriminator="kind")], ...]

    @field_validator("sources")
    @classmethod
    def _have_names(cls, found: Sequence[SourceConfig]) -> Sequence[SourceConfig]:
        names = [source.name for source in found]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two sources are called '{name}': rename one (it is read from its beginning then)")
        return found


def load_sources(path: Path = Path("sources.yaml")) -> tuple[SourceConfig, ...]:
    """Read and check `path`. Raises `AbstainError` naming the first wrong key and what it may be."""
    return load(path, _File, "run this in the root of the project").sources


def open_source(config: SourceConfig, settings: Settings) -> Source:
    """The source that `config` describes. Raises `AbstainError` for a URL that cannot be one."""
    home = settings.home.resolve()
    if isinstance(config, FilesConfig):
        url = config.url
        if "://" not in url:
            path = home / Path(url).expanduser()
            if not Path(url).expanduser().is_absolute() and not url.lower().endswith(SUFFIXES):
                path.mkdir(parents=True, exist_ok=True)  # a drop folder in the home is there to be found
            url = str(path)
        return FileSource(config.name, url, mirror=config.mirror, unattended=True)
    from abstain.ingest.sources.sql import SqlSource

    return SqlSource(
        config.name,
        config.url or f"sqlite:///{DEFAULT_DATABASE}",
        config.tables,
        home=home,
        late_by=timedelta(days=config.late_by_days),
        naive_is_utc=config.naive_is_utc,
    )
