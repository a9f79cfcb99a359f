"""All feature requests of a retrain: what the stages `features` and `nll_features` compute.

Later stages read their features from the cache; the plan only makes sure that they are computed together, by the runner
of `ABSTAIN_RUNNER`, and that shared prefixes of their passes are run once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from abstain.config.params import LLMParams, Params
from abstain.config.settings import Settings
from abstain.core.contracts import Interaction
from abstain.llm.engine.requests import Site, get_chosen_layer, make_probe_operation
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.base import Scorer
from abstain.llm.signals.compute_features import FeatureWork, collect_feature_requests
from abstain.llm.signals.context_conditions import ContextConditions, make_baseline_requests, make_normal_requests
from abstain.llm.signals.counterfactuals import COUNTERFACTUALS


@dataclass(frozen=True)
class ProbeSite:
    """A site that a probe may read: layer, site, and the number of best chunks in the prompt (None: all)."""

    layer: int
    site: Site
    chunks: int | None = None

    def make_feature_request(self, llm: LLMParams) -> FeatureRequest:
        """The request for the states that a probe of `llm` reads here."""
        return FeatureRequest(make_probe_operation(llm, self.layer, self.site), chunks=self.chunks)


def get_served_site(params: Params) -> ProbeSite:
    """The site that the exported probe reads."""
    return ProbeSite(get_chosen_layer(params.llm), params.llm.site)


def candidate_sites(depth: int) -> list[ProbeSite]:
    """The sites that `llm.layer: auto` chooses from, of a model with `depth` layers, shallower ones first.

    Both sites of the layers at a third, a half, two thirds and five sixths of the depth: the methods' papers find the
    best ones in the middle or soon after it.
    """
    layers = dict.fromkeys(max(1, round(depth * sixths / 6)) for sixths in (2, 3, 4, 5))
    return [ProbeSite(layer, site) for layer in layers for site in ("residual", "mlp")]


def list_sweep_sites(params: Params) -> list[ProbeSite]:
    """The other sites to compare: `sweep.layers` x `sweep.sites`, and `sweep.contexts` at the served site."""
    here = get_served_site(params)
    places = [ProbeSite(layer, site) for layer in params.sweep.layers for site in params.sweep.sites]
    places += [ProbeSite(here.layer, here.site, chunks) for chunks in params.sweep.contexts]
    return [place for place in dict.fromkeys(places) if place != here]


def wants_regressors(params: Params) -> bool:
    """Whether any regressors are fitted; each kind is fitted to each target."""
    return bool(params.regressors.kinds and params.regressors.targets)


@dataclass(frozen=True)
class LabelledAnswers:
    """The answers of a retrain: all that have a label, and the reviewed ones of the hold-out, for the `audits`."""

    rows: Sequence[Interaction]
    holdout: Sequence[Interaction]
    audits: Sequence[str]

    @cached_property
    def variants(self) -> dict[str, list[Interaction]]:
        """The answers of `asked`, and the hold-out's counterfactuals for each audit that has some."""
        changed = {name: COUNTERFACTUALS[name](self.holdout) for name in self.audits if name in COUNTERFACTUALS}
        return {"asked": list(self.rows)} | changed


def plan_features(params: Params, scorers: Iterable[Scorer], labelled: LabelledAnswers) -> list[FeatureWork]:
    """The requests of the stage `features`: all that do not need perturbed contexts."""
    own = (get_served_site(params).make_feature_request(params.llm), *collect_signal_requests(params, scorers))
    asked, *audits = labelled.variants.values()
    return [
        (asked, (*own, *(place.make_feature_request(params.llm) for place in list_sweep_sites(params)))),
        *((rows, own) for rows in audits),
    ]


def plan_site_choice(
    params: Params, scorers: Iterable[Scorer], train: Sequence[Interaction], sites: Sequence[ProbeSite]
) -> list[FeatureWork]:
    """The requests to choose one of `sites`: the states of training answers there, and what the stage `features` will
    read of these answers in the same passes."""
    return [
        (
            train,
            (*(place.make_feature_request(params.llm) for place in sites), *collect_signal_requests(params, scorers)),
        )
    ]


def collect_signal_requests(params: Params, scorers: Iterable[Scorer]) -> tuple[FeatureRequest, ...]:
    """The requests of `scorers` and of the regressors."""
    own = collect_feature_requests(scorers)
    if wants_regressors(params):
        own += (*make_normal_requests(params.llm.layout).values(), *make_baseline_requests(params.llm.layout).values())
    return own


def plan_nll_features(
    params: Params, settings: Settings, labelled: LabelledAnswers
) -> tuple[ContextConditions, list[Interaction]]:
    """The conditions that the stage `nll_features` reads answers under, and these answers, one variant after another:
    none where no regressors are wanted."""
    rows = [*itertools.chain(*labelled.variants.values())] if wants_regressors(params) else []
    return ContextConditions(params.llm, params.perturbation, settings), rows
