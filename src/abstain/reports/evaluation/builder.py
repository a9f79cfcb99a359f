"""From what was measured to what is said: the answer first, then its reasons, what it was made of last."""

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


def render_evaluation(evaluated: EvaluationResult) -> str:
    """Return the report of one candidate."""
    served, holdout = evaluated.served, evaluated.holdout
    return document(
        [
            heading(1, "Confidence model: evaluation"),
            paragraph(f"{served['model']}, {format_count(holdout['rows'], 'reviewed answer')} of the frozen hold-out"),
            *guarantee_section(evaluated),
            *threshold_section(evaluated),
            *ranking_section(evaluated),
            *calibration_section(evaluated),
            *slice_section(evaluated),
            *audit_section(evaluated),
            *example_section(evaluated),
            *ablation_section(evaluated),
            *correctness_section(evaluated),
            *model_card(evaluated),
            *data_card(evaluated),
            *glossary(),
        ]
    )
