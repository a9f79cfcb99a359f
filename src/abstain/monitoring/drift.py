"""Do the vectors of a window differ from those before it? Tests that take answers about one document together.

Vectors are sentence embeddings or pooled hidden states. Each test is of at most `ROWS` rows a side, so that it takes
seconds at most.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from abstain.monitoring.group_permutation import GroupedSamples, compute_p_value, permute_labels

ROWS = 2000
COMPONENTS = 32
PROJECTION_DIMENSION = 256
"""Longer vectors are projected at random to this many dimensions first, which keeps distances."""
EXAMPLES = 5
NEIGHBOURS = 5
NOVELTY_QUANTILE = 0.05
"""A row is new where it is farther from the reference than all but this share of the reference is from itself."""


@dataclass(frozen=True)
class DriftResult:
    """statistic: of `permutation_test` how far the means are apart, squared and in units of what permutations give.
    p_value: nan where there is nothing to compare. auc: of the classifier that tells the window's rows from those
    before, None for other tests. examples: indices of the window's rows that differ most, the most first.
    """

    statistic: float
    p_value: float
    auc: float | None
    examples: list[int]


@dataclass(frozen=True)
class NoveltyResult:
    """The share of the window's rows that are unlike any before, what it is expected to be without a change, the
    p-value that it is not more (nan where there is nothing to compare), and indices of the newest rows, first ones
    first."""

    share: float
    expected: float
    p_value: float
    examples: list[int]


@dataclass(frozen=True)
class _Samples:
    """Rows before the window and in it, thinned to `ROWS` a side; `place`: the index of each in the window."""

    vectors: np.ndarray
    sides: GroupedSamples
    place: np.ndarray

    def get_top_examples(self, score: np.ndarray) -> list[int]:
        """Indices in the window of the rows with the highest `score`, of all rows (rows,)."""
        own = score[self.sides.in_window]
        return [int(one) for one in self.place[np.argsort(-own, kind="stable")[:EXAMPLES]]]


def permutation_test(
    reference: np.ndarray, window: np.ndarray, reference_groups: np.ndarray, window_groups: np.ndarray, seed: int
) -> DriftResult:
    """A permutation test of the means of `reference` (n, d) and `window` (m, d); groups: (n,) and (m,) document ids.

    Three differences are looked at, each as the squared distance of means on the leading principal components: over
    all documents, summed over documents (a few of which may have changed), and of new documents from those before.
    """
    generator = np.random.default_rng(seed)
    compared = _prepare_samples(reference, window, reference_groups, window_groups, generator)
    if not compared.sides.is_testable:
        return DriftResult(float("nan"), float("nan"), None, [])
    values, sides = compared.vectors, compared.sides
    statistics = np.stack(list(_distances(values, sides, generator)), axis=1)
    ratio = statistics[0] / np.maximum(statistics[1:].mean(axis=0), 1e-12)
    before = values[~sides.in_window].mean(axis=0)
    direction = values[sides.in_window].mean(axis=0) - before
    examples = compared.get_top_examples((values - before) @ direction)
    return DriftResult(float(ratio.max()), compute_p_value(statistics), None, examples)


def _distances(values: np.ndarray, sides: GroupedSamples, generator: np.random.Generator) -> Iterable[np.ndarray]:
    """Squared distances of means, (1 + permutations,) each, those of the true labels first."""
    if sides.in_both.any():
        yield from _within_documents(sides.permute_rows(generator), sides.center_within_groups(values), sides)
    if len(sides.group_representatives):
        means, new = sides.compute_group_means(values)
        yield ((permute_labels(new, generator).astype(float) @ (means - means.mean(axis=0))) ** 2).sum(axis=1)


def _within_documents(labels: np.ndarray, centred: np.ndarray, sides: GroupedSamples) -> tuple[np.ndarray, np.ndarray]:
    """Of the window's rows, less the means of their documents: the squared sum over all, and the squared sums of each
    document in units of their variance, summed over documents."""
    total, squares = np.zeros((len(labels), centred.shape[1])), np.zeros(len(labels))
    for document in np.unique(sides.group[sides.in_both]):
        rows = np.flatnonzero(sides.group == document)
        sums = labels[:, rows].astype(centred.dtype) @ centred[rows]
        inside = sides.in_window[rows].sum()
        total += sums
        squares += (sums**2).sum(axis=1) * len(rows) / (inside * (len(rows) - inside))
    return (total**2).sum(axis=1), squares


def classifier_two_sample_test(
    reference: np.ndarray, window: np.ndarray, reference_groups: np.ndarray, window_groups: np.ndarray, seed: int
) -> DriftResult:
    """A classifier two-sample test (Lopez-Paz and Oquab 2017), arguments as of `permutation_test`.

    Logistic regression on one half of the documents scores the other half, and the other way round. The scores of a
    half are compared as `permutation_test` compares vectors, and the p-value is that of the two halves together:
    models of more folds would share most of what they were trained on, and their scores differ by chance more than
    permutations do. `statistic` is the auc, nan where there are fewer than two documents.
    """
    generator = np.random.default_rng(seed)
    compared = _prepare_samples(reference, window, reference_groups, window_groups, generator)
    sides = compared.sides
    if not sides.is_testable or len(np.unique(sides.group)) < 2:
        return DriftResult(float("nan"), float("nan"), None, [])
    from sklearn.metrics import roc_auc_score

    scores, p_values = np.zeros(len(sides.group)), []
    for train, test in _halves(sides):
        scores[test] = _scores(compared.vectors, sides.in_window, train, test)
        own, now = scores[test, None], sides.in_window
        half = GroupedSamples.from_groups(sides.group[test & ~now], sides.group[test & now], generator)
        if half.is_testable:
            p_values.append(compute_p_value(np.stack(list(_differences(own, own, half, generator)), axis=1)))
    auc = float(roc_auc_score(sides.in_window, scores))
    return DriftResult(auc, combine_p_values(p_values), auc, compared.get_top_examples(scores))


def _halves(sides: GroupedSamples) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    """Documents in two halves of about as many rows, each once to train on; masks (rows,)."""
    from sklearn.model_selection import GroupKFold

    for train, test in GroupKFold(2).split(sides.group, groups=sides.group):
        masks = np.zeros((2, len(sides.group)), bool)
        masks[0, train] = masks[1, test] = True
        yield masks[0], masks[1]


def _scores(values: np.ndarray, in_window: np.ndarray, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Standardised scores of the tested rows; 0 where one side alone could be trained on."""
    from sklearn.linear_model import LogisticRegression

    if len(np.unique(in_window[train])) < 2:
        return np.zeros(test.sum())
    scaled = values / np.maximum(values.std(axis=0), 1e-12)
    model = LogisticRegression(C=0.01, class_weight="balanced", max_iter=200).fit(scaled[train], in_window[train])
    found = model.decision_function(scaled[test])
    return np.asarray((found - found.mean()) / max(float(found.std()), 1e-12))


