"""Measurements of a candidate, as the stages before wrote them: the only input of a report."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from abstain.core.formatting import format_count
from abstain.core.markdown import bold_row, is_defined, table
from abstain.learning.thresholds.guarantee import Guarantee


@dataclass(frozen=True)
class EvaluationResult:
    """Measurements of a candidate; null is a value that is not defined.

    Attributes:
        metrics: Parsed JSON file of this name.
        evaluation: Parsed JSON file of this name.
        dataset: Parsed JSON file of this name.
        tables: The tables of `plots.plot_tables`.
    """

    metrics: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    dataset: Mapping[str, Any]
    tables: Mapping[str, pd.DataFrame]

    @property
    def holdout(self) -> Mapping[str, Any]:
        return self.metrics["holdout"]  # type: ignore[no-any-return]

    @property
    def scorers(self) -> Mapping[str, Mapping[str, Any]]:
        return self.holdout["scorers"]  # type: ignore[no-any-return]

    @property
    def served_row(self) -> Mapping[str, Any]:
        """Row of the served scorer in the leaderboard."""
        return self.scorers[self.served_scorer["name"]]

    @property
    def at_threshold(self) -> Mapping[str, Any]:
        """Metrics of the hold-out at the served threshold."""
        return self.holdout["at_threshold"]  # type: ignore[no-any-return]

    @property
    def served_scorer(self) -> Mapping[str, Any]:
        """The served scorer, and the candidates for serving."""
        return self.evaluation["served"]  # type: ignore[no-any-return]

    @property
    def threshold(self) -> Mapping[str, Any]:
        return self.evaluation["threshold"]  # type: ignore[no-any-return]

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee; it is active if the hold-out shows enough answers to check it."""
        guarantee = Guarantee.model_validate(self.threshold["guarantee"])
        is_checked = guarantee.status != "none" and not self.too_few_shown
        return guarantee.model_copy(update={"status": "active"}) if is_checked else guarantee

    @property
    def has_guarantee(self) -> bool:
        """Whether the validation split gives a guarantee."""
        return self.guarantee.status != "none"

    @property
    def metric(self) -> str:
        """`precision` of the shown answers, or `error_rate`: the share of all answers that is shown and incorrect."""
        return self.guarantee.metric

    @property
    def is_precision(self) -> bool:
        return self.metric == "precision"

    @property
    def too_few_shown(self) -> str:
        """How many answers the hold-out shows, if these are too few to check a guarantee; else ""."""
        rows, n_eff, min_n_eff = (
            self.at_threshold["shown"],
            self.at_threshold["shown_n_eff"],
            self.evaluation["min_n_eff"],
        )
        if n_eff >= min_n_eff:
            return ""
        evenly = "" if rows < min_n_eff else f", effective sample size {n_eff:.0f},"
        return f"the hold-out has {format_count(rows, 'shown answer')}{evenly} where {min_n_eff} are needed"


def highlighted_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    caption: str,
    words: Container[str] = (),
    marked: str = "",
) -> str:
    """Render a table with one bold row: the one in use, among others that it is compared with.

    Args:
        columns: Names of the columns.
        rows: Texts of the cells.
        caption: Caption of the table.
        words: Columns with text, not numbers.
        marked: First cell of the bold row.

    Returns:
        Markdown.
    """
    return table(columns, [bold_row(row) if row[0] == marked else row for row in rows], caption, words)


def get_metric_value(metric: str, row: Mapping[str, Any]) -> float | None:
    """Return the value of a metric at a threshold.

    Args:
        metric: `precision` or `error_rate`.
        row: Metrics at a threshold.

    Returns:
        The value; None if it is not defined. The error rate is 0 if nothing is shown.
    """
    precision, coverage = row["precision"], row["coverage"]
    if metric == "precision" or not is_defined(coverage):
        return precision if metric == "precision" and is_defined(precision) else None
    return float(coverage * (1 - precision)) if is_defined(precision) else 0.0


def meets_target(metric: str, target: float, value: float) -> bool:
    """Return whether a value is as good as the target, except for rounding.

    Args:
        metric: `precision` or `error_rate`.
        target: Target of the guarantee.
        value: Measured value.

    Returns:
        Whether the target is met.
    """
    return value >= target - 1e-9 if metric == "precision" else value <= target + 1e-9
