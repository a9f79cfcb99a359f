"""The report of one candidate, for who runs it and who answers for the risk, as Markdown."""

from abstain.reports.evaluation.builder import render_evaluation
from abstain.reports.evaluation.evaluation_result import EvaluationResult
from abstain.reports.evaluation.ranking import leaderboard_table

__all__ = ["EvaluationResult", "leaderboard_table", "render_evaluation"]
