"""Counterfactual answers for the audits of the report: does a confidence depend on context and answer?

`context_removed`: nothing was retrieved. A scorer that ranks as well without the context does not use it.
`answers_shuffled`: each question has the answer to another one. Correct original answers should score far higher.

A changed answer has no scores of its writer: the assistant gave them for another prompt.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence

from abstain.core.contracts import Interaction

CLEARED_WRITER_FIELDS = {"writer_scores": None, "token_log_probs": None}
Variant = Callable[[Sequence[Interaction]], list[Interaction]]


def remove_contexts(interactions: Sequence[Interaction]) -> list[Interaction]:
    """Return copies of the interactions without their chunks, in order."""
    return [
        interaction.model_copy(update={"contexts": (), **CLEARED_WRITER_FIELDS})
        if interaction.contexts
        else interaction
        for interaction in interactions
    ]


def shuffle_answers(interactions: Sequence[Interaction]) -> list[Interaction]:
    """Give each interaction the answer of the same assistant to another question about the same product.

    Which answer it is depends on the ids only, so the same rows always change in the same way. If all answers about a
    product are equal, a row keeps its own.

    Args:
        interactions: Answered questions.

    Returns:
        The changed interactions, in order.
    """
    indices_by_product: defaultdict[str | None, list[int]] = defaultdict(list)
    order = sorted(range(len(interactions)), key=lambda index: _digest_id(interactions[index].interaction_id))
    for index in order:
        indices_by_product[interactions[index].product].append(index)
    answers = [interaction.answer for interaction in interactions]
    for indices in indices_by_product.values():
        for position, index in enumerate(indices):
            original = interactions[index].answer
            candidates = (
                interactions[indices[(position + step) % len(indices)]].answer for step in range(1, len(indices))
            )
            answers[index] = next((answer for answer in candidates if answer != original), original)
    return [
        interaction
        if answer == interaction.answer
        else interaction.model_copy(update={"answer": answer, **CLEARED_WRITER_FIELDS})
        for interaction, answer in zip(interactions, answers, strict=True)
    ]


COUNTERFACTUALS: dict[str, Variant] = {"context_removed": remove_contexts, "answers_shuffled": shuffle_answers}


def _digest_id(interaction_id: str) -> str:
    return hashlib.sha256(interaction_id.encode()).hexdigest()
