"""What was measured, as the stages before wrote it: all that a report is made of."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from abstain.core.formatting import format_count
from abstain.core.markdown import bold_row, is_defined, table


@dataclass(frozen=True)
class EvaluationResult:
    """`metrics`, `evaluation` and `dataset` are the parsed JSON files of these names; null is what is not defined.

    `tables`: what `plots.plot_tables` makes of the tables behind the plots.
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
        """The leaderboard's row of the served scorer."""
        return self.scorers[self.served["name"]]

    @property
    def at_threshold(self) -> Mapping[str, Any]:
        """The hold-out at the served threshold."""
        return self.holdout["at_threshold"]  # type: ignore[no-any-return]

    @property
    def served(self) -> Mapping[str, Any]:
        """The served scorer, and what was to be chosen from."""
        return self.evaluation["served"]  # type: ignore[no-any-return]

    @property
    def threshold(self) -> Mapping[str, Any]:
        return self.evaluation["threshold"]  # type: ignore[no-any-return]

    @property
    def metric(self) -> str:
        """`precision` of the shown answers, or `error_rate`: the share of all answers that is shown and incorrect."""
        return str(self.threshold["metric"])

    @property
    def is_precision(self) -> bool:
        return self.metric == "precision"

    @property
    def too_few_shown(self) -> str:
        """Where the hold-out shows too few answers for the gate to check a guarantee, how many; else ""."""
        rows, n_eff, least = self.at_threshold["shown"], self.at_threshold["shown_n_eff"], self.evaluation["min_rows"]
        if n_eff >= least:
            return ""
        evenly = "" if rows < least else f", effective sample size {n_eff:.0f},"
        return f"the hold-out has {format_count(rows, 'shown answer')}{evenly} where {least} are needed"


def highlighted_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    caption: str,
    words: Container[str] = (),
    marked: str = "",
) -> str:
    """A table whose row that begins with `marked` is bold: the one in use, among others that it is compared with."""
    return table(columns, [bold_row(row) if row[0] == marked else row for row in rows], caption, words)


def get_metric_value(metric: str, row: Mapping[str, Any]) -> float | None:
    """What a row of figures at a threshold has of `metric`; an error rate of nothing shown is 0."""
    precision, shown = row["precision"], row["coverage"]
    if metric == "precision" or not is_defined(shown):
        return precision if metric == "precision" and is_defined(precision) else None
    return float(shown * (1 - precision)) if is_defined(precision) else 0.0


def meets_target(metric: str, target: float, value: float) -> bool:
    """Whether `value` is as good as `target`, but for rounding."""
    return value >= target - 1e-9 if metric == "precision" else value <= target + 1e-9
