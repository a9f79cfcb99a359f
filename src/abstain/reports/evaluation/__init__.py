"""The report of one candidate, for who runs it and who answers for the risk, as Markdown."""

from abstain.reports.evaluation.compose import evaluation_markdown
from abstain.reports.evaluation.evaluated import Evaluated
from abstain.reports.evaluation.ranking import leaderboard_table

__all__ = ["Evaluated", "evaluation_markdown", "leaderboard_table"]
