"""Answers of the hold-out that say more than a figure: errors caught, errors shown, right answers withheld."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from abstain.reports.evaluation.document import Block, Example, Examples, Paragraph, Section, Subheading
from abstain.reports.evaluation.evaluated import Evaluated
from abstain.reports.evaluation.words import figure, percent

KINDS = {
    "caught": ("Errors caught", "Wrong, and withheld; the lowest confidence first."),
    "missed": ("Errors missed", "Wrong, and shown; the highest confidence first."),
    "withheld": ("Right answers withheld", "What the threshold costs; the lowest confidence first."),
}


def example_section(evaluated: Evaluated) -> Section:
    blocks: list[Block] = []
    for kind, (title, says) in KINDS.items():
        found = evaluated.evaluation["examples"][kind]
        blocks += [Subheading(title), Paragraph([says if found else "None on the hold-out."])]
        if found:
            blocks.append(Examples([_example(row) for row in found]))
    return Section("examples", "Answers to look at", blocks)


def _example(row: Mapping[str, Any]) -> Example:
    about = [f"Confidence {figure(row['confidence'])}", f"{percent(row['probability'])} likely right"]
    if row["product"] is not None:
        about.append(row["product"])
    texts = [("Question", row["question"]), ("Answer", row["answer"])]
    if row["ideal_answer"] is not None:
        texts.append(("Expert's answer", row["ideal_answer"]))
    return Example(" · ".join([*about, row["interaction_id"]]), texts)
