"""How close an answer is to the one that the expert would have given: ROUGE-L, for the paper's tables 2 and 4.

The F1 of the longest common subsequence of words, by Google's `rouge_score`, without the stemmer: that is the library's
default and Hugging Face's, so that figures compare, and a stemmer of English would favour English answers.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def rouge_l(answers: Iterable[str], ideal_answers: Iterable[str | None]) -> np.ndarray:
    """ROUGE-L F1 of every answer against its ideal answer: (rows,) in [0, 1].

    Nan where there is no ideal answer, and where it has no word that the library reads, which takes words for runs of
    a-z and 0-9: a 0 would say that the answer is far from it.
    """
    from rouge_score.rouge_scorer import RougeScorer  # with nltk, a second
    from rouge_score.tokenizers import DefaultTokenizer

    tokenizer = DefaultTokenizer()
    scorer = RougeScorer(["rougeL"], tokenizer=tokenizer)
    return np.array(
        [
            scorer.score(ideal, answer)["rougeL"].fmeasure
            if isinstance(ideal, str) and tokenizer.tokenize(ideal)  # a missing one may be None or nan
            else np.nan
            for answer, ideal in zip(answers, ideal_answers, strict=True)
        ],
        dtype=float,
    )
