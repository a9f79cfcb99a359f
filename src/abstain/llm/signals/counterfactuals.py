"""Counterfactual answers for the report's audits: does a confidence depend on context and answer?

`context_removed`: nothing was retrieved. A scorer that ranks as well without the context does not use it.
`answers_shuffled`: each question with the answer to another one. Correct original answers should score far higher.

A changed answer has no scores of its writer: the assistant gave them to another prompt.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence

from abstain.core.contracts import Interaction

CLEARED_WRITER_FIELDS = {"writer": None, "token_log_probs": None}
Variant = Callable[[Sequence[Interaction]], list[Interaction]]


def remove_contexts(interactions: Sequence[Interaction]) -> list[Interaction]:
    """The same, in order, without their chunks."""
    return [
        one.model_copy(update={"contexts": (), **CLEARED_WRITER_FIELDS}) if one.contexts else one
        for one in interactions
    ]


def shuffle_answers(interactions: Sequence[Interaction]) -> list[Interaction]:
    """Each, in order, with the answer to another question about the same product, of the same assistant's making.

    Which one is decided by the ids alone, so that the same rows are always changed alike. Where all answers about a
    product are equal, a row keeps its own.
    """
    by_product: defaultdict[str | None, list[int]] = defaultdict(list)
    order = sorted(range(len(interactions)), key=lambda at: _mixed(interactions[at].interaction_id))
    for at in order:
        by_product[interactions[at].product].append(at)
    answers = [one.answer for one in interactions]
    for rows in by_product.values():
        for place, at in enumerate(rows):
            own = interactions[at].answer
            others = (interactions[rows[(place + step) % len(rows)]].answer for step in range(1, len(rows)))
            answers[at] = next((answer for answer in others if answer != own), own)
    return [
        one if answer == one.answer else one.model_copy(update={"answer": answer, **CLEARED_WRITER_FIELDS})
        for one, answer in zip(interactions, answers, strict=True)
    ]


COUNTERFACTUALS: dict[str, Variant] = {"context_removed": remove_contexts, "answers_shuffled": shuffle_answers}


def _mixed(interaction_id: str) -> str:
    return hashlib.sha256(interaction_id.encode()).hexdigest()
