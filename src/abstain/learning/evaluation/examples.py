"""Example answers: withheld errors, shown errors, and withheld correct answers."""

from __future__ import annotations

from typing import Any

import pandas as pd

from abstain.learning.evaluation.records import Example, Examples

EXAMPLES = 5
CHARACTERS = 400


def select_examples(rows: pd.DataFrame, threshold: float) -> Examples:
    """Select up to `EXAMPLES` answers of each kind: withheld errors, shown errors and withheld correct answers.

    Withheld ones are those of the lowest confidence, shown errors those of the highest. Texts are truncated to
    `CHARACTERS`.

    Args:
        rows: Answers with `interaction_id`, `product`, `question`, `answer`, `ideal_answer` (or None), `correct`,
            `confidence` and `probability`.
        threshold: Answers with confidence >= `threshold` are shown.

    Returns:
        The examples.
    """
    ranked = rows.sort_values(["confidence", "interaction_id"])
    shown, correct = ranked["confidence"] >= threshold, ranked["correct"] == 1
    return Examples(
        caught=_make_examples(ranked[~shown & ~correct]),
        missed=_make_examples(ranked[shown & ~correct][::-1]),
        withheld=_make_examples(ranked[~shown & correct]),
    )


def _make_examples(rows: pd.DataFrame) -> list[Example]:
    records = rows[list(Example.model_fields)].head(EXAMPLES).to_dict("records")
    return [Example(**{str(key): _truncate(value) for key, value in record.items()}) for record in records]


def _truncate(value: Any) -> Any:
    return value[: CHARACTERS - 1] + "…" if isinstance(value, str) and len(value) > CHARACTERS else value
