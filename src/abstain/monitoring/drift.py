"""Tests whether the vectors of a window differ from earlier ones, which keep answers of a group together.

Vectors are sentence embeddings or pooled hidden states. Each test uses at most `MAX_ROWS` rows of each side, so that it
takes a few seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from abstain.monitoring.group_permutation import GroupedSamples, compute_p_value, permute_labels

MAX_ROWS = 2000
N_COMPONENTS = 32
PROJECTION_DIMENSION = 256
"""Longer vectors are first projected at random to this number of dimensions, which preserves distances."""
MAX_EXAMPLES = 5
N_NEIGHBOURS = 5
NOVELTY_QUANTILE = 0.05
"""A row is new if it is farther from the reference than all but this share of the reference rows."""


@dataclass(frozen=True)
class DriftResult:
    """The result of a two-sample test.

    Attributes:
        statistic: For `permutation_test`, the squared distance of the means in units of its mean over permutations; for
            the classifier, its AUROC.
        p_value: p-value; nan if there is nothing to compare.
        auc: AUROC of the classifier that separates the window from earlier rows; None for other tests.
        examples: Indices of the window's rows that differ most, the most different first.
    """

    statistic: float
    p_value: float
    auc: float | None
    examples: list[int]


@dataclass(frozen=True)
class NoveltyResult:
    """The share of the window's rows that are unlike any earlier row.

    Attributes:
        share: Observed share.
        expected: Expected share if nothing changed.
        p_value: p-value of a share that is not higher; nan if there is nothing to compare.
        examples: Indices of the newest rows, the newest first.
    """

    share: float
    expected: float
    p_value: float
    examples: list[int]


@dataclass(frozen=True)
class _Samples:
    """Rows of reference and window, thinned to `MAX_ROWS` each.

    Attributes:
        vectors: (rows, d) reduced vectors.
        sides: Groups and sides of the rows.
        window_index: Index of each window row in the whole window.
    """

    vectors: np.ndarray
    sides: GroupedSamples
    window_index: np.ndarray

    def get_top_examples(self, score: np.ndarray) -> list[int]:
        """Return the window indices of the rows with the highest score; `score` is (rows,) over both sides."""
        window_score = score[self.sides.in_window]
        return [int(index) for index in self.window_index[np.argsort(-window_score, kind="stable")[:MAX_EXAMPLES]]]


def permutation_test(
    reference: np.ndarray, window: np.ndarray, reference_groups: np.ndarray, window_groups: np.ndarray, seed: int
) -> DriftResult:
    """Test whether the means of reference and window differ, by permutations that keep groups together.

    Three differences are tested, each as the squared distance of means on the leading principal components: over all
    groups, summed over groups (some of which may have changed), and new groups against earlier groups.

    Args:
        reference: (n, d) vectors before the window.
        window: (m, d) vectors in the window.
        reference_groups: (n,) group ids.
        window_groups: (m,) group ids.
        seed: Seed of samples and permutations.

    Returns:
        The largest of the three ratios and the p-value of the most extreme one.
    """
    generator = np.random.default_rng(seed)
    samples = _prepare_samples(reference, window, reference_groups, window_groups, generator)
    if not samples.sides.is_testable:
        return DriftResult(float("nan"), float("nan"), None, [])
    values, sides = samples.vectors, samples.sides
    statistics = np.stack(list(_compute_distances(values, sides, generator)), axis=1)
    ratio = statistics[0] / np.maximum(statistics[1:].mean(axis=0), 1e-12)
    reference_mean = values[~sides.in_window].mean(axis=0)
    direction = values[sides.in_window].mean(axis=0) - reference_mean
    examples = samples.get_top_examples((values - reference_mean) @ direction)
    return DriftResult(float(ratio.max()), compute_p_value(statistics), None, examples)


def _compute_distances(
    values: np.ndarray, sides: GroupedSamples, generator: np.random.Generator
) -> Iterable[np.ndarray]:
    """Yield squared distances of means, (1 + permutations,) each; the first entry is for the true labels."""
    if sides.in_both.any():
        yield from _sum_within_groups(sides.permute_rows(generator), sides.center_within_groups(values), sides)
    if len(sides.group_representatives):
        means, is_new = sides.compute_group_means(values)
        yield ((permute_labels(is_new, generator).astype(float) @ (means - means.mean(axis=0))) ** 2).sum(axis=1)


def _sum_within_groups(labels: np.ndarray, centred: np.ndarray, sides: GroupedSamples) -> tuple[np.ndarray, np.ndarray]:
    """Sum the window's rows, each less the mean of its group.

    Returns:
        The squared sum over all rows, and the sum over groups of each group's squared sum in units of its variance.
    """
    total, squares = np.zeros((len(labels), centred.shape[1])), np.zeros(len(labels))
    for group in np.unique(sides.group[sides.in_both]):
        rows = np.flatnonzero(sides.group == group)
        sums = labels[:, rows].astype(centred.dtype) @ centred[rows]
        n_window = sides.in_window[rows].sum()
        total += sums
        squares += (sums**2).sum(axis=1) * len(rows) / (n_window * (len(rows) - n_window))
    return (total**2).sum(axis=1), squares


def classifier_two_sample_test(
    reference: np.ndarray, window: np.ndarray, reference_groups: np.ndarray, window_groups: np.ndarray, seed: int
) -> DriftResult:
    """Test whether a classifier can separate window and reference (Lopez-Paz and Oquab 2017).

    Logistic regression on one half of the groups scores the other half, and vice versa. The scores of a half are
    compared like the vectors of `permutation_test`, and the two p-values are combined. Models of more folds would share
    most of their training rows, and their scores would differ by chance more than permutations do.

    Args:
        reference: (n, d) vectors before the window.
        window: (m, d) vectors in the window.
        reference_groups: (n,) group ids.
        window_groups: (m,) group ids.
        seed: Seed of samples and permutations.

    Returns:
        The AUROC as `statistic` and `auc`, and the combined p-value; nan with fewer than two groups.
    """
    generator = np.random.default_rng(seed)
    samples = _prepare_samples(reference, window, reference_groups, window_groups, generator)
    sides = samples.sides
    if not sides.is_testable or len(np.unique(sides.group)) < 2:
        return DriftResult(float("nan"), float("nan"), None, [])
    from sklearn.metrics import roc_auc_score

    scores, p_values = np.zeros(len(sides.group)), []
    for train, test in _split_halves(sides):
        scores[test] = _score_rows(samples.vectors, sides.in_window, train, test)
        half_scores, in_window = scores[test, None], sides.in_window
        half = GroupedSamples.from_groups(sides.group[test & ~in_window], sides.group[test & in_window], generator)
        if half.is_testable:
            p_values.append(
                compute_p_value(np.stack(list(_compute_differences(half_scores, half_scores, half, generator)), axis=1))
            )
    auc = float(roc_auc_score(sides.in_window, scores))
    return DriftResult(auc, combine_p_values(p_values), auc, samples.get_top_examples(scores))


def _split_halves(sides: GroupedSamples) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    """Yield train and test masks (rows,) for two halves of the groups with about equally many rows."""
    from sklearn.model_selection import GroupKFold

    for train, test in GroupKFold(2).split(sides.group, groups=sides.group):
        masks = np.zeros((2, len(sides.group)), bool)
        masks[0, train] = masks[1, test] = True
        yield masks[0], masks[1]


def _score_rows(values: np.ndarray, in_window: np.ndarray, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Return standardized scores of the test rows; 0 if the training rows are all of one side."""
    from sklearn.linear_model import LogisticRegression

    if len(np.unique(in_window[train])) < 2:
        return np.zeros(test.sum())
    scaled = values / np.maximum(values.std(axis=0), 1e-12)
    model = LogisticRegression(C=0.01, class_weight="balanced", max_iter=200).fit(scaled[train], in_window[train])
    scores = model.decision_function(scaled[test])
    return np.asarray((scores - scores.mean()) / max(float(scores.std()), 1e-12))


