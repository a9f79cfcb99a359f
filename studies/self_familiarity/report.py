"""The report of the study of Self-Familiarity as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from abstain.core.formatting import DASH, format_number, format_with_interval
from abstain.core.markdown import document, heading, paragraph, records_table
from abstain.reports.page import plot

COLUMNS = {"auc": "AUC", "accuracy": "ACC", "f1": "F1", "pearson": "Pearson"}


def write_concept_report(report: Mapping[str, Any], figures: Mapping[str, str]) -> str:
    """Return the document of `ConceptTables.tabulate` as Markdown."""
    return document(_list_concept_blocks(report, figures))


def _list_concept_blocks(report: Mapping[str, Any], figures: Mapping[str, str]) -> Iterator[str]:
    yield heading(1, f"{report['title']} on Concept-7")
    yield paragraph(
        f"{report['model']}. In parentheses are 95 % intervals by bootstrap of whole concepts ({report['draws']:,} "
        "draws). ACC and F1 are at each method's threshold h, from the common concepts. The paper's AUCs are copied "
        f"({report['paper']}); all others were computed here."
    )
    for name, sections in report["tables"].items():
        for section in sections:
            yield heading(2, f"Table {name}: {section['title']}" if name.isdecimal() else section["title"])
            yield from _list_section(section, report["rows"].get(name, {}))
    if figures:
        yield plot(
            "familiarity",
            "Histogram of Self-Familiarity",
            "Self-Familiarity of fictional, real and common concepts",
            "Share of each kind by score.",
        )


def _list_section(section: Mapping[str, Any], paper: Mapping[str, str]) -> Iterator[str]:
    if "missing" in section:
        yield paragraph(f"Missing: {section['missing']}.")
        return
    n, familiar = section["instructions"], section["familiar"]
    total = "" if section["total"] is None else f" of {section['total']:,}"
    share = familiar / n
    what = {"real": "about what exists", "judge": "familiar by the judge"}[section["by"]]
    yield paragraph(
        f"It holds {n:,}{total} instructions, {familiar:,} of them {what}. Calling everything familiar has ACC "
        f"{share:.3f} and F1 {2 * share / (1 + share):.3f}."
    )
    for reason in (section["reason"], section.get("judge_missing")):
        if reason:
            yield paragraph(f"Others are missing: {reason}.")
    yield records_table(
        [
            {
                "method": f"{row['method']} ({row['unscored']} without a score)" if row["unscored"] else row["method"],
                **{COLUMNS[key]: format_with_interval(row, key) for key in section["columns"]},
                "AUC ahead by": format_with_interval(row, "ahead", "+.3f") if "ahead" in row else DASH,
                "paper's AUC": paper.get(row["method"], DASH) if section["by"] == "real" else DASH,
            }
            for row in section["methods"]
        ]
    )


def write_answer_report(report: Mapping[str, Any]) -> str:
    """Return the document of `answers.tabulate_answers` as Markdown."""
    return document(_list_answer_blocks(report))


def _list_answer_blocks(report: Mapping[str, Any]) -> Iterator[str]:
    yield heading(1, f"{report['title']} of the project's questions")
    yield paragraph(
        f"{report['model']}. Whether the familiarity of a question predicts that its answer is correct, by the "
        f"reviews. In parentheses are 95 % intervals by bootstrap of whole groups ({report['draws']:,} draws)."
    )
    for section in report["tables"]["answers"]:
        yield heading(2, section["title"])
        if "missing" in section:
            yield paragraph(f"Missing: {section['missing']}.")
            continue
        below = f"{format_number(section['below'], '.1%')} of the questions are below h = {section['threshold']:.3f}. "
        yield paragraph(
            f"It holds {section['answers']:,} of {section['total']:,} answers in {section['groups']:,} groups, "
            f"{section['correct']:,} of them correct. {below if section['threshold'] is not None else ''}Familiarity "
            f"adds {format_with_interval(section, 'gain', '+.3f')} to the AUROC of the log-probabilities."
        )
        if section["reason"]:
            yield paragraph(f"Others are missing: {section['reason']}.")
        yield records_table(
            [{"score": row["score"], "AUROC": format_with_interval(row, "auroc")} for row in section["rows"]]
        )
