"""A study's report as Markdown, from the document that `tables.tabulate` makes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from abstain.core.formatting import format_count, format_number, format_percent, format_with_interval, join_words
from abstain.core.markdown import bold, bullet_list, document, heading, is_defined, paragraph, records_table
from studies.nll_perturbation.declared import format_words
from studies.nll_perturbation.tables import PAPER, WHO

Row = Mapping[str, Any]

LABELS = {
    "tokens": "K",
    "where": "where",
    "when": "when",
    "outputs": "outputs",
    "metric": "correctness",
    "regressor": "regressor",
}
NOT_STATED = "not stated"
MISSING = "missing"
STEPS = ("answering", "perturbing", "reading", "own outputs", "baselines")


def to_markdown(report: Mapping[str, Any]) -> str:
    """Return `report` as Markdown: the tables, their gaps, and the counts."""
    return document(_parts(report))


def _parts(report: Mapping[str, Any]) -> Iterator[str]:
    yield heading(1, report["title"])
    yield paragraph(
        f"Rows marked as the paper's are copied from it ({report['paper']}); all others were computed here. BM is the "
        "base model, PM the model that perturbs; t is the threshold from which on an answer counts as correct; in "
        "parentheses are 95 % intervals by bootstrap of whole groups, which are paragraphs in SQuAD "
        f"({report['draws']:,} draws). Beside an MSE is what it exceeds that of always saying the mean of the training "
        "answers by: below 0, the estimate is better than that constant."
    )
    yield paragraph(report["remark"])
    if report["missing"]:
        yield paragraph(bold(_missing(report["missing"], len(report["cells"]))))
    for name, table in report["tables"].items():
        yield from _table(name, table, report)
    yield from _counts(report)
    yield heading(2, "What it was computed from")
    models = sorted({model for cell in report["cells"] for model in cell.get("models", {}).values()})
    files = [f"{name}: sha256 {digest}" for name, digest in report["files"].items()]
    yield bullet_list([*models, *files])


def _table(name: str, table: Mapping[str, Any], report: Mapping[str, Any]) -> Iterator[str]:
    number = f"Table {name}" if name.isdecimal() else format_words(name).capitalize()
    yield heading(2, f"{number}: {table['title']}")
    yield paragraph(f"{_size(table['size'])} {_setting(table, report['quantiles'])}")
    if table["missing"]:
        yield paragraph(bold(_missing(table["missing"], table["cells"])))
        yield bullet_list(f"{cell}: {reason}" for cell, reason in table["missing"].items())
    yield records_table([_cells(row, table, report["models"]) for row in table["rows"]])
    notes = dict.fromkeys(row["note"] for row in table["rows"] if row.get("note"))
    yield from (paragraph(f"Where a figure is not defined: {note}.") for note in notes)
    if table["note"]:
        yield paragraph(table["note"])
    for comparison in table["baselines"]:
        yield from _baselines(comparison, table["varied"])


def _size(size: Mapping[str, int]) -> str:
    return f"Trained on {size['train']:,} answers and evaluated on {size['evaluation']:,} others, of other groups."


def _setting(table: Mapping[str, Any], quantiles: Sequence[float]) -> str:
    fixed = {LABELS[key]: format_words(value) for key, value in table["fixed"].items() if key in LABELS}
    tuned = (
        "t is tuned on the training answers, out of fold, among the quantiles of their scores of "
        f"{min(quantiles):g} to {max(quantiles):g}"
    )
    where = "t is the one that is named" if table["at"] else tuned
    buffer = f"; within {table['buffer']:g} of t nothing is said (withheld)" if table["buffer"] else ""
    common = ", ".join(f"{label} {value}" for label, value in fixed.items())
    return f"All that was computed here has in common: {common}; {where}{buffer}."


def _cells(row: Row, table: Mapping[str, Any], models: Mapping[str, str]) -> dict[str, str]:
    papers = row["of"] == PAPER
    cells = {"BM by PM": _format_models(row, models)}
    for key in table["varied"]:
        if key in LABELS:
            cells[LABELS[key]] = format_words(row[key]) if key in row else NOT_STATED
    names = {"threshold": "t", "mse": "MSE", "accuracy": "accuracy", "f1": "F1", "auroc": "AUROC"}
    buffered = {"accuracy_buffered": "accuracy, rest", "f1_buffered": "F1, rest"} if table["buffer"] else {}
    for key, label in (names | buffered).items():
        cells[label] = (
            _format_stated(row, key) if papers else MISSING if "missing" in row else _format_computed(row, key)
        )
        if key == "mse":
            is_known = "mse_difference" in row
            difference = format_with_interval(row, "mse_difference", "+.4f") if is_known else _format_gap(row)
            cells["over the constant"] = difference
    shares = {"positive": "correct at t"} | ({"withheld": "withheld"} if table["buffer"] else {})
    for key, label in shares.items():
        cells[label] = format_percent(row[key]) if key in row else _format_gap(row)
    return cells


def _format_gap(row: Row) -> str:
    """Return the text for a missing number of `row`."""
    return NOT_STATED if row["of"] == PAPER else MISSING


def _format_computed(row: Row, key: str) -> str:
    if key == "threshold":
        return f"{row[key]:g}"
    if key == "mse":
        return format_with_interval(row, key, ".4f")
    return format_with_interval(row, key)


def _format_stated(row: Row, key: str) -> str:
    value = row.get(key)
    if value is None:
        return NOT_STATED
    return value if isinstance(value, str) else f"{value:g}" if key == "threshold" else format_number(value)


def _format_models(row: Row, models: Mapping[str, str]) -> str:
    """Return the models of a row: the paper's by its own names."""
    is_paper = row["of"] == PAPER
    base, perturbation = ((row[key] if is_paper else models[row[key]]) if key in row else NOT_STATED for key in WHO)
    is_same = base == perturbation != NOT_STATED
    return f"{'paper: ' if is_paper else ''}{base} by {'itself' if is_same else perturbation}"