def _compute_differences(
    within_scores: np.ndarray, group_scores: np.ndarray, sides: GroupedSamples, generator: np.random.Generator
) -> Iterable[np.ndarray]:
    """Yield how much higher the window is, (1 + permutations,) each; the first entry is for the true labels.

    `within_scores` (rows, 1) is compared within groups of both sides, `group_scores` (rows, 1) between new and earlier
    groups.
    """
    if sides.in_both.any():
        yield (sides.permute_rows(generator).astype(np.float32) @ sides.center_within_groups(within_scores))[:, 0]
    if len(sides.group_representatives):
        means, is_new = sides.compute_group_means(group_scores)
        yield (permute_labels(is_new, generator).astype(float) @ (means - means.mean(axis=0)))[:, 0]


def measure_novelty(
    reference: np.ndarray, window: np.ndarray, reference_groups: np.ndarray, window_groups: np.ndarray, seed: int
) -> NoveltyResult:
    """Measure how many rows of the window are unlike any reference row.

    The distance of a row is the mean cosine distance to its nearest reference rows. A row is new if it is farther away
    than all but `NOVELTY_QUANTILE` of the reference rows are: rows of known groups are compared with the distances of
    reference rows to all others, rows of new groups with the distances to other groups.

    Args:
        reference: (n, d) vectors before the window.
        window: (m, d) vectors in the window.
        reference_groups: (n,) group ids.
        window_groups: (m,) group ids.
        seed: Seed of samples and permutations.

    Returns:
        Observed and expected share, p-value, and the newest rows.
    """
    generator = np.random.default_rng(seed)
    samples = _prepare_samples(reference, window, reference_groups, window_groups, generator, reduced=False)
    sides = samples.sides
    if not sides.is_testable:
        return NoveltyResult(float("nan"), float("nan"), float("nan"), [])
    to_all, to_as_many, to_others = _measure_nearest_distances(samples.vectors, sides, generator)
    relative_distance = np.where(
        sides.in_both, *(distance / _compute_limit(distance[~sides.in_window]) for distance in (to_all, to_others))
    )
    share = float((relative_distance > 1)[sides.in_window].mean())
    # The limit is computed over both sides: a permutation test needs one that does not depend on which rows are in the
    # window.
    is_far, is_far_from_others = (
        (distance > _compute_limit(distance))[:, None].astype(float) for distance in (to_as_many, to_others)
    )
    statistics = np.stack(list(_compute_differences(is_far, is_far_from_others, sides, generator)), axis=1)
    return NoveltyResult(
        share, NOVELTY_QUANTILE, compute_p_value(statistics), samples.get_top_examples(relative_distance)
    )


