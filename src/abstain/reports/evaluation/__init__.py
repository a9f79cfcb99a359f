"""Report of one candidate as Markdown, for its operators and for those who are responsible for the risk."""

from abstain.reports.evaluation.builder import render_evaluation
from abstain.reports.evaluation.evaluation_result import EvaluationResult
from abstain.reports.evaluation.ranking import leaderboard_table

__all__ = ["EvaluationResult", "leaderboard_table", "render_evaluation"]
