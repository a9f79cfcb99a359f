"""ROUGE of answers against the reviewers' ideal answers, for the papers' tables.

This is Google's `rouge_score` without the stemmer. That is the default of the library and of Hugging Face, so values
are comparable, and a stemmer of English would favour English answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np

RougeType = Literal["rouge1", "rougeL"]
Metric = Literal["precision", "recall", "fmeasure"]


def rouge_l(answers: Iterable[str], ideal_answers: Iterable[str | None]) -> np.ndarray:
    """Compute the ROUGE-L F1 of answers: the longest common subsequence of words.

    Args:
        answers: (rows,) texts.
        ideal_answers: (rows,) reference texts; None or nan where there is none.

    Returns:
        float64 (rows,) in [0, 1]; nan where there is no valid reference (`rouge`).
    """
    return rouge(answers, ideal_answers, "rougeL", "fmeasure")


def rouge(
    answers: Iterable[str], ideal_answers: Iterable[str | None], rouge_type: RougeType, metric: Metric
) -> np.ndarray:
    """Compute one kind of ROUGE of answers against ideal answers.

    With n common words (rouge1) or n words in the longest common subsequence (rougeL): precision = n / words of the
    answer, recall = n / words of the ideal answer, fmeasure = 2 P R / (P + R).

    Args:
        answers: (rows,) texts. An answer without a word scores 0.
        ideal_answers: (rows,) reference texts; None or nan where there is none.
        rouge_type: "rouge1" or "rougeL".
        metric: "precision", "recall" or "fmeasure".

    Returns:
        float64 (rows,) in [0, 1]; nan where the ideal answer is missing or has no word that the library recognizes
        (runs of a-z and 0-9). A 0 there would claim that the answer differs from it.
    """
    from rouge_score.rouge_scorer import RougeScorer  # lazily: it imports nltk, which takes a second
    from rouge_score.tokenizers import DefaultTokenizer

    tokenizer = DefaultTokenizer()
    scorer = RougeScorer([rouge_type], tokenizer=tokenizer)
    return np.array(
        [
            getattr(scorer.score(ideal, answer)[rouge_type], metric)
            if isinstance(ideal, str) and tokenizer.tokenize(ideal)  # a missing one may be None or nan
            else np.nan
            for answer, ideal in zip(answers, ideal_answers, strict=True)
        ],
        dtype=float,
    )
