from abstain.llm.signals.counterfactuals import remove_contexts, shuffle_answers
from tests.llm.signals.builders import interaction

ROWS = [
    interaction(answer=f"answer {at % 5}", name=f"i-{at}").model_copy(update={"product": "gold" if at % 2 else "blue"})
    for at in range(20)
]


def test_remove_contexts_changes_nothing_else() -> None:
    changed = remove_contexts(ROWS)
    assert all(one.contexts == () for one in changed)
    assert [one.model_copy(update={"contexts": own.contexts}) for one, own in zip(changed, ROWS, strict=True)] == ROWS


def test_shuffle_answers_swaps_within_a_product() -> None:
    changed = shuffle_answers(ROWS)
    for one, own in zip(changed, ROWS, strict=True):
        assert one.answer != own.answer
        assert one.answer in {other.answer for other in ROWS if other.product == own.product}
        assert one.model_copy(update={"answer": own.answer}) == own


def test_counterfactuals_have_no_writer_scores() -> None:
    scored = [row.model_copy(update={"writer_scores": {"judge": 1.0}, "token_log_probs": (-1.0,)}) for row in ROWS]
    for changed in (*remove_contexts(scored), *shuffle_answers(scored)):
        assert changed.writer_scores is changed.token_log_probs is None
    alone = [scored[0].model_copy(update={"contexts": ()})]
    assert remove_contexts(alone) == shuffle_answers(alone) == alone


def test_shuffle_answers_depends_on_ids_only() -> None:
    forward = {one.interaction_id: one.answer for one in shuffle_answers(ROWS)}
    backward = {one.interaction_id: one.answer for one in shuffle_answers(ROWS[::-1])}
    assert forward == backward


def test_shuffle_answers_equal_answers_stay() -> None:
    alike = [interaction(answer="No.", name=f"i-{at}") for at in range(3)]
    assert shuffle_answers(alike) == alike
    assert shuffle_answers(alike[:1]) == alike[:1] and shuffle_answers([]) == []
