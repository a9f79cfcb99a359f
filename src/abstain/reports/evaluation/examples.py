"""Answers of the hold-out that say more than a figure: errors caught, errors shown, correct answers withheld."""

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


def example_section(evaluated: EvaluationResult) -> list[str]:
    blocks = [heading(2, "Examples")]
    for kind, (title, caption) in KINDS.items():
        found = evaluated.evaluation["examples"][kind]
        blocks += [heading(3, title), paragraph(caption if found else "None on the hold-out.")]
        if found:
            blocks.append(numbered_list(map(_example, found)))
    return blocks


def _example(row: Mapping[str, Any]) -> tuple[str, Iterable[str]]:
    about = [f"Confidence {format_number(row['confidence'])}", f"{format_percent(row['probability'])} likely correct"]
    if row["product"] is not None:
        about.append(row["product"])
    texts = {"Question": row["question"], "Answer": row["answer"], "Reviewer's answer": row["ideal_answer"]}
    lines = [format_labelled(what, text) for what, text in texts.items() if text is not None]
    return " · ".join([*about, row["interaction_id"]]), lines