def _compute_limit(distance: np.ndarray) -> float:
    """Return the distance that all but `NOVELTY_QUANTILE` of the rows (rows,) stay within."""
    return max(float(np.quantile(distance, 1 - NOVELTY_QUANTILE)), 1e-12)


def _measure_nearest_distances(
    vectors: np.ndarray, sides: GroupedSamples, generator: np.random.Generator
) -> tuple[np.ndarray, ...]:
    """Compute the mean cosine distance of each row to its nearest reference rows, three times (rows,).

    First to all other rows. Second to equally many: a reference row has one row fewer of its own group to be near to,
    so each window row leaves out one such row at random. Third to rows of other groups.
    """
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    reference_rows = np.flatnonzero(~sides.in_window)
    similarity = unit @ unit[reference_rows].T
    is_same_group = sides.group[:, None] == sides.group[reference_rows]
    similarity[reference_rows, np.arange(len(reference_rows))] = -np.inf
    to_all = _compute_mean_distance(similarity)
    spared_row = np.where(is_same_group, generator.random(is_same_group.shape, np.float32), -1).argmax(axis=1)
    rows = np.flatnonzero(is_same_group.any(axis=1) & sides.in_window)
    similarity[rows, spared_row[rows]] = -np.inf
    to_as_many = _compute_mean_distance(similarity)
    similarity[is_same_group] = -np.inf
    return to_all, to_as_many, _compute_mean_distance(similarity)


def _compute_mean_distance(similarity: np.ndarray) -> np.ndarray:
    count = min(N_NEIGHBOURS, similarity.shape[1])
    nearest = np.partition(similarity, similarity.shape[1] - count, axis=1)[:, -count:]
    is_finite = np.isfinite(nearest)
    return np.asarray(1 - np.where(is_finite, nearest, 0).sum(axis=1) / np.maximum(is_finite.sum(axis=1), 1))


def _prepare_samples(
    reference: np.ndarray,
    window: np.ndarray,
    reference_groups: np.ndarray,
    window_groups: np.ndarray,
    generator: np.random.Generator,
    reduced: bool = True,
) -> _Samples:
    reference_rows, window_rows = (np.sort(generator.permutation(len(side))[:MAX_ROWS]) for side in (reference, window))
    vectors = np.concatenate([reference[reference_rows], window[window_rows]]).astype(np.float32)
    sides = GroupedSamples.from_groups(
        np.asarray(reference_groups)[reference_rows], np.asarray(window_groups)[window_rows], generator
    )
    if vectors.shape[1] > PROJECTION_DIMENSION:
        projection = generator.standard_normal((vectors.shape[1], PROJECTION_DIMENSION), np.float32) / np.float32(
            PROJECTION_DIMENSION**0.5
        )
        vectors = vectors @ projection
    if reduced and sides.is_testable:
        from sklearn.decomposition import PCA

        count = min(N_COMPONENTS, *vectors.shape)
        vectors = PCA(count, svd_solver="covariance_eigh").fit_transform(vectors)
    return _Samples(vectors, sides, window_rows)


def combine_p_values(p_values: Iterable[float]) -> float:
    """Combine p-values of tests that raise the same alarm (Bonferroni).

    Args:
        p_values: The p-values; nan ones are not counted.

    Returns:
        One p-value; nan if there is none.
    """
    finite = [value for value in p_values if not np.isnan(value)]
    return min(1.0, len(finite) * min(finite)) if finite else float("nan")
