"""Correctness scores of answers against reference answers, in [0, 1]: the targets of the regressors.

"An Automatic Method to Estimate Correctness of RAG" (Zhang et al.), section 4.2 and table 9: cosine similarity of
sentence embeddings and ROUGE. The two metrics of SQuAD are available as well.

Notes:

* Of several references the best one counts, separately for each metric, as in SQuAD's own evaluation.
* A reference that is empty for a metric (no text; for ROUGE no a-z or 0-9; for SQuAD only articles and punctuation) is
  skipped, and a row without a reference is nan: a 0 would mean an incorrect answer.
* Scores have six decimals. A threshold is a round number, and float32 gives 0.80000008 for 0.8; the last bits of an
  embedding depend on the other texts of its batch.
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
    """A correctness metric.

    Attributes:
        description: One line about it.
        score_pairs: Function of n answers, n references and an optional encoder to (n,) scores; nan for an invalid
            reference.
    """

    description: str
    score_pairs: Callable[[Texts, Texts, Encoder | None], np.ndarray]


def compute_correctness(
    names: Sequence[str],
    answers: Sequence[str],
    references: Sequence[Sequence[str]],
    encoder: Encoder | None = None,
) -> pd.DataFrame:
    """Score answers against their references with several metrics.

    Args:
        names: Keys of `METRICS`.
        answers: (rows,) texts.
        references: (rows,) sequences of correct answers; the best one counts. An empty sequence gives nan.
        encoder: Sentence encoder for `cosine`; None loads the embedded one if it is needed.

    Returns:
        float64 (rows, names) in [0, 1] or nan, a column for each metric.

    Raises:
        AbstainError: A name is unknown; the message lists all names.
        ValueError: Answers and references differ in length.
        TypeError: The references of a row are a string and not a list of strings.
    """
    unknown = [name for name in names if name not in METRICS]
    if unknown:
        raise AbstainError(Code.UNKNOWN_NAME, f"no correctness metric '{unknown[0]}': there are {', '.join(METRICS)}")
    if any(isinstance(row_references, str) for row_references in references):
        raise TypeError("a row's references are a list of texts, and not one text")
    pairs = [
        (row, answer, reference)
        for row, (answer, row_references) in enumerate(zip(answers, references, strict=True))
        for reference in dict.fromkeys(row_references)
    ]
    rows = np.array([row for row, _, _ in pairs], dtype=int)
    paired = [answer for _, answer, _ in pairs], [reference for _, _, reference in pairs]
    table = pd.DataFrame(index=pd.RangeIndex(len(answers)))
    for name in dict.fromkeys(names):
        best = np.full(len(answers), np.nan)
        np.fmax.at(best, rows, METRICS[name].score_pairs(*paired, encoder))  # fmax ignores nan
        table[name] = best.round(DECIMALS)
    return table


def cosine(answers: Texts, references: Texts, encoder: Encoder | None = None) -> np.ndarray:
    """Compute the cosine similarity of the sentence embeddings of answers and references, a.r / (|a| |r|).

    A negative cosine counts as 0, and so does an answer without text, which an encoder would embed like any other. Each
    distinct text is encoded once. Text beyond the encoder's limit (256 tokens for the embedded one) is not compared.

    Args:
        answers: (pairs,) texts.
        references: (pairs,) texts.
        encoder: Sentence encoder; None loads the embedded one.

    Returns:
        float64 (pairs,) in [0, 1]; nan for a reference without text.
    """
    similarities = np.array([0.0 if reference.strip() else np.nan for reference in references])
    text_pairs = zip(answers, references, strict=True)
    readable = [index for index, (answer, reference) in enumerate(text_pairs) if answer.strip() and reference.strip()]
    if readable:
        both = [answers[index] for index in readable] + [references[index] for index in readable]
        vectors = Embeddings(SentenceEncoder() if encoder is None else encoder).embed(both).astype(float)
        similarities[readable] = (vectors[: len(readable)] * vectors[len(readable) :]).sum(axis=1).clip(0, 1)
    return similarities


def squad(answers: Texts, references: Texts, metric: Literal["exact_match", "f1"]) -> np.ndarray:
    """Compute SQuAD's exact match or word F1, by torchmetrics.

    Both ignore case, ASCII punctuation and the articles a, an, the (Rajpurkar et al. 2016, section 6.1); words are
    separated by spaces, in any script.

    Args:
        answers: (pairs,) texts.
        references: (pairs,) texts.
        metric: "exact_match" or "f1".

    Returns:
        float64 (pairs,) in [0, 1]; nan for a reference without a word.
    """
    from torchmetrics.functional.text import squad as compute_squad  # lazily: importing it costs seconds

    def score(answer: str, reference: str, metric: str) -> float:
        percentages = compute_squad({"prediction_text": answer, "id": ""}, {"answers": {"text": [reference]}, "id": ""})
        return float(percentages[metric]) / 100

    has_words = {reference: not score("", reference, "exact_match") for reference in set(references)}
    pairs = zip(answers, references, strict=True)
    return np.array(
        [score(answer, reference, metric) if has_words[reference] else np.nan for answer, reference in pairs],
        dtype=float,
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
"""The available metrics by name."""