def _missing(missing: Mapping[str, str], cells: int) -> str:
    return f"Missing: {len(missing)} of {format_count(cells, 'cell')}."


def _baselines(comparison: Mapping[str, Any], varied: Sequence[str]) -> Iterator[str]:
    setting = ", ".join(format_words(comparison[key]) for key in varied if key in comparison and key != "threshold")
    yield heading(3, "Against baselines" + (f": {setting}" if setting else ""))
    best = comparison["baselines"][0]
    yield paragraph(
        f"At t = {comparison['threshold']:g} the regressor has an AUROC of "
        f"{format_with_interval(comparison, 'auroc')}. "
        f"The best baseline, chosen on these very answers, is {best['baseline']}: "
        f"{format_with_interval(best, 'auroc')}. The regressor is {_describe_difference(best)} at 95 %: the paired "
        f"difference is {format_with_interval(best, 'ahead')}."
    )
    yield records_table(
        [
            {
                "baseline": line["baseline"],
                "AUROC": format_with_interval(line, "auroc"),
                "regressor's AUROC − baseline's": format_with_interval(line, "ahead"),
                "at 95 %": _describe_difference(line),
            }
            for line in comparison["baselines"]
        ],
        text_columns=("at 95 %",),
    )


def _describe_difference(line: Mapping[str, Any]) -> str:
    low, high = line["ahead_low"], line["ahead_high"]
    if not is_defined(low) or not is_defined(high):
        return "not comparable"
    return "ahead" if low > 0 else "behind" if high < 0 else "not to be told from it"


def _counts(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield counts of answers and contexts, the dropped columns, and the tokens of the models, as Markdown."""
    done = [cell for cell in report["cells"] if "missing" not in cell]
    if not done:
        return
    yield heading(2, "What was counted")
    yield paragraph(
        "Of the answers of each cell, training and evaluation together: without a context (P_c is B_c); with a "
        "context of fewer than K tokens that could be replaced (all of these were); with one longer than PM reads "
        "(P_c is N_c); with one that PM's tokenizer does not write back as it was; with one that, perturbed, no longer "
        "fits BM's window; and questions without an answer. Folds: of whole groups, for out-of-fold scores."
    )
    yield records_table([_format_counts(cell) for cell in done])
    yield paragraph(
        "Forward tokens of each step, as far as the feature cache did not have them: a cell finds there what another "
        "one computed, and what it had computed itself before it was cut off."
    )
    yield records_table([_tokens(cell["cell"], cell["computed"]) for cell in done] + [_total(done)])
    yield paragraph("Columns that could not vary in the training answers, and were not given to the regressors:")
    yield bullet_list(_list_dropped(done))


def _format_counts(cell: Mapping[str, Any]) -> dict[str, str]:
    counts = cell["perturbed"]
    return {
        "cell": cell["cell"],
        "no context": str(counts["empty"]),
        "fewer than K": str(counts["fewer"]),
        "too long": str(counts["too_long"]),
        "not reproduced": str(counts["not_reproduced"]),
        "does not fit": str(counts["other_chunks"]),
        "no answer": str(cell["no_answer"]),
        "folds": str(cell["folds"]),
        "columns": str(cell["columns"]),
        "dropped": str(len(cell["dropped_columns"])),
    }


def _tokens(name: str, computed: Mapping[str, Any]) -> dict[str, str]:
    tokens_by_step = {step: f"{computed[step]['forward_tokens']:,}" if step in computed else "none" for step in STEPS}
    return {"cell": name, **tokens_by_step}


def _total(cells: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    ran = {
        step: [cell["computed"][step]["forward_tokens"] for cell in cells if step in cell["computed"]] for step in STEPS
    }
    return _tokens("all cells", {step: {"forward_tokens": sum(tokens)} for step, tokens in ran.items() if tokens})


def _list_dropped(cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for every set of dropped columns and reason, with its cells."""
    cells_by_drop: defaultdict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for cell in cells:
        by_reason: defaultdict[str, list[str]] = defaultdict(list)
        for column, value in cell["dropped_columns"].items():
            reason = "missing in all training rows" if value is None else "the same in all training answers"
            by_reason[reason].append(column)
        for reason, columns in by_reason.items() or [("none", [])]:
            cells_by_drop[reason, tuple(columns)].append(cell["cell"])
    for (reason, dropped), names in cells_by_drop.items():
        whose = "all cells" if len(names) == len(cells) else "; ".join(names)
        yield f"{f'{reason}: {join_words(_short(dropped))}' if dropped else reason} ({whose})"


def _short(columns: Sequence[str]) -> list[str]:
    """Return `N.context.nll_min` and `N.context.nll_max` as `N.context (nll_min, nll_max)`."""
    statistics_by_column: defaultdict[str, list[str]] = defaultdict(list)
    for column in columns:
        prefix, _, statistic = column.rpartition(".")
        statistics_by_column[prefix].append(statistic)
    return [f"{prefix} ({', '.join(statistics)})" for prefix, statistics in statistics_by_column.items()]