def _differences(
    known: np.ndarray, new: np.ndarray, sides: GroupedSamples, generator: np.random.Generator
) -> Iterable[np.ndarray]:
    """How much higher the window is, (1 + permutations,) each, those of the true labels first.

    In `known` (rows, 1) within documents of both sides, and in `new` (rows, 1) of new documents than of those before.
    """
    if sides.in_both.any():
        yield (sides.permute_rows(generator).astype(np.float32) @ sides.center_within_groups(known))[:, 0]
    if len(sides.group_representatives):
        means, is_new = sides.compute_group_means(new)
        yield (permute_labels(is_new, generator).astype(float) @ (means - means.mean(axis=0)))[:, 0]


def measure_novelty(
    reference: np.ndarray, window: np.ndarray, reference_groups: np.ndarray, window_groups: np.ndarray, seed: int
) -> NoveltyResult:
    """How many rows of the window are unlike any before, arguments as of `permutation_test`.

    A row's distance is the mean cosine distance to its nearest rows of the reference. It is new where that is farther
    than all but `NOVELTY_QUANTILE` of the reference's own rows: of rows of a known document as far as these are from
    all others, of a new document as far as these are from other documents.
    """
    generator = np.random.default_rng(seed)
    compared = _prepare_samples(reference, window, reference_groups, window_groups, generator, reduced=False)
    sides = compared.sides
    if not sides.is_testable:
        return NoveltyResult(float("nan"), float("nan"), float("nan"), [])
    to_all, to_as_many, to_others = _nearest(compared.vectors, sides, generator)
    own = np.where(sides.in_both, *(one / _limit(one[~sides.in_window]) for one in (to_all, to_others)))
    share = float((own > 1)[sides.in_window].mean())
    # The limit of both sides together is the same whichever row is in the window, as a permutation test asks for.
    known, new = ((one > _limit(one))[:, None].astype(float) for one in (to_as_many, to_others))
    statistics = np.stack(list(_differences(known, new, sides, generator)), axis=1)
    return NoveltyResult(share, NOVELTY_QUANTILE, compute_p_value(statistics), compared.get_top_examples(own))


