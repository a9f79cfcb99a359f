"""Example answers: withheld errors, shown errors, and withheld correct answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

EXAMPLES = 5
CHARACTERS = 400


def select_examples(rows: pd.DataFrame, threshold: float) -> Mapping[str, list[dict[str, Any]]]:
    """Up to `EXAMPLES` of each kind, the most confident ones first.

    `rows`: `interaction_id`, `product`, `question`, `answer`, `ideal_answer` (or None), `correct`, `confidence`,
    `probability`. Texts are cut to `CHARACTERS`.
    """
    ranked = rows.sort_values(["confidence", "interaction_id"])
    shown, correct = ranked["confidence"] >= threshold, ranked["correct"] == 1
    kinds = {
        "caught": ranked[~shown & ~correct],
        "missed": ranked[shown & ~correct][::-1],
        "withheld": ranked[~shown & correct],
    }
    columns = ["interaction_id", "product", "question", "answer", "ideal_answer", "confidence", "probability"]
    return {kind: [_cut(row) for row in of[columns].head(EXAMPLES).to_dict("records")] for kind, of in kinds.items()}


def _cut(row: dict[Any, Any]) -> dict[str, Any]:
    return {
        str(key): value[: CHARACTERS - 1] + "…" if isinstance(value, str) and len(value) > CHARACTERS else value
        for key, value in row.items()
    }
