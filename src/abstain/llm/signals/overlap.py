"""Overlap: does the answer merely copy the chunks?

This is K-Precision, "the proportion of tokens in the model response that are present in the knowledge", of the
automatic measures the one that agrees best with people about whether an answer rests on its passages (Adlakha et al.
2024, "Evaluating Correctness and Faithfulness of Instruction-Following Models for Question Answering"). As with SQuAD's
precision, a word counts as often as the chunks have it, and case, punctuation and articles do not count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from torch import Tensor

from abstain.core.contracts import Interaction
from abstain.core.scorer_names import OVERLAP
from abstain.llm.signals.base import Signal

ARTICLES = frozenset({"a", "an", "the"})


def compute_overlap(answer: str, chunks: Sequence[str]) -> float:
    """Compute the share of the answer's words that are in the chunks.

    Args:
        answer: Text of the answer.
        chunks: Texts of the chunks, together one passage.

    Returns:
        sum_w min(count of w in the answer, in the chunks) / words of the answer; nan without a word or a chunk.
    """
    answer_words = _count_words(answer)
    if not answer_words or not chunks:
        return float("nan")
    return (answer_words & _count_words(" ".join(chunks))).total() / answer_words.total()


def _count_words(text: str) -> Counter[str]:
    return Counter(word for word in re.findall(r"\w+", text.casefold()) if word not in ARTICLES)


def _score_row(interaction: Interaction, features: Sequence[Tensor]) -> float:
    return compute_overlap(interaction.answer, [context.text for context in interaction.contexts])


OVERLAP_SIGNAL = Signal(OVERLAP, (), _score_row)
"""The overlap as a scorer; it needs no model."""
