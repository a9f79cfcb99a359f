"""The report of one candidate, for who runs it and who answers for the risk, as Markdown."""

from abstain.reports.evaluation.builder import evaluation_markdown
from abstain.reports.evaluation.evaluation_result import Evaluated
from abstain.reports.evaluation.ranking import leaderboard_table

__all__ = ["Evaluated", "evaluation_markdown", "leaderboard_table"]
