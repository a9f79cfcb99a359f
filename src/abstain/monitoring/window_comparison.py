"""A window's answers beside those before it under the same version: their texts, hidden states and decisions.

Notes:

* A sample of either side is compared, drawn by permanent random numbers: an embedding takes milliseconds.
* Texts are embedded in memory: a stored embedding of a user's text would have to be erased with it.
* Hidden states are read from the feature cache and never computed. Each answer is the mean over its tokens.
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
"""The most answers of a side."""
MIN_ANSWERS, MIN_DOCUMENTS = 50, 5
"""With fewer on either side nothing is compared: answers about one document come together."""
EXAMPLES = 5
MAX_RARE_SHARE = 0.01
TEXTS = ("questions", "answers", "contexts")

EmbedTexts = Callable[[Sequence[str]], np.ndarray]
"""Turns n texts into (n, d)."""
ReadCachedStates = Callable[[Sequence[Interaction]], tuple[np.ndarray, np.ndarray]]
"""Of n answers: which have cached states, (n,) bool, and the means of those over their tokens, (cached, d)."""


@dataclass(frozen=True)
class SampledAnswers:
    """Decisions of one side whose texts are kept: `interactions`, and `decisions` in the same order."""

    interactions: list[Interaction]
    decisions: pd.DataFrame

    @property
    def groups(self) -> np.ndarray:
        """(n,) what each is about."""
        return np.array([row.split_group for row in self.interactions], object)

    @property
    def has_enough(self) -> bool:
        """Whether so many can be compared."""
        return len(self.interactions) >= MIN_ANSWERS and len(set(self.groups)) >= MIN_DOCUMENTS

    def filter(self, wanted: np.ndarray) -> SampledAnswers:
        """Those that `wanted` (n,), bool, marks."""
        kept = [row for row, is_wanted in zip(self.interactions, wanted, strict=True) if is_wanted]
        return SampledAnswers(kept, self.decisions[wanted])


@dataclass(frozen=True)
class ComparisonResult:
    """What one comparison found. `p_value` is None where nothing was judged, and `note` says why."""

    p_value: float | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)
    examples: tuple[str, ...] = ()
    note: str = ""

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> ComparisonResult:
        """Of what `asdict` gave, by way of JSON."""
        return cls(**{**content, "examples": tuple(content["examples"])})


def sample_answers(
    decisions: pd.DataFrame,
    interactions: Callable[[Sequence[str]], Mapping[str, Interaction]],
    max_answers: int = MAX_ANSWERS,
) -> SampledAnswers:
    """At most `max_answers` of `decisions` whose texts are kept, in their order."""
    kept = decisions.index[decisions["texts"] == "kept"]
    drawn = set(nsmallest(max_answers, kept, key=lambda key: hash_to_unit_interval(0, f"monitoring/{key}")))
    found = interactions([key for key in kept if key in drawn])
    ids = [key for key in kept if key in found]
    return SampledAnswers([found[key] for key in ids], decisions.loc[ids])


def compare_texts(
    reference: SampledAnswers, window: SampledAnswers, embed: EmbedTexts, seed: int
) -> dict[str, ComparisonResult]:
    """The drift of each of `TEXTS`, and the questions that are like none before, as `topics`."""
    found = {}
    vectors = {name: (_vectors(reference, name, embed), _vectors(window, name, embed)) for name in TEXTS}
    for name, (before, now) in vectors.items():
        found[name] = compare_vectors((reference, *before), (window, *now), seed)
    (_, known), (_, asked) = vectors["questions"]
    new = measure_novelty(known, asked, reference.groups, window.groups, seed)
    figures = {"share": finite_or_none(new.share), "expected": finite_or_none(new.expected)}
    found["topics"] = ComparisonResult(finite_or_none(new.p_value), figures, _ids(window, new.examples))
    return found


def compare_states(
    reference: SampledAnswers, window: SampledAnswers, states: ReadCachedStates, seed: int
) -> ComparisonResult:
    """The drift of the hidden states, where those of enough answers are cached on either side.

    The gate caches those of the first answers of a day, however many more there are.
    """
    sides = [(side, *states(side.interactions)) for side in (reference, window)]
    if not all(side.filter(has).has_enough for side, has, _ in sides):
        return ComparisonResult(note="not judged: the states of too few answers are cached")
    return compare_vectors(sides[0], sides[1], seed)


def compare_vectors(
    reference: tuple[SampledAnswers, np.ndarray, np.ndarray],
    window: tuple[SampledAnswers, np.ndarray, np.ndarray],
    seed: int,
) -> ComparisonResult:
    """The drift of vectors: of each side the answers, which have a vector (n,), and the vectors of those."""
    before, now = reference[0].filter(reference[1]), window[0].filter(window[1])
    if not (before.has_enough and now.has_enough):
        return ComparisonResult(note="not judged: too few answers or documents")
    given = (reference[2], window[2], before.groups, now.groups, seed)
    means, told = permutation_test(*given), classifier_two_sample_test(*given)
    first = min((means, told), key=lambda one: (np.isnan(one.p_value), one.p_value))
    return ComparisonResult(
        finite_or_none(combine_p_values([means.p_value, told.p_value])),
        {"auc": finite_or_none(told.auc)},
        _ids(now, first.examples),
    )


def compare_share(name: str, reference: SampledAnswers, window: SampledAnswers, seed: int) -> ComparisonResult:
    """The change of the share of answers that have the column `name`, with documents as groups."""
    sides = [side.decisions[name].to_numpy(float) for side in (reference, window)]
    found: DriftResult = permutation_test(sides[0][:, None], sides[1][:, None], reference.groups, window.groups, seed)
    return ComparisonResult(
        finite_or_none(found.p_value), {"before": float(sides[0].mean()), "now": float(sides[1].mean())}
    )


def measure_unknown_chunks(window: SampledAnswers, known: Collection[str]) -> ComparisonResult:
    """The share of the answers that rest on a chunk not among `known`; contexts that nobody named are left out."""
    rest = [
        row.interaction_id
        for row in window.interactions
        if any(one.chunk_id not in known and not one.chunk_id.startswith(UNNAMED_PREFIX) for one in row.contexts)
    ]
    share = len(rest) / len(window.interactions) if window.interactions else 0.0
    return ComparisonResult(None, {"share": share}, tuple(rest[-EXAMPLES:]))


def compare_answer_models(reference: SampledAnswers, window: SampledAnswers) -> ComparisonResult:
    """The models that wrote the answers, `before` and `now`, each with its share, the most frequent first; `new`: the
    share of the answers by those that wrote less than `MAX_RARE_SHARE` of the answers before. Without answers before,
    none is."""
    before, now = _writers(reference), _writers(window)
    new = {model for model in now if before and before.get(model, 0.0) < MAX_RARE_SHARE}
    examples = [row.interaction_id for row in window.interactions if row.model in new]
    shares = {"before": before, "now": now, "new": sum(now[model] for model in new)}
    return ComparisonResult(None, shares, tuple(examples[-EXAMPLES:]))


def _writers(side: SampledAnswers) -> dict[str, float]:
    shares = pd.Series([row.model for row in side.interactions], dtype="str").value_counts(normalize=True)
    return {str(model): round(float(share), 4) for model, share in shares.items()}


def _vectors(side: SampledAnswers, name: str, embed: EmbedTexts) -> tuple[np.ndarray, np.ndarray]:
    """Which answers have a text of this kind, and its embedding: of contexts the mean over the chunks."""
    if name != "contexts":
        texts = [row.question if name == "questions" else row.answer for row in side.interactions]
        return np.ones(len(texts), bool), embed(texts)
    has = np.array([bool(row.contexts) for row in side.interactions], bool)
    chunks = list(dict.fromkeys(one.text for row in side.interactions for one in row.contexts))
    place, vectors = {text: at for at, text in enumerate(chunks)}, embed(chunks)
    means = [
        vectors[[place[one.text] for one in row.contexts]].mean(axis=0) for row in side.interactions if row.contexts
    ]
    return has, np.array(means).reshape(len(means), -1)


def _ids(side: SampledAnswers, indices: Sequence[int]) -> tuple[str, ...]:
    return tuple(side.interactions[at].interaction_id for at in indices[:EXAMPLES])


def finite_or_none(value: float | None) -> float | None:
    """`value`, or None where it is not defined: JSON has neither nan nor infinity."""
    return None if value is None or not np.isfinite(value) else float(value)
