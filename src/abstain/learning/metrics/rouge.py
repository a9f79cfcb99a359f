"""ROUGE of answers against the reviewers' ideal answers, for the papers' tables.

Google's `rouge_score`, without the stemmer: that is the library's default and Hugging Face's, so that figures compare,
and a stemmer of English would favour English answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np

Kind = Literal["rouge1", "rougeL"]
Figure = Literal["precision", "recall", "fmeasure"]


def rouge_l(answers: Iterable[str], ideal_answers: Iterable[str | None]) -> np.ndarray:
    """ROUGE-L F1, of the longest common subsequence of words; see `rouge`."""
    return rouge(answers, ideal_answers, "rougeL", "fmeasure")


def rouge(answers: Iterable[str], ideal_answers: Iterable[str | None], kind: Kind, figure: Figure) -> np.ndarray:
    """One figure of one kind of ROUGE of every answer against its ideal answer: (rows,) float64 in [0, 1].

    Precision is of the answer's words, recall of the ideal answer's. Nan where there is no ideal answer, and where it
    has no word that the library reads (runs of a-z and 0-9): a 0 would mean that the answer is far from it. An answer
    without such a word scores 0.
    """
    from rouge_score.rouge_scorer import RougeScorer  # with nltk, a second
    from rouge_score.tokenizers import DefaultTokenizer

    tokenizer = DefaultTokenizer()
    scorer = RougeScorer([kind], tokenizer=tokenizer)
    return np.array(
        [
            getattr(scorer.score(ideal, answer)[kind], figure)
            if isinstance(ideal, str) and tokenizer.tokenize(ideal)  # a missing one may be None or nan
            else np.nan
            for answer, ideal in zip(answers, ideal_answers, strict=True)
        ],
        dtype=float,
    )
