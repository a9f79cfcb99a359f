"""The report of the study of the Yes-score as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from abstain.core.formatting import DASH, format_number, format_percent, format_with_interval
from abstain.core.markdown import document, heading, paragraph, records_table
from abstain.reports.page import plot
from studies.yes_score.pairs import PAIRS

TITLES = {
    "kinds": "Four kinds of responses",
    "separation": "One kind against another",
    "precision": "Precision of the model's answers from a threshold on",
    "example": "Eight responses to one question",
    "extractive_qa": "Against an extractive QA model",
}


def write_report(report: Mapping[str, Any]) -> str:
    """Return the document of `tables.tabulate` as Markdown."""
    return document(_list_blocks(report))


def _list_blocks(report: Mapping[str, Any]) -> Iterator[str]:
    yield heading(1, report["title"])
    marked = "an ideal answer" if report["project"] else "a marked answer"
    judge = "by the reviews" if report["project"] else "if the marked answer stands in it"
    yield paragraph(
        f"{report['model']}, {report['questions']:,} questions in {report['groups']:,} groups, of which "
        f"{report['marked']:,} have {marked}. An answer of the model is correct {judge}. In parentheses are 95 % "
        f"intervals by bootstrap of whole groups ({report['draws']:,} draws). The post's figures are copied "
        f"({report['paper']}); all others were computed here."
    )
    if report["project"] and not report["marked"]:
        yield paragraph("No review has an ideal answer, so there is no marked answer, and nothing to compare it with.")
    for name, table in report["tables"].items():
        yield heading(2, TITLES[name])
        if "missing" in table:
            yield paragraph(f"Missing: {table['missing']}.")
        else:
            yield from _BLOCKS[name](table)


def _list_kinds(table: Mapping[str, Any]) -> Iterator[str]:
    yield paragraph(
        "Shares of the scores within 0.05 of 0, 0.5 and 1, where the post sees peaks. A reply counts as neither if its "
        "first word means neither yes nor no."
    )
    yield records_table(
        [
            {
                "scorer": row["scorer"],
                "response": row["kind"],
                "scored": f"{row['scored']:,} of {row['responses']:,}",
                "mean": format_number(row.get("mean")),
                "median": format_number(row.get("median")),
                **{f"near {peak}": format_percent(row.get(f"near_{peak}")) for peak in ("0", "0.5", "1")},
                "neither": f"{row['neither']:,} of {row['replies']:,}" if "neither" in row else DASH,
            }
            for row in table["rows"]
        ],
        text_columns=("response",),
    )
    for scorer in dict.fromkeys(row["scorer"] for row in table["rows"]):
        means = ", ".join(
            f"{row['kind']} {format_number(row.get('mean'))}" for row in table["rows"] if row["scorer"] == scorer
        )
        yield plot(
            f"histogram_{scorer}",
            f"Histogram of {scorer}",
            f"mean of {scorer}: {means}",
            "Share of each kind by score.",
        )


def _list_pairs(table: Mapping[str, Any]) -> Iterator[str]:
    yield records_table(
        [
            {
                "pair": row["pair"],
                "scorer": row["scorer"],
                "responses": f"{row['positive']:,} + {row['negative']:,}",
                "unscored": f"{row['unscored']:,}",
                "AUROC": format_with_interval(row, "auroc"),
                "minus yes_score's": format_with_interval(row, "ahead", "+.3f") if "ahead" in row else DASH,
                "post": DASH if row["post"] is None else format_number(row["post"], ".2f"),
            }
            for row in table["rows"]
        ],
        text_columns=("scorer",),
    )
    if "model" in table:
        yield paragraph(f"extractive_qa is by {table['model']}: the expected word F1 of the response.")


def _list_separation(table: Mapping[str, Any]) -> Iterator[str]:
    yield from _list_pairs(table)
    for name, what in PAIRS.items():
        rows = [row for row in table["rows"] if row["pair"] == what]
        if rows:
            areas = ", ".join(f"{row['scorer']} {format_number(row['auroc'])}" for row in rows)
            yield plot(
                f"roc_{name}", f"ROC, {what}", f"AUROC: {areas}", "Incorrect or random ones that are shown, by recall."
            )


def _list_precision(table: Mapping[str, Any]) -> Iterator[str]:
    yield paragraph(
        f"{table['correct']:,} of {table['answers']:,} answers are correct. In the post "
        f"{format_percent(table['post'])} of 200 are, labelled by hand. Coverage is the "
        "share of all answers from the threshold on."
    )
    yield records_table(
        [
            {
                "scorer": row["scorer"],
                "threshold": f"{row['threshold']:g}",
                "answers shown": f"{row['shown']:,}",
                "precision": format_with_interval(row, "precision"),
                "coverage": format_with_interval(row, "coverage"),
            }
            for row in table["rows"]
        ]
    )


def _list_example(table: Mapping[str, Any]) -> Iterator[str]:
    yield paragraph(f"Passage, of our own: {table['context']}")
    yield paragraph(f"Question: {table['question']} The post's scores are of its own responses of the same kinds.")
    yield records_table(
        [
            {
                "response": row["response"],
                "it is": row["what"],
                "correct": "yes" if row["correct"] else "no",
                **{variant: format_number(score) for variant, score in row["scores"].items()},
                "post": format_number(row["post"]),
            }
            for row in table["rows"]
        ],
        text_columns=("it is", "correct"),
    )


_BLOCKS = {
    "kinds": _list_kinds,
    "separation": _list_separation,
    "precision": _list_precision,
    "example": _list_example,
    "extractive_qa": _list_pairs,
}
