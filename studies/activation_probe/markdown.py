"""Rows of the study's tables as Markdown cells, from the results of its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from abstain.core.formatting import DASH, format_number, format_percent, format_with_interval
from abstain.core.markdown import is_defined

Row = Mapping[str, Any]


def format_board(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Format table 1."""
    return [
        {
            "scorer": row["scorer"],
            "AUROC": format_with_interval(row, "auroc"),
            "Brier": format_number(row["brier"]),
            "error recall at 15 %": format_percent(row["error_recall_at_15pct"]),
            "tokens": f"{row['forward_tokens']:,.0f}",
        }
        for row in rows
    ]


def format_thresholds(tables: Mapping[str, Sequence[Row]], names: Sequence[str]) -> Iterator[dict[str, str]]:
    """Format table 2 of the scorers of `names` that there are."""
    for name in names:
        for row in tables.get(name, ()):
            yield {"scorer": name, "threshold": f"{row['threshold']:g}", **_format_metrics(row)}


def format_sites(rows: Sequence[Row]) -> Iterator[dict[str, str]]:
    """Format table 4: for each site its rows at the marked thresholds."""
    for row in rows:
        for marked in row["thresholds"]:
            threshold = marked["mark"] if marked["mark"] != "tuned" else f"tuned: {marked['threshold']:.3f}"
            yield {
                "layer": str(row["layer"]),
                "site": row["site"],
                "k": _format_chunks(row["chunks"]),
                "AUROC": format_with_interval(row, "auroc"),
                "threshold": threshold,
                **_format_metrics(marked),
            }


def list_notes(rows: Sequence[Row]) -> list[str]:
    """Return why sites of table 4 have no tuned threshold."""
    return [
        f"Layer {row['layer']}, {row['site']}, k = {_format_chunks(row['chunks'])}: {row['note']}"
        for row in rows
        if row["note"]
    ]


def format_latencies(rows: Sequence[Row]) -> Iterator[dict[str, str]]:
    """Format table 5: the means over the runs, with the least and the greatest of them."""
    for row in rows:
        yield {
            "layer": str(row["layer"]),
            "k": _format_chunks(row["chunks"]),
            **{
                f"{title}, ms": f"{fmean(row[key]):,.0f} ({min(row[key]):,.0f} to {max(row[key]):,.0f})"
                for title, key in (("mean", "mean"), ("P99", "p99"))
            },
        }


def format_terms(records: Sequence[Row]) -> Iterator[dict[str, str]]:
    """Format the comparison of Huber terms."""
    keys = list(dict.fromkeys(key for record in records for key in record if key.startswith("huber_")))
    for record in records:
        yield {
            **{key: f"{record[key]:g}" if key in record else DASH for key in keys},
            **{
                title: format_with_interval(record, name, form) if name in record else DASH
                for title, name, form in (
                    ("AUROC", "auroc", ".3f"),
                    ("AUROC − without", "auroc_difference", "+.3f"),
                    ("ECE", "ece", ".3f"),
                    ("ECE − without", "ece_difference", "+.3f"),
                )
            },
        }


def _format_metrics(row: Row) -> dict[str, str]:
    return {
        "P": format_with_interval(row, "precision", ".2f"),
        "R": format_with_interval(row, "recall", ".2f"),
        "ROUGE-L shown": _format_rouge(row, "rouge_shown"),
        "ROUGE-L withheld": _format_rouge(row, "rouge_withheld"),
        "% mask": f"{100 * row['abstention_rate']:.1f}",
    }


def _format_rouge(row: Row, name: str) -> str:
    """Format the ROUGE-L, if there is any, with the number of answers that it is of."""
    return f"{format_with_interval(row, name, '.2f')}, {row[f'{name}_answers']}" if is_defined(row[name]) else ""


def _format_chunks(chunks: int | None) -> str:
    return "all" if chunks is None else str(chunks)
