"""What was counted of the cells of a study: the part of its report that says what the figures were made of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from abstain.core.markdown import heading, paragraph, points, records_table
from abstain.reports.formatting import listed

STEPS = ("answering", "perturbing", "reading", "baselines")


def counts(report: Mapping[str, Any]) -> Iterator[str]:
    """What happened to answers and contexts, which columns were of no use, and what the models ran, as Markdown."""
    done = [cell for cell in report["cells"] if "missing" not in cell]
    if not done:
        return
    yield heading(2, "What was counted")
    yield paragraph(
        "Of the answers of each cell, training and evaluation together: without a context (P_c is B_c); with a "
        "context of fewer than K tokens that could be replaced (all of these were); with one longer than PM reads "
        "(P_c is N_c); with one that PM's tokenizer does not write back as it was; with one that, perturbed, no longer "
        "fits BM's window; and questions without an answer. Folds: of whole paragraphs, for out-of-fold scores."
    )
    yield records_table([_counted(cell) for cell in done])
    yield paragraph(
        "Forward tokens of each step, as far as the feature cache did not have them: a cell finds there what another "
        "one computed, and what it had computed itself before it was cut off."
    )
    yield records_table([_tokens(cell["cell"], cell["computed"]) for cell in done] + [_total(done)])
    yield paragraph("Columns that could not vary in the training answers, and were not given to the regressors:")
    yield points(_dropped(done))


def _counted(cell: Mapping[str, Any]) -> dict[str, str]:
    of = cell["perturbed"]
    return {
        "cell": cell["cell"],
        "no context": str(of["empty"]),
        "fewer than K": str(of["fewer"]),
        "too long": str(of["too_long"]),
        "not reproduced": str(of["not_reproduced"]),
        "does not fit": str(of["other_chunks"]),
        "no answer": str(cell["no_answer"]),
        "folds": str(cell["folds"]),
        "columns": str(cell["columns"]),
        "dropped": str(len(cell["dropped_columns"])),
    }


def _tokens(name: str, computed: Mapping[str, Any]) -> dict[str, str]:
    of = {step: f"{computed[step]['forward_tokens']:,}" if step in computed else "none" for step in STEPS}
    return {"cell": name, **of}


def _total(cells: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    ran = {
        step: [cell["computed"][step]["forward_tokens"] for cell in cells if step in cell["computed"]] for step in STEPS
    }
    return _tokens("all cells", {step: {"forward_tokens": sum(found)} for step, found in ran.items() if found})


def _dropped(cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for every set of columns and reason, and the cells that it is of."""
    of: defaultdict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for cell in cells:
        by_reason: defaultdict[str, list[str]] = defaultdict(list)
        for column, reason in cell["dropped_columns"].items():
            constant = not reason.startswith("missing")
            by_reason["the same in all training answers" if constant else reason].append(column)
        for reason, columns in by_reason.items() or [("none", [])]:
            of[reason, tuple(columns)].append(cell["cell"])
    for (reason, dropped), names in of.items():
        whose = "all cells" if len(names) == len(cells) else "; ".join(names)
        yield f"{f'{reason}: {listed(_short(dropped))}' if dropped else reason} ({whose})"


def _short(columns: Sequence[str]) -> list[str]:
    """`N.context.nll_min` and `N.context.nll_max` as `N.context (nll_min, nll_max)`."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for column in columns:
        of, _, statistic = column.rpartition(".")
        found[of].append(statistic)
    return [f"{of} ({', '.join(statistics)})" for of, statistics in found.items()]
