"""From what was measured to what is said: the answer first, then its reasons, what it was made of last."""

from __future__ import annotations

from abstain.reports.evaluation.audits import audit_section
from abstain.reports.evaluation.cards import data_card, glossary, model_card
from abstain.reports.evaluation.correctness import correctness_section
from abstain.reports.evaluation.document import Report
from abstain.reports.evaluation.evaluated import Evaluated
from abstain.reports.evaluation.examples import example_section
from abstain.reports.evaluation.glance import tiles
from abstain.reports.evaluation.guarantee import verdict
from abstain.reports.evaluation.ranking import ranking_section
from abstain.reports.evaluation.thresholds import ablation_section, threshold_section
from abstain.reports.evaluation.trust import calibration_section, slice_section
from abstain.reports.evaluation.words import count


def compose(evaluated: Evaluated) -> Report:
    """The report of one candidate."""
    served, holdout = evaluated.served, evaluated.holdout
    sections = (
        threshold_section(evaluated),
        ranking_section(evaluated),
        calibration_section(evaluated),
        slice_section(evaluated),
        audit_section(evaluated),
        example_section(evaluated),
        ablation_section(evaluated),
        correctness_section(evaluated),
        model_card(evaluated),
        data_card(evaluated),
        glossary(),
    )
    return Report(
        title="Confidence probe: evaluation",
        about=f"{served['model']}, {count(holdout['rows'], 'reviewed answer')} of the frozen hold-out",
        verdict=verdict(evaluated),
        tiles=tiles(evaluated),
        sections=[section for section in sections if section],
    )
