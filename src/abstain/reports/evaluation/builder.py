"""Order of the report: first the result, then the reasons, and last what the candidate was made of."""

from __future__ import annotations

from abstain.core.formatting import format_count
from abstain.core.markdown import document, heading, paragraph
from abstain.reports.evaluation.audits import audit_section
from abstain.reports.evaluation.calibration_and_slices import calibration_section, slice_section
from abstain.reports.evaluation.cards import data_card, glossary, model_card
from abstain.reports.evaluation.correctness import correctness_section
from abstain.reports.evaluation.evaluation_result import EvaluationResult
from abstain.reports.evaluation.examples import example_section
from abstain.reports.evaluation.guarantee import guarantee_section
from abstain.reports.evaluation.ranking import ranking_section
from abstain.reports.evaluation.thresholds import ablation_section, threshold_section


def render_evaluation(result: EvaluationResult) -> str:
    """Render the report of one candidate.

    Args:
        result: Measurements of the candidate.

    Returns:
        Markdown.
    """
    served, holdout = result.served_scorer, result.holdout
    return document(
        [
            heading(1, "Confidence model: evaluation"),
            paragraph(f"{served['model']}, {format_count(holdout['rows'], 'reviewed answer')} of the frozen hold-out"),
            *guarantee_section(result),
            *threshold_section(result),
            *ranking_section(result),
            *calibration_section(result),
            *slice_section(result),
            *audit_section(result),
            *example_section(result),
            *ablation_section(result),
            *correctness_section(result),
            *model_card(result),
            *data_card(result),
            *glossary(),
        ]
    )
