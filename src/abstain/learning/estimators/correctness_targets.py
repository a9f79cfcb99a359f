"""Correctness scores of answers against reference answers, in [0, 1]: the targets of the regressors.

"An Automatic Method to Estimate Correctness of RAG" (Zhang et al.), section 4.2 and table 9: cosine similarity of
sentence embeddings and ROUGE; with them the two of SQuAD.

Notes:

* Of several references the best one counts, for each metric by itself, as in SQuAD's own evaluation.
* A reference that is empty for a metric (no text; for ROUGE no a-z or 0-9; for SQuAD's nothing but articles and
  punctuation) is skipped, and a row without a reference is nan: a 0 would mean an incorrect answer.
* Figures have six decimals. A threshold is a round number, and float32 gives 0.80000008 where 0.8 is meant; the last
  bits of an embedding change with the texts beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.knowledge.retrieval.embeddings import Embeddings
from abstain.knowledge.retrieval.encoder import Encoder, SentenceEncoder
from abstain.learning.metrics.rouge import rouge, rouge_l

DECIMALS = 6

Texts = Sequence[str]


@dataclass(frozen=True)
class CorrectnessMetric:
    """`score_pairs(answers, references, encoder)`: n answers, a reference each -> (n,), nan without a valid reference."""

    description: str
    score_pairs: Callable[[Texts, Texts, Encoder | None], np.ndarray]


def compute_correctness(
    names: Sequence[str],
    answers: Sequence[str],
    references: Sequence[Sequence[str]],
    encoder: Encoder | None = None,
) -> pd.DataFrame:
    """The metrics `names` of `METRICS` of every answer: a float64 column each, a row an answer, in [0, 1] or nan.

    Args:
        references: of each row any number of correct answers; nan where there is none.
        encoder: for `cosine`; None: the embedded one, loaded where it is needed.

    Raises:
        AbstainError: a name is unknown; the message lists all names.
        ValueError: answers and references are not of the same rows.
        TypeError: a row's references are one string.
    """
    unknown = [name for name in names if name not in METRICS]
    if unknown:
        raise AbstainError(Code.UNKNOWN_NAME, f"no correctness metric '{unknown[0]}': there are {', '.join(METRICS)}")
    if any(isinstance(of_row, str) for of_row in references):
        raise TypeError("a row's references are a list of texts, and not one text")
    pairs = [
        (row, answer, reference)
        for row, (answer, of_row) in enumerate(zip(answers, references, strict=True))
        for reference in dict.fromkeys(of_row)
    ]
    rows = np.array([row for row, _, _ in pairs], dtype=int)
    paired = [answer for _, answer, _ in pairs], [reference for _, _, reference in pairs]
    found = pd.DataFrame(index=pd.RangeIndex(len(answers)))
    for name in dict.fromkeys(names):
        best = np.full(len(answers), np.nan)
        np.fmax.at(best, rows, METRICS[name].score_pairs(*paired, encoder))  # fmax ignores nan
        found[name] = best.round(DECIMALS)
    return found


def cosine(answers: Texts, references: Texts, encoder: Encoder | None = None) -> np.ndarray:
    """Cosine similarity of the sentence embeddings of each answer and its reference: (pairs,) in [0, 1].

    A negative cosine counts as 0, and so does an answer without text, of which an encoder would make a vector like any
    other. Each distinct text is encoded once. What an encoder cuts off (the embedded one reads 256 tokens) is not
    compared.
    """
    found = np.array([0.0 if reference.strip() else np.nan for reference in references])
    texts = zip(answers, references, strict=True)
    read = [pair for pair, (answer, reference) in enumerate(texts) if answer.strip() and reference.strip()]
    if read:
        of_both = [answers[pair] for pair in read] + [references[pair] for pair in read]
        vectors = Embeddings(SentenceEncoder() if encoder is None else encoder).embed(of_both).astype(float)
        found[read] = (vectors[: len(read)] * vectors[len(read) :]).sum(axis=1).clip(0, 1)
    return found


def squad(answers: Texts, references: Texts, figure: Literal["exact_match", "f1"]) -> np.ndarray:
    """SQuAD's exact match or F1 of words, by torchmetrics: (pairs,) in [0, 1].

    Both read texts without case, ASCII punctuation and the articles a, an, the (Rajpurkar et al. 2016, section 6.1); a
    word is what stands between spaces, in any script.
    """
    from torchmetrics.functional.text import squad as figures_of  # lazily: importing it costs seconds

    def score(answer: str, reference: str, figure: str) -> float:
        found = figures_of({"prediction_text": answer, "id": ""}, {"answers": {"text": [reference]}, "id": ""})
        return float(found[figure]) / 100

    reads = {reference: not score("", reference, "exact_match") for reference in set(references)}
    pairs = zip(answers, references, strict=True)
    return np.array(
        [score(answer, reference, figure) if reads[reference] else np.nan for answer, reference in pairs], dtype=float
    )


METRICS: Mapping[str, CorrectnessMetric] = {
    "cosine": CorrectnessMetric("cosine similarity of the sentence embeddings; a negative one counts as 0", cosine),
    "rouge1_f1": CorrectnessMetric(
        "ROUGE-1 F1: words in common, in any order",
        lambda answers, references, _: rouge(answers, references, "rouge1", "fmeasure"),
    ),
    "rouge1_precision": CorrectnessMetric(
        "ROUGE-1 precision: the share of the answer's words that are in the reference",
        lambda answers, references, _: rouge(answers, references, "rouge1", "precision"),
    ),
    "rougeL": CorrectnessMetric(
        "ROUGE-L F1: words in common, in the same order", lambda answers, references, _: rouge_l(answers, references)
    ),
    "exact_match": CorrectnessMetric(
        "SQuAD's exact match: the same but for case, punctuation and articles",
        lambda answers, references, _: squad(answers, references, "exact_match"),
    ),
    "token_f1": CorrectnessMetric(
        "SQuAD's F1: words in common, in any order, without case, punctuation and articles",
        lambda answers, references, _: squad(answers, references, "f1"),
    ),
}
"""The available metrics by name, each with a one-line description."""
