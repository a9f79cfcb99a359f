"""The study that compares all scorers, of four papers, on the same answers: quality, cost and latency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from abstain.config.params import Count, Params
from abstain.config.settings import Settings
from abstain.config.yaml_model import FrozenModel, load_yaml_model
from abstain.core.formatting import format_number, format_percent, format_with_interval
from abstain.core.markdown import bullet_list, document, heading, paragraph
from abstain.llm.features.feature_store import OnProgress
from abstain.llm.features.shard_job import ShardRunner
from studies.leaderboard.comparison import make_workspace
from studies.leaderboard.latency import measure_scorers
from studies.leaderboard.results import draw_curves, read_board
from studies.leaderboard.tables import DeclaredTable, describe_counts, render_table
from studies.leaderboard.workspace import StageWorkspace, make_part
from studies.study import REMEDY, Outcome, Part, StudyReport, StudySource, select_tables

QUALITY, LATENCY = "scorers", "latency"


class DeclaredLeaderboard(FrozenModel):
    """The study's file: how many answers are `timed`, and by scorer or by kind of scorer what it is."""

    kind: str
    title: str
    timed: Count
    methods: dict[str, str]
    tables: dict[str, DeclaredTable]


@dataclass(frozen=True)
class LeaderboardStudy:
    """The declared leaderboard of the answers of a workspace."""

    declared: DeclaredLeaderboard
    workspace: StageWorkspace

    @property
    def title(self) -> str:
        """The title of its report."""
        return self.declared.title

    def list_parts(self, tables: Sequence[str]) -> list[Part]:
        """Return the parts: the scorers' quality, and their latency.

        Raises:
            AbstainError: there is no such table, or there are no answers.
        """
        select_tables(tables, self.declared.tables)

        def compute_quality(params: Params, progress: OnProgress) -> dict[str, Any]:
            board = read_board()
            return {**board, "figures": draw_curves([row["scorer"] for row in board["rows"] if row["auroc"]])}

        def compute_latency(params: Params, progress: OnProgress) -> dict[str, Any]:
            rows = read_board()["rows"]
            return {"ms": measure_scorers(self.declared.timed, self.workspace.settings, rows, params, progress)}

        return [
            make_part(self.workspace, QUALITY, {"part": QUALITY}, compute_quality),
            make_part(self.workspace, LATENCY, {"part": LATENCY, "timed": self.declared.timed}, compute_latency),
        ]

    def make_report(self, tables: Sequence[str], outcomes: Mapping[str, Outcome]) -> StudyReport:
        """Return the report."""
        (name,) = self.declared.tables
        quality, latency = outcomes[QUALITY], outcomes[LATENCY]
        board = quality.result or {"rows": [], "unavailable": {}, "figures": {}}
        ms = latency.result["ms"] if latency.result else {}
        rows = [{**row, "method": self._name_method(row), "ms": ms.get(row["scorer"])} for row in board["rows"]]
        missing = [outcome.reason for outcome in (quality, latency) if outcome.result is None]
        answers = self.workspace.inputs["answers"]
        blocks = [
            heading(1, self.title),
            paragraph(describe_counts(board["counts"])) if quality.result else "",
            paragraph("The answers: " + ", ".join(f"{key} {value}" for key, value in answers.items()) + "."),
            *render_table(self.declared.tables[name], [_format_row(row) for row in rows], missing),
            paragraph(
                f"ms: of {self.declared.timed} answers, the mean for one answer at a time on this machine, of the "
                "models alone, without the feature cache. Tokens: what the base model reads for an answer, a token as "
                "1 if it passes all layers. Brier is of the probabilities, calibrated on the validation answers. Error "
                "recall: the incorrect answers among the 15 % with the lowest confidence, and this as a multiple of "
                "what withholding at random finds."
            ),
            heading(2, "Not available") if board["unavailable"] else "",
            bullet_list(f"{scorer}: {reason}" for scorer, reason in board["unavailable"].items()),
        ]
        content = {
            "title": self.title,
            "answers": answers,
            "counts": board.get("counts"),
            "tables": {name: {"rows": rows, "paper": list(self.declared.tables[name].paper)}},
            "unavailable": board["unavailable"],
            "missing": missing,
        }
        return StudyReport(content, document(blocks), board["figures"])

    def _name_method(self, row: Mapping[str, Any]) -> str:
        methods = self.declared.methods
        return methods.get(row["scorer"], methods.get(row["kind"], ""))


def _format_row(row: Mapping[str, Any]) -> dict[str, str]:
    marks = ", ".join(mark for mark in ("exported", "served") if row[f"is_{mark}"])
    return {
        "scorer": f"{row['scorer']} ({marks})" if marks else row["scorer"],
        "method": row["method"],
        "AUROC": format_with_interval(row, "auroc"),
        "Brier": format_number(row["brier"]),
        "error recall at 15 %": format_percent(row["error_recall_at_15pct"]),
        "x random": format_with_interval(row, "error_recall_over_random", ".2f"),
        "tokens": f"{row['forward_tokens']:,.0f}",
        "ms": format_number(row["ms"], ",.0f"),
    }


def load_study(
    file: Path,
    source: StudySource,
    sizes: Mapping[str, tuple[int, int]],
    settings: Settings,
    runner: ShardRunner | None = None,
) -> LeaderboardStudy:
    """Return the study of `file` on the answers of `source`; its stages read with this machine's runner.

    Raises:
        AbstainError: the file is invalid, or there is no such size.
    """
    declared = load_yaml_model(file, DeclaredLeaderboard, REMEDY)
    return LeaderboardStudy(declared, make_workspace(source, sizes, settings))
