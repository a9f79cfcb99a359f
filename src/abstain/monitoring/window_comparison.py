"""Comparison of a window's answers with earlier ones of the same version: texts, hidden states and decisions.

Notes:

* Each side is sampled by permanent random numbers, because an embedding takes milliseconds.
* Texts are embedded in memory: a stored embedding of a user's text would have to be erased with it.
* Hidden states are read from the feature cache and never computed. An answer is represented by the mean over its
  tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Any

import numpy as np
import pandas as pd

from abstain.core.contracts import UNNAMED_PREFIX, Interaction
from abstain.data.store.splits import hash_to_unit_interval
from abstain.monitoring.drift import (
    DriftResult,
    classifier_two_sample_test,
    combine_p_values,
    measure_novelty,
    permutation_test,
)

MAX_ANSWERS = 600
"""Largest number of answers on each side."""
MIN_ANSWERS, MIN_DOCUMENTS = 50, 5
"""With fewer on either side nothing is compared, because answers of one group arrive together."""
EXAMPLES = 5
MAX_RARE_SHARE = 0.01
TEXTS = ("questions", "answers", "contexts")

EmbedTexts = Callable[[Sequence[str]], np.ndarray]
"""Embeds n texts into (n, d)."""
ReadCachedStates = Callable[[Sequence[Interaction]], tuple[np.ndarray, np.ndarray]]
"""Reads the cached states of n answers: (n,) bool, which have any, and their means over tokens, (cached, d)."""


@dataclass(frozen=True)
class SampledAnswers:
    """Sampled decisions of one side whose texts are kept.

    Attributes:
        interactions: The answers.
        decisions: Their decisions, in the same order.
    """

    interactions: list[Interaction]
    decisions: pd.DataFrame

    @property
    def groups(self) -> np.ndarray:
        """(n,) group ids."""
        return np.array([row.split_group for row in self.interactions], object)

    @property
    def has_enough(self) -> bool:
        """Whether there are enough answers and groups for a comparison."""
        return len(self.interactions) >= MIN_ANSWERS and len(set(self.groups)) >= MIN_DOCUMENTS

    def filter(self, mask: np.ndarray) -> SampledAnswers:
        """Select answers.

        Args:
            mask: (n,) bool.

        Returns:
            The selected answers.
        """
        interactions = [row for row, is_kept in zip(self.interactions, mask, strict=True) if is_kept]
        return SampledAnswers(interactions, self.decisions[mask])


@dataclass(frozen=True)
class ComparisonResult:
    """The result of one comparison.

    Attributes:
        p_value: p-value; None if nothing was judged.
        statistics: Statistics for alarms and pages.
        examples: Ids of answers that differ most.
        note: Why nothing was judged; "" otherwise.
    """

    p_value: float | None = None
    statistics: Mapping[str, Any] = field(default_factory=dict)
    examples: tuple[str, ...] = ()
    note: str = ""

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> ComparisonResult:
        """Restore a result from JSON.

        Args:
            content: Fields as `asdict` gave them, read back from JSON.

        Returns:
            The result.
        """
        return cls(**{**content, "examples": tuple(content["examples"])})


def sample_answers(
    decisions: pd.DataFrame,
    get_interactions: Callable[[Sequence[str]], Mapping[str, Interaction]],
    max_answers: int = MAX_ANSWERS,
) -> SampledAnswers:
    """Sample decisions whose texts are kept.

    Args:
        decisions: Decisions of one side.
        get_interactions: Reads interactions by id.
        max_answers: Largest size of the sample.

    Returns:
        The sample, in the order of `decisions`.
    """
    kept_ids = decisions.index[decisions["text_state"] == "kept"]
    sampled_ids = set(
        nsmallest(
            max_answers, kept_ids, key=lambda interaction_id: hash_to_unit_interval(0, f"monitoring/{interaction_id}")
        )
    )
    interaction_by_id = get_interactions(
        [interaction_id for interaction_id in kept_ids if interaction_id in sampled_ids]
    )
    ids = [interaction_id for interaction_id in kept_ids if interaction_id in interaction_by_id]
    return SampledAnswers([interaction_by_id[interaction_id] for interaction_id in ids], decisions.loc[ids])


def compare_texts(
    reference: SampledAnswers, window: SampledAnswers, embed: EmbedTexts, seed: int
) -> dict[str, ComparisonResult]:
    """Test questions, answers and contexts for drift, and questions for new topics.

    Args:
        reference: Answers before the window.
        window: Answers in the window.
        embed: Embeds texts.
        seed: Seed of the tests.

    Returns:
        One result for each name in `TEXTS`, and `topics` for questions that are unlike any earlier one.
    """
    results = {}
    vectors = {name: (_embed_texts(reference, name, embed), _embed_texts(window, name, embed)) for name in TEXTS}
    for name, (reference_vectors, window_vectors) in vectors.items():
        results[name] = compare_vectors((reference, *reference_vectors), (window, *window_vectors), seed)
    (_, reference_questions), (_, window_questions) = vectors["questions"]
    novelty = measure_novelty(reference_questions, window_questions, reference.groups, window.groups, seed)
    statistics = {"share": finite_or_none(novelty.share), "expected": finite_or_none(novelty.expected)}
    results["topics"] = ComparisonResult(
        finite_or_none(novelty.p_value), statistics, _get_ids(window, novelty.examples)
    )
    return results


def compare_states(
    reference: SampledAnswers, window: SampledAnswers, read_states: ReadCachedStates, seed: int
) -> ComparisonResult:
    """Test hidden states for drift, if enough answers on both sides have cached states.

    The gate caches the states of the first answers of a day, up to a fixed number.

    Args:
        reference: Answers before the window.
        window: Answers in the window.
        read_states: Reads cached states.
        seed: Seed of the tests.

    Returns:
        The result.
    """
    sides = [(side, *read_states(side.interactions)) for side in (reference, window)]
    if not all(side.filter(has_states).has_enough for side, has_states, _ in sides):
        return ComparisonResult(note="not judged: the states of too few answers are cached")
    return compare_vectors(sides[0], sides[1], seed)


def compare_vectors(
    reference: tuple[SampledAnswers, np.ndarray, np.ndarray],
    window: tuple[SampledAnswers, np.ndarray, np.ndarray],
    seed: int,
) -> ComparisonResult:
    """Test vectors for drift, by a permutation test and a classifier.

    Args:
        reference: Answers before the window, (n,) bool mask of those with a vector, and their vectors.
        window: The same for the window.
        seed: Seed of the tests.

    Returns:
        The result, with the p-values of both tests combined.
    """
    reference_answers, window_answers = reference[0].filter(reference[1]), window[0].filter(window[1])
    if not (reference_answers.has_enough and window_answers.has_enough):
        return ComparisonResult(note="not judged: too few answers or documents")
    arguments = (reference[2], window[2], reference_answers.groups, window_answers.groups, seed)
    means, classifier = permutation_test(*arguments), classifier_two_sample_test(*arguments)
    first = min((means, classifier), key=lambda result: (np.isnan(result.p_value), result.p_value))
    return ComparisonResult(
        finite_or_none(combine_p_values([means.p_value, classifier.p_value])),
        {"auc": finite_or_none(classifier.auc)},
        _get_ids(window_answers, first.examples),
    )


def compare_share(name: str, reference: SampledAnswers, window: SampledAnswers, seed: int) -> ComparisonResult:
    """Test whether the share of answers with a property has changed, by groups.

    Args:
        name: Bool column of `decisions`.
        reference: Answers before the window.
        window: Answers in the window.
        seed: Seed of the test.

    Returns:
        The result with the shares `before` and `now`.
    """
    sides = [side.decisions[name].to_numpy(float) for side in (reference, window)]
    result: DriftResult = permutation_test(sides[0][:, None], sides[1][:, None], reference.groups, window.groups, seed)
    return ComparisonResult(
        finite_or_none(result.p_value), {"before": float(sides[0].mean()), "now": float(sides[1].mean())}
    )


def measure_unknown_chunks(window: SampledAnswers, known_chunks: Collection[str]) -> ComparisonResult:
    """Measure the share of answers with a chunk that is not in the knowledge base.

    Args:
        window: Answers in the window.
        known_chunks: Chunk ids of the knowledge base. Contexts without an id are left out.

    Returns:
        The share and examples; there is no test.
    """
    ids = [
        row.interaction_id
        for row in window.interactions
        if any(
            context.chunk_id not in known_chunks and not context.chunk_id.startswith(UNNAMED_PREFIX)
            for context in row.contexts
        )
    ]
    share = len(ids) / len(window.interactions) if window.interactions else 0.0
    return ComparisonResult(None, {"share": share}, tuple(ids[-EXAMPLES:]))


def compare_answer_models(reference: SampledAnswers, window: SampledAnswers) -> ComparisonResult:
    """Compare the models that wrote the answers.

    Args:
        reference: Answers before the window.
        window: Answers in the window.

    Returns:
        `before` and `now`: model -> share, most frequent first. `new`: share of answers by models that wrote less than
        `MAX_RARE_SHARE` of the earlier answers; 0 without earlier answers.
    """
    reference_shares, window_shares = _compute_model_shares(reference), _compute_model_shares(window)
    new_models = {
        model for model in window_shares if reference_shares and reference_shares.get(model, 0.0) < MAX_RARE_SHARE
    }
    examples = [row.interaction_id for row in window.interactions if row.model in new_models]
    shares = {
        "before": reference_shares,
        "now": window_shares,
        "new": sum(window_shares[model] for model in new_models),
    }
    return ComparisonResult(None, shares, tuple(examples[-EXAMPLES:]))


def _compute_model_shares(side: SampledAnswers) -> dict[str, float]:
    shares = pd.Series([row.model for row in side.interactions], dtype="str").value_counts(normalize=True)
    return {str(model): round(float(share), 4) for model, share in shares.items()}


def _embed_texts(side: SampledAnswers, name: str, embed: EmbedTexts) -> tuple[np.ndarray, np.ndarray]:
    """Embed one kind of text; contexts are averaged over chunks.

    Returns:
        (n,) bool, which answers have such a text, and their vectors.
    """
    if name != "contexts":
        texts = [row.question if name == "questions" else row.answer for row in side.interactions]
        return np.ones(len(texts), bool), embed(texts)
    has_contexts = np.array([bool(row.contexts) for row in side.interactions], bool)
    chunks = list(dict.fromkeys(context.text for row in side.interactions for context in row.contexts))
    index_by_text, vectors = {text: index for index, text in enumerate(chunks)}, embed(chunks)
    means = [
        vectors[[index_by_text[context.text] for context in row.contexts]].mean(axis=0)
        for row in side.interactions
        if row.contexts
    ]
    return has_contexts, np.array(means).reshape(len(means), -1)


def _get_ids(side: SampledAnswers, indices: Sequence[int]) -> tuple[str, ...]:
    return tuple(side.interactions[index].interaction_id for index in indices[:EXAMPLES])


def finite_or_none(value: float | None) -> float | None:
    """Return `value`, or None if it is undefined, because JSON has neither nan nor infinity.

    Args:
        value: A number or None.

    Returns:
        The number or None.
    """
    return None if value is None or not np.isfinite(value) else float(value)
