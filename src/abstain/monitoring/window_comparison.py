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

from abstain.core.contracts import UNNAMED, Interaction
from abstain.data.store.splits import uniform
from abstain.monitoring.drift import DriftResult, classifier_drift, new_share, one_alarm, permutation_drift

COMPARED = 600
"""The most answers of a side."""
MIN_ANSWERS, MIN_DOCUMENTS = 50, 5
"""With fewer on either side nothing is compared: answers about one document come together."""
EXAMPLES = 5
RARE = 0.01
TEXTS = ("questions", "answers", "contexts")

Embed = Callable[[Sequence[str]], np.ndarray]
"""Turns n texts into (n, d)."""
States = Callable[[Sequence[Interaction]], tuple[np.ndarray, np.ndarray]]
"""Of n answers: which have cached states, (n,) bool, and the means of those over their tokens, (cached, d)."""


@dataclass(frozen=True)
class SampledAnswers:
    """Decisions of one side whose texts are kept: `interactions`, and `decisions` in the same order."""

    interactions: list[Interaction]
    decisions: pd.DataFrame

    @property
    def documents(self) -> np.ndarray:
        """(n,) what each is about."""
        return np.array([row.split_group for row in self.interactions], object)

    @property
    def is_enough(self) -> bool:
        """Whether so many can be compared."""
        return len(self.interactions) >= MIN_ANSWERS and len(set(self.documents)) >= MIN_DOCUMENTS

    def those(self, wanted: np.ndarray) -> SampledAnswers:
        """Those that `wanted` (n,), bool, marks."""
        kept = [row for row, is_wanted in zip(self.interactions, wanted, strict=True) if is_wanted]
        return SampledAnswers(kept, self.decisions[wanted])


@dataclass(frozen=True)
class Difference:
    """What one comparison found. `p_value` is None where nothing was judged, and `note` says why."""

    p_value: float | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)
    examples: tuple[str, ...] = ()
    note: str = ""

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Difference:
        """Of what `asdict` gave, by way of JSON."""
        return cls(**{**content, "examples": tuple(content["examples"])})


def draw(
    decisions: pd.DataFrame, interactions: Callable[[Sequence[str]], Mapping[str, Interaction]], most: int = COMPARED
) -> SampledAnswers:
    """At most `most` of `decisions` whose texts are kept, in their order."""
    kept = decisions.index[decisions["texts"] == "kept"]
    drawn = set(nsmallest(most, kept, key=lambda key: uniform(0, f"monitoring/{key}")))
    found = interactions([key for key in kept if key in drawn])
    ids = [key for key in kept if key in found]
    return SampledAnswers([found[key] for key in ids], decisions.loc[ids])


def text_drift(reference: SampledAnswers, window: SampledAnswers, embed: Embed, seed: int) -> dict[str, Difference]:
    """The drift of each of `TEXTS`, and the questions that are like none before, as `topics`."""
    found = {}
    vectors = {name: (_vectors(reference, name, embed), _vectors(window, name, embed)) for name in TEXTS}
    for name, (before, now) in vectors.items():
        found[name] = drift_of((reference, *before), (window, *now), seed)
    (_, known), (_, asked) = vectors["questions"]
    new = new_share(known, asked, reference.documents, window.documents, seed)
    figures = {"share": finite(new.share), "expected": finite(new.expected)}
    found["topics"] = Difference(finite(new.p_value), figures, _ids(window, new.examples))
    return found


def state_drift(reference: SampledAnswers, window: SampledAnswers, states: States, seed: int) -> Difference:
    """The drift of the hidden states, where those of enough answers are cached on either side.

    The gate caches those of the first answers of a day, however many more there are.
    """
    sides = [(side, *states(side.interactions)) for side in (reference, window)]
    if not all(side.those(has).is_enough for side, has, _ in sides):
        return Difference(note="not judged: the states of too few answers are cached")
    return drift_of(sides[0], sides[1], seed)


def drift_of(
    reference: tuple[SampledAnswers, np.ndarray, np.ndarray],
    window: tuple[SampledAnswers, np.ndarray, np.ndarray],
    seed: int,
) -> Difference:
    """The drift of vectors: of each side the answers, which have a vector (n,), and the vectors of those."""
    before, now = reference[0].those(reference[1]), window[0].those(window[1])
    if not (before.is_enough and now.is_enough):
        return Difference(note="not judged: too few answers or documents")
    given = (reference[2], window[2], before.documents, now.documents, seed)
    means, told = permutation_drift(*given), classifier_drift(*given)
    first = min((means, told), key=lambda one: (np.isnan(one.p_value), one.p_value))
    return Difference(
        finite(one_alarm([means.p_value, told.p_value])), {"auc": finite(told.auc)}, _ids(now, first.examples)
    )


def share_drift(name: str, reference: SampledAnswers, window: SampledAnswers, seed: int) -> Difference:
    """The change of the share of answers that have the column `name`, with documents as groups."""
    sides = [side.decisions[name].to_numpy(float) for side in (reference, window)]
    found: DriftResult = permutation_drift(
        sides[0][:, None], sides[1][:, None], reference.documents, window.documents, seed
    )
    return Difference(finite(found.p_value), {"before": float(sides[0].mean()), "now": float(sides[1].mean())})


def unknown_chunks(window: SampledAnswers, known: Collection[str]) -> Difference:
    """The share of the answers that rest on a chunk not among `known`; contexts that nobody named are left out."""
    rest = [
        row.interaction_id
        for row in window.interactions
        if any(one.chunk_id not in known and not one.chunk_id.startswith(UNNAMED) for one in row.contexts)
    ]
    share = len(rest) / len(window.interactions) if window.interactions else 0.0
    return Difference(None, {"share": share}, tuple(rest[-EXAMPLES:]))


def writers(reference: SampledAnswers, window: SampledAnswers) -> Difference:
    """The models that wrote the answers, `before` and `now`, each with its share, the most frequent first; `new`: the
    share of the answers by those that wrote less than `RARE` of the answers before. Without answers before, none is."""
    before, now = _writers(reference), _writers(window)
    new = {model for model in now if before and before.get(model, 0.0) < RARE}
    theirs = [row.interaction_id for row in window.interactions if row.model in new]
    shares = {"before": before, "now": now, "new": sum(now[model] for model in new)}
    return Difference(None, shares, tuple(theirs[-EXAMPLES:]))


def _writers(side: SampledAnswers) -> dict[str, float]:
    shares = pd.Series([row.model for row in side.interactions], dtype="str").value_counts(normalize=True)
    return {str(model): round(float(share), 4) for model, share in shares.items()}


def _vectors(side: SampledAnswers, name: str, embed: Embed) -> tuple[np.ndarray, np.ndarray]:
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


def finite(value: float | None) -> float | None:
    """`value`, or None where it is not defined: JSON has neither nan nor infinity."""
    return None if value is None or not np.isfinite(value) else float(value)
