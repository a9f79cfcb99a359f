from __future__ import annotations

from abstain.llm.signals.counterfactuals import remove_contexts, shuffle_answers
from tests.llm.signals.builders import interaction

ROWS = [
    interaction(answer=f"answer {at % 5}", name=f"i-{at}").model_copy(update={"product": "gold" if at % 2 else "blue"})
    for at in range(20)
]


def test_without_context_nothing_else_changes() -> None:
    changed = remove_contexts(ROWS)
    assert all(one.contexts == () for one in changed)
    assert [one.model_copy(update={"contexts": own.contexts}) for one, own in zip(changed, ROWS, strict=True)] == ROWS


def test_every_question_gets_the_answer_to_another_about_its_product() -> None:
    changed = shuffle_answers(ROWS)
    for one, own in zip(changed, ROWS, strict=True):
        assert one.answer != own.answer
        assert one.answer in {other.answer for other in ROWS if other.product == own.product}
        assert one.model_copy(update={"answer": own.answer}) == own


def test_a_changed_answer_has_no_scores_of_its_writer() -> None:
    scored = [row.model_copy(update={"writer_scores": {"judge": 1.0}, "token_log_probs": (-1.0,)}) for row in ROWS]
    for changed in (*remove_contexts(scored), *shuffle_answers(scored)):
        assert changed.writer_scores is changed.token_log_probs is None
    alone = [scored[0].model_copy(update={"contexts": ()})]
    assert remove_contexts(alone) == shuffle_answers(alone) == alone


def test_which_one_is_decided_by_the_ids_alone() -> None:
    forward = {one.interaction_id: one.answer for one in shuffle_answers(ROWS)}
    backward = {one.interaction_id: one.answer for one in shuffle_answers(ROWS[::-1])}
    assert forward == backward


def test_where_all_answers_are_equal_a_row_keeps_its_own() -> None:
    alike = [interaction(answer="No.", name=f"i-{at}") for at in range(3)]
    assert shuffle_answers(alike) == alike
    assert shuffle_answers(alike[:1]) == alike[:1] and shuffle_answers([]) == []
