"""Everything that a retrain asks the base model, in one place: what the stage `features` computes, in one fill.

Later stages find their readings in the cache: this list only decides that they are computed together, by whoever
`ABSTAIN_RUNNER` gives the work to, and that what their passes share is run once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from abstain.contracts import Interaction
from abstain.features.readings import Reading
from abstain.llm.asks import Site, States
from abstain.params import Params
from abstain.scorers.base import Scorer
from abstain.scorers.reading import Asked, readings_of
from abstain.scorers.variants import VARIANTS


@dataclass(frozen=True)
class Listening:
    """A place where a probe may listen: layer, site, and how many of the best chunks are in the prompt (None: all)."""

    layer: int
    site: Site
    chunks: int | None = None

    @property
    def reading(self) -> Reading:
        return Reading(States(self.layer, self.site), chunks=self.chunks)


def served(params: Params) -> Listening:
    """Where the served probe listens."""
    return Listening(params.llm.layer, params.llm.site)


def swept(params: Params) -> list[Listening]:
    """Where else it might: `sweep.layers` x `sweep.sites`, and `sweep.contexts` at the served place."""
    here = served(params)
    places = [Listening(layer, site) for layer in params.sweep.layers for site in params.sweep.sites]
    places += [Listening(here.layer, here.site, chunks) for chunks in params.sweep.contexts]
    return [place for place in dict.fromkeys(places) if place != here]


def everything(
    params: Params, scorers: Iterable[Scorer], labelled: Sequence[Interaction], holdout: Sequence[Interaction]
) -> list[Asked]:
    """What is wanted of the `labelled` answers, and of the reviewed ones of the `holdout` once they are changed."""
    own = (served(params).reading, *readings_of(scorers))
    audits: list[Asked] = [(variant(holdout), own) for variant in VARIANTS.values()]
    return [(labelled, (*own, *(place.reading for place in swept(params)))), *audits]
