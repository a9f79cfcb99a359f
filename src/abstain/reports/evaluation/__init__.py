"""The report of one candidate, for who runs it and who answers for the risk: one page, and its twin in Markdown.

Three decisions:

* What is said is put together once (`compose`), as a document of plain text. HTML and Markdown are two renderings of
  it, so that neither can say more than the other.
* A document holds no markup: both renderings escape whatever they are given, because it may be what anybody typed.
* The page has no script and fetches nothing; its plots are inlined.
"""

from abstain.reports.evaluation.compose import compose
from abstain.reports.evaluation.document import Report, Strong
from abstain.reports.evaluation.evaluated import Evaluated
from abstain.reports.evaluation.markdown import markdown_table, render_markdown, warning_line
from abstain.reports.evaluation.page import add_warning, render_html
from abstain.reports.evaluation.ranking import leaderboard_table

__all__ = [
    "Evaluated",
    "Report",
    "Strong",
    "add_warning",
    "compose",
    "leaderboard_table",
    "markdown_table",
    "render_html",
    "render_markdown",
    "warning_line",
]
