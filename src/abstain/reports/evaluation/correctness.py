"""How well correctness is estimated from NLLs, and of how many answers something has to be said about that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from abstain.reports.evaluation.document import Block, Line, Paragraph, Points, Row, Section, Table
from abstain.reports.evaluation.evaluated import Evaluated
from abstain.reports.evaluation.words import bounded, count, figure, listed, percent

SAID = {
    "empty": "without any context: nothing could be perturbed, so the perturbed condition is that without context",
    "too_long": "with a context that the perturbation model cannot read at once, and that stays as it was",
    "fewer": "with fewer tokens than were to be replaced: all were",
    "other_chunks": "of which, once the context is perturbed, another number of chunks fits the base model's window",
    "not_reproduced": "with text that the tokenizer does not write back; only what was replaced differs all the same",
}


def correctness_section(evaluated: Evaluated) -> Section | None:
    found = evaluated.evaluation["regressors"]
    regressors: Mapping[str, Mapping[str, Any]] = found["regressors"]
    if not regressors:
        return None
    blocks: list[Block] = [Paragraph(_told(found["perturbed"])), _table(regressors)]
    notes = [[f"{name}: {row['note']}"] for name, row in sorted(regressors.items()) if row.get("note")]
    lines: list[Line] = [*_counted(found["perturbed"]), *notes, *_dropped(regressors)]
    return Section(
        "correctness", "Correctness, estimated from what perturbing the context does", [*blocks, Points(lines)]
    )


def _told(perturbed: Mapping[str, Any]) -> Line:
    return [
        "Each regressor estimates a correctness score from the base model's negative log-likelihoods without the "
        f"context, with it, and with it perturbed by {perturbed['perturbation_model']}. An answer counts as correct "
        "when its true score is at least t, which was tuned out of fold; accuracy and F1 hold the estimate to the "
        "same t. Parity is the largest difference between what was fitted and its file."
    ]


def _table(regressors: Mapping[str, Mapping[str, Any]]) -> Table:
    columns = ("regressor", "t", "answers", "correct at t", "MSE", "AUROC", "accuracy", "F1", "file", "ONNX parity")
    rows = []
    for name, row in sorted(regressors.items()):
        of = row["holdout"]
        if of is None:
            rows.append(Row((name, "no t could be tuned")))
            continue
        figures = (bounded(of, metric) for metric in ("mse", "auroc", "accuracy", "f1"))
        counted = (figure(of["threshold"], ".2f"), f"{of['judged']:,}", percent(of["positive"]))
        stored = (f"{row['bytes'] / 1e3:,.0f} kB", f"{row['parity']:.1e}")
        rows.append(Row((name, *counted, *figures, *stored)))
    return Table("Regressors on the reviewed hold-out, with 95 % intervals", columns, rows)


def _counted(perturbed: Mapping[str, Any]) -> list[Line]:
    counts = {name: number for name, number in perturbed["perturbed"].items() if number}
    return [[f"{count(number, 'answer')} of {perturbed['rows']:,} {SAID[name]}."] for name, number in counts.items()]


def _dropped(regressors: Mapping[str, Mapping[str, Any]]) -> list[Line]:
    """The columns that no regressor was given, or only those whose target is known for few."""
    dropped = max((row["dropped"] for row in regressors.values()), key=len)
    if not dropped:
        return [["No feature was dropped."]]
    names = sorted(dropped)
    missing = sum(reason.startswith("missing") for reason in dropped.values())
    few = listed([*names[:3], f"{len(names) - 3:,} more"] if len(names) > 4 else names)
    says = f"{len(dropped) - missing:,} say the same of every training answer, {missing:,} say nothing of any"
    return [[f"{count(len(dropped), 'feature')} cannot tell answers apart and were dropped: {says} ({few})."]]
