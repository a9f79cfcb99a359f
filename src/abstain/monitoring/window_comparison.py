"""Comparison of a window's answers with earlier ones of the same version: texts, hidden states and decisions.

Notes:

* Each side is sampled by permanent random numbers, because an embedding takes milliseconds.
* Texts are embedded in memory: a stored embedding of a user's text would have to be erased with it.
* Hidden states are read from the feature cache and never computed. An answer is represented by the mean over its
  tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest

import numpy as np
import pandas as pd

from abstain.core.contracts import UNNAMED_PREFIX, Interaction
from abstain.data.decision_log.monitoring_windows import (
    Comparison,
    CoverageShares,
    ModelShares,
    Separability,
    TextComparisons,
    TopicShares,
    UnknownChunks,
    VectorComparison,
)
from abstain.data.store.splits import hash_to_unit_interval
from abstain.monitoring.drift import (
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


def compare_texts(reference: SampledAnswers, window: SampledAnswers, embed: EmbedTexts, seed: int) -> TextComparisons:
    """Test questions, answers and contexts for drift, and questions for new topics.

    Args:
        reference: Answers before the window.
        window: Answers in the window.
        embed: Embeds texts.
        seed: Seed of the tests.

    Returns:
        The results.
    """
    vectors = {name: (_embed_texts(reference, name, embed), _embed_texts(window, name, embed)) for name in TEXTS}
    (_, reference_questions), (_, window_questions) = vectors["questions"]
    novelty = measure_novelty(reference_questions, window_questions, reference.groups, window.groups, seed)
    topics = Comparison[TopicShares](
        p_value=novelty.p_value,
        statistics=TopicShares(share=novelty.share, expected=novelty.expected),
        examples=_get_ids(window, novelty.examples),
    )
    results = {
        name: compare_vectors((reference, *reference_vectors), (window, *window_vectors), seed)
        for name, (reference_vectors, window_vectors) in vectors.items()
    }
    return TextComparisons(**results, topics=topics)


def compare_states(
    reference: SampledAnswers, window: SampledAnswers, read_states: ReadCachedStates, seed: int
) -> VectorComparison:
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
        return VectorComparison(note="not judged: the states of too few answers are cached")
    return compare_vectors(sides[0], sides[1], seed)


def compare_vectors(
    reference: tuple[SampledAnswers, np.ndarray, np.ndarray],
    window: tuple[SampledAnswers, np.ndarray, np.ndarray],
    seed: int,
) -> VectorComparison:
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
        return VectorComparison(note="not judged: too few answers or documents")
    arguments = (reference[2], window[2], reference_answers.groups, window_answers.groups, seed)
    means, classifier = permutation_test(*arguments), classifier_two_sample_test(*arguments)
    first = min((means, classifier), key=lambda result: (np.isnan(result.p_value), result.p_value))
    return VectorComparison(
        p_value=combine_p_values([means.p_value, classifier.p_value]),
        statistics=Separability(auc=classifier.auc),
        examples=_get_ids(window_answers, first.examples),
    )


def compare_coverage(reference: SampledAnswers, window: SampledAnswers, seed: int) -> Comparison[CoverageShares]:
    """Test whether the share of shown answers has changed, by groups.

    Args:
        reference: Answers before the window.
        window: Answers in the window.
        seed: Seed of the test.

    Returns:
        The result.
    """
    sides = [side.decisions["shown"].to_numpy(float) for side in (reference, window)]
    result = permutation_test(sides[0][:, None], sides[1][:, None], reference.groups, window.groups, seed)
    shares = CoverageShares(before=float(sides[0].mean()), now=float(sides[1].mean()))
    return Comparison(p_value=result.p_value, statistics=shares)


def measure_unknown_chunks(window: SampledAnswers, known_chunks: Collection[str]) -> Comparison[UnknownChunks]:
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
    return Comparison(statistics=UnknownChunks(share=share), examples=tuple(ids[-EXAMPLES:]))


def compare_answer_models(reference: SampledAnswers, window: SampledAnswers) -> Comparison[ModelShares]:
    """Compare the models that wrote the answers.

    Args:
        reference: Answers before the window.
        window: Answers in the window.

    Returns:
        The shares; a model is new if it wrote less than `MAX_RARE_SHARE` of the earlier answers, and none is new
        without earlier answers.
    """
    reference_shares, window_shares = _compute_model_shares(reference), _compute_model_shares(window)
    new_models = {
        model for model in window_shares if reference_shares and reference_shares.get(model, 0.0) < MAX_RARE_SHARE
    }
    examples = [row.interaction_id for row in window.interactions if row.model in new_models]
    new_share = sum(window_shares[model] for model in new_models)
    shares = ModelShares(before=reference_shares, now=window_shares, new=new_share)
    return Comparison(statistics=shares, examples=tuple(examples[-EXAMPLES:]))


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
