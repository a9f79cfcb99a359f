import pandas as pd

from abstain.learning.evaluation.examples import CHARACTERS, EXAMPLES, select_examples


def make_rows(correct: list[int], confidence: list[float]) -> pd.DataFrame:
    rows = pd.DataFrame({"correct": correct, "confidence": confidence, "probability": confidence})
    return rows.assign(
        interaction_id=[f"i-{i}" for i in range(len(rows))],
        product="gold",
        question="Why?",
        answer="x" * (CHARACTERS + 5),
        ideal_answer=pd.Series([None] * len(rows), dtype=object),
    )


def test_select_examples_ranks_each_kind_few_and_short() -> None:
    examples = select_examples(make_rows([0, 0, 0, 1, 1, 0, 0], [0.1, 0.7, 0.9, 0.2, 0.8, 0.3, 0.5]), 0.5)
    ids = [[found.interaction_id for found in kind] for kind in (examples.caught, examples.missed, examples.withheld)]
    assert ids == [["i-0", "i-5"], ["i-2", "i-1", "i-6"], ["i-3"]], "an answer at the threshold is shown"
    rows = make_rows([0] * 20, [0.1] * 20)
    examples = select_examples(rows, 0.5)
    assert len(examples.caught) == EXAMPLES and examples.missed == []
    assert len(examples.caught[0].answer) == CHARACTERS and examples.caught[0].answer.endswith("…")
    assert examples.caught[0].ideal_answer is None
    assert select_examples(rows.sample(frac=1, random_state=0), 0.5) == examples, "it does not depend on the order"
