"""Informative answers of the hold-out: errors caught, errors shown, correct answers withheld."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from abstain.core.formatting import format_number, format_percent
from abstain.core.markdown import format_labelled, heading, numbered_list, paragraph
from abstain.reports.evaluation.evaluation_result import EvaluationResult

KINDS = {
    "caught": ("Errors caught", "Incorrect, and withheld; the lowest confidence first."),
    "missed": ("Errors missed", "Incorrect, and shown; the highest confidence first."),
    "withheld": ("Correct answers withheld", "What the threshold costs; the lowest confidence first."),
}


def example_section(result: EvaluationResult) -> list[str]:
    """Render example answers.

    Args:
        result: Measurements of the candidate.

    Returns:
        Markdown blocks.
    """
    blocks = [heading(2, "Examples")]
    for kind, (title, caption) in KINDS.items():
        examples = result.evaluation["examples"][kind]
        blocks += [heading(3, title), paragraph(caption if examples else "None on the hold-out.")]
        if examples:
            blocks.append(numbered_list(map(_format_example, examples)))
    return blocks


def _format_example(row: Mapping[str, Any]) -> tuple[str, Iterable[str]]:
    facts = [f"Confidence {format_number(row['confidence'])}", f"{format_percent(row['probability'])} likely correct"]
    if row["product"] is not None:
        facts.append(row["product"])
    texts = {"Question": row["question"], "Answer": row["answer"], "Reviewer's answer": row["ideal_answer"]}
    lines = [format_labelled(what, text) for what, text in texts.items() if text is not None]
    return " · ".join([*facts, row["interaction_id"]]), lines
