"""What a page shows, top down, and the template that lays it out.

The template escapes whatever it is given: rows that are refused hold what anybody may have typed. It allows itself no
script and no address but its own (a content security policy says so to the browser).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from abstain.data.validation.results import SHOWN, UNITS, condition
from abstain.reports.data_reports.charts import Balance, Drift

State = Literal["passed", "warned", "failed"]

OUTCOMES = {(True, "error"): "ok", (True, "warning"): "ok", (False, "error"): "fails", (False, "warning"): "warning"}


@dataclass(frozen=True)
class Verdict:
    state: State
    headline: str
    lines: Sequence[str] = ()


@dataclass(frozen=True)
class Failing:
    """A row that is refused: where it stands or what it is called, and why."""

    name: str
    reasons: Sequence[str]


@dataclass(frozen=True)
class CheckLine:
    column: str
    must_be: str
    outcome: str
    unexpected: int
    examples: str
    note: str


@dataclass(frozen=True)
class Suite:
    name: str
    rows: str
    holding: int
    checks: Sequence[CheckLine]

    @property
    def state(self) -> State:
        outcomes = {check.outcome for check in self.checks}
        return "failed" if "fails" in outcomes else "warned" if "warning" in outcomes else "passed"


@dataclass(frozen=True)
class View:
    """One page. `more_failing` rows are not listed; `next_steps` are (command, what it does)."""

    title: str
    about: str
    verdict: Verdict
    tiles: Sequence[tuple[str, str]] = ()
    warnings: Sequence[str] = ()
    reasons: Sequence[tuple[int, str]] = ()
    failing: Sequence[Failing] = ()
    more_failing: int = 0
    suites: Sequence[Suite] = ()
    balance: Sequence[Balance] = ()
    drift: Drift | None = None
    notes: Sequence[str] = ()
    next_steps: Sequence[tuple[str, str]] = ()


def render(view: View) -> str:
    """The page, whole."""
    return _template().render(view=view)


def suites_of(result: Mapping[str, Any]) -> list[Suite]:
    """The suites of a result (`ValidationResult.to_dict`), in its order."""
    suites = []
    for name, rows in result["rows"].items():
        own = [check for check in result["expectations"] if check["suite"] == name]
        if own:
            checks = [_check_line(check) for check in own]
            holding = sum(check["success"] for check in own)
            suites.append(Suite(name, f"{rows:,} {UNITS.get(name, 'rows')}", holding, checks))
    return suites


def failing_of(reasons: Mapping[str, Sequence[str]]) -> list[Failing]:
    """The first of the rows that fail, by name."""
    return [Failing(key, reasons[key]) for key in sorted(reasons)[:SHOWN]]


def _check_line(check: Mapping[str, Any]) -> CheckLine:
    return CheckLine(
        column=check["column"],
        must_be=condition(check["expectation"], check["arguments"]),
        outcome=OUTCOMES[check["success"], check["severity"]],
        unexpected=check["unexpected"],
        examples=", ".join(key.partition("/")[2] for key in check["sample"]),
        note="" if check["success"] else check["note"],
    )


@lru_cache(maxsize=1)
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html")
