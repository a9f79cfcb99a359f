"""Audits of the confidences (length, counterfactual contexts): a good metric may have a bad reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from abstain.core.formatting import (
    DASH,
    format_count,
    format_interval,
    format_number,
    format_percent,
    format_with_interval,
    join_words,
)
from abstain.core.markdown import heading, is_defined, paragraph
from abstain.reports.evaluation.evaluation_result import EvaluationResult, highlighted_table

CHANCE = 0.5


def audit_section(result: EvaluationResult) -> list[str]:
    """Render the results of the audits.

    Args:
        result: Measurements of the candidate.

    Returns:
        Markdown blocks.
    """
    sections = {
        "context_removed": _context_removed_section,
        "answers_shuffled": _answers_shuffled_section,
        "product_left_out": _product_left_out_section,
    }
    audits = result.evaluation["audits"]
    missing = [name for name in sections if name not in audits]
    note = f"Not run: {join_words(missing)} (`audits.enabled`; params.full.yaml has all)." if missing else ""
    return [
        heading(2, "Audits"),
        *([paragraph(note)] if note else []),
        heading(3, "Length only"),
        paragraph(_describe_length(result)),
        *(part for name, rows in audits.items() for part in sections[name](result, rows)),
    ]


def _context_removed_section(result: EvaluationResult, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        heading(3, "Context removed"),
        paragraph(_describe_context_use(result, rows)),
        *_make_table(
            result,
            "AUROC and mean confidence with the retrieved context, and of the same answers without it",
            ("scorer", "AUROC", "AUROC without context", "lost", "mean", "mean without context"),
            [
                [
                    row["scorer"],
                    *(format_number(row[name]) for name in ("auroc", "auroc_changed")),
                    format_with_interval(row, "auroc_lost", "+.3f"),
                    *(format_number(row[name]) for name in ("mean", "mean_changed")),
                ]
                for row in rows
            ],
        ),
    ]


def _answers_shuffled_section(result: EvaluationResult, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        heading(3, "Answers shuffled"),
        paragraph(_describe_shuffled(result, rows)),
        *_make_table(
            result,
            "Correct answers in place against the same questions with the answer to another one",
            ("scorer", "AUROC against shuffled", "mean in place", "mean shuffled", "of the shuffled shown"),
            [
                [
                    row["scorer"],
                    *(format_number(row[name]) for name in ("auroc_against_shuffled", "mean_correct", "mean_changed")),
                    format_percent(row["shown_changed"]) if row["scorer"] == result.served_scorer["name"] else DASH,
                ]
                for row in rows
            ],
        ),
    ]


def _product_left_out_section(result: EvaluationResult, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        heading(3, "Trained without a product"),
        paragraph(_describe_new_products(rows)),
        *_make_table(
            result,
            "AUROC on each product of a probe that was trained without it, and of the exported probe",
            ("product", "answers", "trained without it", "trained on all", "lost", "note"),
            [_format_product(row) for row in rows],
            words=("note",),
        ),
    ]


def _make_table(
    result: EvaluationResult,
    caption: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    words: Sequence[str] = (),
) -> list[str]:
    """Return the table, with the row of the served scorer in bold; nothing if there are no rows."""
    marked = result.served_scorer["name"] if columns[0] == "scorer" else ""
    return [highlighted_table(columns, rows, caption, words, marked)] if rows else []


def _describe_length(result: EvaluationResult) -> str:
    length, served = result.scorers.get("length_only"), result.served_row
    if length is None:
        return "Not measured: length_only is not among the scorers that are compared (scorers.enabled)."
    text = (
        "A model of the length of the answer alone has an AUROC of "
        f"{format_with_interval(length, 'auroc')}; {result.served_scorer['name']} has "
        f"{format_with_interval(served, 'auroc')}."
    )
    if not is_defined(length["auroc_difference_high"]):
        return text
    if length["auroc_difference_high"] < 0:
        return f"{text} So the served scorer uses more than the length of an answer."
    return f"{text} On these answers it is not shown to use more than the length of an answer: be careful."


def _describe_context_use(result: EvaluationResult, rows: Sequence[Mapping[str, Any]]) -> str:
    text = "A confidence that ranks answers as well without the retrieved context does not check them against it."
    row = _get_served_row(result, rows)
    if row is None or not is_defined(row["auroc"]) or not is_defined(row["auroc_changed"]):
        return f"{text} Of the served scorer this is not defined on these answers."
    change = f"Without it, its AUROC goes from {format_number(row['auroc'])} to {format_number(row['auroc_changed'])}"
    if row["auroc"] <= CHANCE:
        return f"{text} {change}: it ranks no better than guessing with it."
    if not is_defined(row["auroc_lost_low"]) or row["auroc_lost_low"] <= 0:
        loss = format_interval(row, "auroc_lost", "+.3f")
        return f"{text} {change}; the loss is {loss}: on these answers no use of the context is shown."
    remaining = max(0.0, row["auroc_changed"] - CHANCE) / (row["auroc"] - CHANCE)
    return (
        f"{text} {change}: {format_percent(remaining, 0)} of its advantage over guessing remains; the rest comes from "
        "the context."
    )


def _describe_shuffled(result: EvaluationResult, rows: Sequence[Mapping[str, Any]]) -> str:
    text = "The answer to another question is incorrect here, however well written it is."
    row = _get_served_row(result, rows)
    if row is None or not is_defined(row["auroc_against_shuffled"]):
        return f"{text} Of the served scorer this is not defined on these answers."
    finding = f"Its AUROC between correct answers and these is {format_number(row['auroc_against_shuffled'])}"
    if not is_defined(row["shown_changed"]):
        return f"{text} {finding}."
    in_place = result.at_threshold["coverage"]
    shown = (
        f"it would show {format_percent(row['shown_changed'])} of them, and shows {format_percent(in_place)} of the "
        "answers in place"
    )
    if is_defined(in_place) and row["shown_changed"] >= in_place:
        return f"{text} {finding}; {shown}: it does not detect that they answer another question."
    return f"{text} {finding}; {shown}."


def _describe_new_products(rows: Sequence[Mapping[str, Any]]) -> str:
    text = "What to expect of a product that is new: the probe is trained again without each product and judged on it."
    measured = [row for row in rows if is_defined(row.get("auroc")) and is_defined(row.get("auroc_trained_on_all"))]
    if not measured:
        return f"{text} No product has enough answers to be judged."
    losses = {row["product"]: row["auroc_trained_on_all"] - row["auroc"] for row in measured}
    clear_losses = [row["product"] for row in measured if is_defined(row["lost_low"]) and row["lost_low"] > 0]
    mean = sum(losses.values()) / len(losses)
    verb = "loses" if mean >= 0 else "gains"
    parts = [
        f"On {format_count(len(measured), 'product')} with enough answers, it {verb} {format_number(abs(mean))} AUROC "
        "on average;"
    ]
    parts.append(
        f"clearly (the whole interval of the loss) on {join_words(clear_losses)}."
        if clear_losses
        else "on none is that clear."
    )
    return " ".join([text, *parts])


def _format_product(row: Mapping[str, Any]) -> list[str]:
    return [
        row["product"],
        f"{row['rows']:,}",
        format_with_interval(row, "auroc"),
        format_number(row.get("auroc_trained_on_all")),
        format_with_interval(row, "lost", "+.3f"),
        row["note"] or DASH,
    ]


def _get_served_row(result: EvaluationResult, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    return next((row for row in rows if row["scorer"] == result.served_scorer["name"]), None)
