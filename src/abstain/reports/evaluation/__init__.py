"""Report of one candidate as Markdown, for its operators and for those who are responsible for the risk."""

from abstain.reports.evaluation.builder import render_evaluation, render_leaderboard

__all__ = ["render_evaluation", "render_leaderboard"]
