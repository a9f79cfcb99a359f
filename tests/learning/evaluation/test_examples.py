from __future__ import annotations

import pandas as pd

from abstain.learning.evaluation.examples import CHARACTERS, EXAMPLES, select_examples


def rows(correct: list[int], confidence: list[float]) -> pd.DataFrame:
    count = len(correct)
    return pd.DataFrame(
        {
            "interaction_id": [f"i-{at}" for at in range(count)],
            "product": "gold",
            "question": "Why?",
            "answer": ["x" * (CHARACTERS + 5)] * count,
            "ideal_answer": pd.Series([None] * count, dtype=object),
            "correct": correct,
            "confidence": confidence,
            "probability": confidence,
        }
    )


def test_each_kind_is_what_it_says_surest_first() -> None:
    found = select_examples(rows([0, 0, 0, 1, 1, 0], [0.1, 0.7, 0.9, 0.2, 0.8, 0.3]), 0.5)
    named = {kind: [one["interaction_id"] for one in of] for kind, of in found.items()}
    assert named == {"caught": ["i-0", "i-5"], "missed": ["i-2", "i-1"], "withheld": ["i-3"]}


def test_they_are_few_and_short_and_the_same_each_time() -> None:
    table = rows([0] * 20, [0.1] * 20)
    found = select_examples(table, 0.5)
    assert len(found["caught"]) == EXAMPLES and found["missed"] == [] and found["withheld"] == []
    assert all(len(one["answer"]) == CHARACTERS and one["answer"].endswith("…") for one in found["caught"])
    assert select_examples(table.sample(frac=1, random_state=0), 0.5) == found


def test_a_confidence_at_the_threshold_is_shown() -> None:
    assert [one["interaction_id"] for one in select_examples(rows([0], [0.5]), 0.5)["missed"]] == ["i-0"]
