"""Everything that a retrain asks of models, in one place: what the stages `features` and `nll_features` compute.

Later stages find their readings in the cache: this only decides that they are computed together, by whoever
`ABSTAIN_RUNNER` gives the work to, and that what their passes share is run once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from abstain.config.params import Params
from abstain.config.settings import Settings
from abstain.core.contracts import Interaction
from abstain.llm.engine.requests import HiddenStates, Site
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.base import Scorer
from abstain.llm.signals.compute_features import Asked, feature_requests_of
from abstain.llm.signals.context_conditions import ContextConditions, baseline, normal
from abstain.llm.signals.counterfactuals import COUNTERFACTUALS


@dataclass(frozen=True)
class ProbeSite:
    """A place where a probe may listen: layer, site, and how many of the best chunks are in the prompt (None: all)."""

    layer: int
    site: Site
    chunks: int | None = None

    @property
    def reading(self) -> FeatureRequest:
        return FeatureRequest(HiddenStates(self.layer, self.site), chunks=self.chunks)


def served_site(params: Params) -> ProbeSite:
    """Where the served probe listens."""
    return ProbeSite(params.llm.layer, params.llm.site)


def sweep_sites(params: Params) -> list[ProbeSite]:
    """Where else it might: `sweep.layers` x `sweep.sites`, and `sweep.contexts` at the served place."""
    here = served_site(params)
    places = [ProbeSite(layer, site) for layer in params.sweep.layers for site in params.sweep.sites]
    places += [ProbeSite(here.layer, here.site, chunks) for chunks in params.sweep.contexts]
    return [place for place in dict.fromkeys(places) if place != here]


def wants_regressors(params: Params) -> bool:
    """Whether any regressors are fitted: each kind to each target."""
    return bool(params.regressors.kinds and params.regressors.targets)


@dataclass(frozen=True)
class LabelledAnswers:
    """The answers of a retrain: all that have a label, and the reviewed ones of the hold-out, for the audits."""

    rows: Sequence[Interaction]
    holdout: Sequence[Interaction]

    @cached_property
    def variants(self) -> dict[str, list[Interaction]]:
        """The answers as they were `asked`, and the hold-out's changed for each audit."""
        return {"asked": list(self.rows)} | {name: variant(self.holdout) for name, variant in COUNTERFACTUALS.items()}


def all_feature_requests(params: Params, scorers: Iterable[Scorer], labelled: LabelledAnswers) -> list[Asked]:
    """What the stage `features` asks the base model: all that can be asked before contexts are perturbed."""
    own = (served_site(params).reading, *feature_requests_of(scorers))
    if wants_regressors(params):
        own += (*normal(params.llm.layout).values(), *baseline(params.llm.layout).values())
    asked, *audits = labelled.variants.values()
    return [(asked, (*own, *(place.reading for place in sweep_sites(params)))), *((rows, own) for rows in audits)]


def conditions(
    params: Params, settings: Settings, labelled: LabelledAnswers
) -> tuple[ContextConditions, list[Interaction]]:
    """The conditions that the stage `nll_features` reads answers under, and these answers, one variant after another:
    none where no regressors are wanted."""
    rows = [*itertools.chain(*labelled.variants.values())] if wants_regressors(params) else []
    return ContextConditions(params.llm, params.perturbation, settings), rows
