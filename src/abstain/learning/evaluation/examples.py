"""Example answers: withheld errors, shown errors, and withheld correct answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

EXAMPLES = 5
CHARACTERS = 400


def select_examples(rows: pd.DataFrame, threshold: float) -> Mapping[str, list[dict[str, Any]]]:
    """Select up to `EXAMPLES` answers of each kind: withheld errors, shown errors and withheld correct answers.

    Withheld ones are those of the lowest confidence, shown errors those of the highest. Texts are truncated to
    `CHARACTERS`.

    Args:
        rows: Answers with `interaction_id`, `product`, `question`, `answer`, `ideal_answer` (or None), `correct`,
            `confidence` and `probability`.
        threshold: Answers with confidence >= `threshold` are shown.

    Returns:
        "caught", "missed" and "withheld" -> rows.
    """
    ranked = rows.sort_values(["confidence", "interaction_id"])
    shown, correct = ranked["confidence"] >= threshold, ranked["correct"] == 1
    kinds = {
        "caught": ranked[~shown & ~correct],
        "missed": ranked[shown & ~correct][::-1],
        "withheld": ranked[~shown & correct],
    }
    columns = ["interaction_id", "product", "question", "answer", "ideal_answer", "confidence", "probability"]
    return {
        kind: [_truncate_texts(row) for row in table[columns].head(EXAMPLES).to_dict("records")]
        for kind, table in kinds.items()
    }


def _truncate_texts(row: dict[Any, Any]) -> dict[str, Any]:
    return {
        str(key): value[: CHARACTERS - 1] + "…" if isinstance(value, str) and len(value) > CHARACTERS else value
        for key, value in row.items()
    }