def _limit(distance: np.ndarray) -> float:
    """The distance that all but `NOVELTY_QUANTILE` of the rows stay within; (rows,)."""
    return max(float(np.quantile(distance, 1 - NOVELTY_QUANTILE)), 1e-12)


def _nearest(vectors: np.ndarray, sides: GroupedSamples, generator: np.random.Generator) -> tuple[np.ndarray, ...]:
    """The mean cosine distance of each row to its nearest rows of the reference, three times (rows,).

    To all other rows. To as many: a row of the reference has one row less of its own document to be near to than one of
    the window, which is spared one at random. To rows of other documents.
    """
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    before = np.flatnonzero(~sides.in_window)
    similarity = unit @ unit[before].T
    own = sides.group[:, None] == sides.group[before]
    similarity[before, np.arange(len(before))] = -np.inf
    to_all = _mean_distance(similarity)
    spared = np.where(own, generator.random(own.shape, np.float32), -1).argmax(axis=1)
    rows = np.flatnonzero(own.any(axis=1) & sides.in_window)
    similarity[rows, spared[rows]] = -np.inf
    to_as_many = _mean_distance(similarity)
    similarity[own] = -np.inf
    return to_all, to_as_many, _mean_distance(similarity)


def _mean_distance(similarity: np.ndarray) -> np.ndarray:
    count = min(NEIGHBOURS, similarity.shape[1])
    nearest = np.partition(similarity, similarity.shape[1] - count, axis=1)[:, -count:]
    kept = np.isfinite(nearest)
    return np.asarray(1 - np.where(kept, nearest, 0).sum(axis=1) / np.maximum(kept.sum(axis=1), 1))


def _prepare_samples(
    reference: np.ndarray,
    window: np.ndarray,
    reference_groups: np.ndarray,
    window_groups: np.ndarray,
    generator: np.random.Generator,
    reduced: bool = True,
) -> _Samples:
    before, now = (np.sort(generator.permutation(len(one))[:ROWS]) for one in (reference, window))
    vectors = np.concatenate([reference[before], window[now]]).astype(np.float32)
    sides = GroupedSamples.from_groups(np.asarray(reference_groups)[before], np.asarray(window_groups)[now], generator)
    if vectors.shape[1] > PROJECTION_DIMENSION:
        projection = generator.standard_normal((vectors.shape[1], PROJECTION_DIMENSION), np.float32) / np.float32(
            PROJECTION_DIMENSION**0.5
        )
        vectors = vectors @ projection
    if reduced and sides.is_testable:
        from sklearn.decomposition import PCA

        count = min(COMPONENTS, *vectors.shape)
        vectors = PCA(count, svd_solver="covariance_eigh").fit_transform(vectors)
    return _Samples(vectors, sides, now)


def combine_p_values(p_values: Iterable[float]) -> float:
    """One p-value of several tests that raise the same alarm (Bonferroni); nan ones are not counted."""
    judged = [value for value in p_values if not np.isnan(value)]
    return min(1.0, len(judged) * min(judged)) if judged else float("nan")
