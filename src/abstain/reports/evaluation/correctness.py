"""How well correctness is estimated from NLLs, and how many answers have a remark about that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from abstain.core.formatting import format_count, format_number, format_percent, format_with_interval, join_words
from abstain.core.markdown import bullet_list, heading, paragraph, table
from abstain.reports.evaluation.evaluation_result import EvaluationResult

REMARKS = {
    "empty": "without any context: nothing could be perturbed, so the perturbed condition is that without context",
    "too_long": "with a context that the perturbation model cannot read at once, and that stays as it was",
    "fewer": "with fewer tokens than were to be replaced: all were",
    "other_chunks": "of which, once the context is perturbed, another number of chunks fits the context length",
    "not_reproduced": "with text that the tokenizer does not write back; only what was replaced differs all the same",
}


def correctness_section(result: EvaluationResult) -> list[str]:
    """Render the evaluation of the correctness regressors.

    Args:
        result: Measurements of the candidate.

    Returns:
        Markdown blocks; none without regressors.
    """
    correctness = result.evaluation["regressors"]
    regressors: Mapping[str, Mapping[str, Any]] = correctness["regressors"]
    if not regressors:
        return []
    notes = [f"{name}: {row['note']}" for name, row in sorted(regressors.items()) if row.get("note")]
    return [
        heading(2, "Correctness estimated from log-likelihoods"),
        paragraph(_summarize(correctness["perturbed"])),
        _make_table(regressors),
        bullet_list([*_list_remarks(correctness["perturbed"]), *notes, _describe_dropped_features(regressors)]),
    ]


def _summarize(perturbed: Mapping[str, Any]) -> str:
    model = perturbed["perturbation_model"]
    conditions = (
        f"without the context, with it, and with it perturbed by {model}" if model else "with and without the context"
    )
    return (
        f"Each regressor estimates a correctness score from the base model's negative log-likelihoods {conditions}. An "
        "answer counts as correct "
        "when its true score is at least t, which was tuned out of fold; accuracy and F1 hold the estimate to the "
        "same t. Parity is the largest difference between what was fitted and its file."
    )


def _make_table(regressors: Mapping[str, Mapping[str, Any]]) -> str:
    columns = ("regressor", "t", "answers", "correct at t", "MSE", "AUROC", "accuracy", "F1", "file", "ONNX parity")
    rows: list[tuple[str, ...]] = []
    for name, row in sorted(regressors.items()):
        holdout = row["holdout"]
        if holdout is None:
            rows.append((name, "no t could be tuned"))
            continue
        metrics = (format_with_interval(holdout, metric) for metric in ("mse", "auroc", "accuracy", "f1"))
        counts = (
            format_number(holdout["threshold"], ".2f"),
            f"{holdout['labelled']:,}",
            format_percent(holdout["positive"]),
        )
        stored = (f"{row['bytes'] / 1e3:,.0f} kB", f"{row['parity']:.1e}")
        rows.append((name, *counts, *metrics, *stored))
    return table(columns, rows, "Regressors on the reviewed hold-out, with 95 % intervals")


def _list_remarks(perturbed: Mapping[str, Any]) -> list[str]:
    counts = {name: number for name, number in perturbed["perturbed"].items() if number}
    return [
        f"{format_count(number, 'answer')} of {perturbed['rows']:,} {REMARKS[name]}." for name, number in counts.items()
    ]


def _describe_dropped_features(regressors: Mapping[str, Mapping[str, Any]]) -> str:
    """Describe the dropped columns of the regressor that dropped most.

    These are the columns that no regressor reads, or also those of a target that is known for few answers.
    """
    dropped = max((row["dropped"] for row in regressors.values()), key=len)
    if not dropped:
        return "No feature was dropped."
    names = sorted(dropped)
    missing = sum(value is None for value in dropped.values())
    listed = join_words([*names[:3], f"{len(names) - 3:,} more"] if len(names) > 4 else names)
    reasons = f"{len(dropped) - missing:,} are constant, {missing:,} are missing everywhere"
    return f"{format_count(len(dropped), 'feature')} do not vary in training and were dropped: {reasons} ({listed})."
