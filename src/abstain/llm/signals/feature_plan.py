"""All feature requests of a retrain: the work of the stages `features` and `nll_features`.

Later stages read their features from the cache. The plan only ensures that they are computed together, by the runner of
`ABSTAIN_RUNNER`, and that common prefixes of their prompts are run once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

from abstain.config.params import LLMParams, Params, Site
from abstain.config.settings import Settings
from abstain.core.contracts import Interaction
from abstain.core.scorer_names import FREE, FUSION, NOT_SERVED, ONE_PASS, PROBE, REGRESSORS, TWO_PASSES
from abstain.llm.engine.requests import get_chosen_layer, make_probe_operation
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.base import RunsModel, Scorer
from abstain.llm.signals.compute_features import FeatureWork, collect_feature_requests
from abstain.llm.signals.context_conditions import ContextConditions, make_condition_requests
from abstain.llm.signals.counterfactuals import COUNTERFACTUALS

NORMAL_PROMPTS = {("answered", None), ("asked_after", None)}
"""Prompts of the pass that reads an answer with its context, N_c, and may go on with a question about it."""
BASELINE_PROMPT = ("answered", 0)
"""Prompt of the pass that reads it without context, B_c."""


@dataclass(frozen=True)
class ProbeSite:
    """A site that a probe may read.

    Attributes:
        layer: Layer of the base model.
        site: Hook point in the layer.
        chunks: Number of best chunks in the prompt; None for all.
    """

    layer: int
    site: Site
    chunks: int | None = None

    def make_feature_request(self, llm: LLMParams) -> FeatureRequest:
        """Return the request for the states that a probe of `llm` reads here."""
        return FeatureRequest(make_probe_operation(llm, self.layer, self.site), chunks=self.chunks)


def get_served_site(params: Params) -> ProbeSite:
    """Return the site that the exported probe reads."""
    return ProbeSite(get_chosen_layer(params.llm), params.llm.site)


def list_candidate_sites(depth: int) -> list[ProbeSite]:
    """List the sites that `llm.layer: auto` chooses from, shallower ones first.

    These are all sites of the layers at a third, a half, two thirds and five sixths of the depth: the papers of the
    methods find the best ones in the middle or soon after it.

    Args:
        depth: Number of layers of the model.

    Returns:
        The sites.
    """
    layers = dict.fromkeys(max(1, round(depth * sixths / 6)) for sixths in (2, 3, 4, 5))
    return [ProbeSite(layer, site) for layer in layers for site in get_args(Site)]


def list_sweep_sites(params: Params) -> list[ProbeSite]:
    """Return the other sites to compare: `sweep.layers` x `sweep.sites`, and `sweep.contexts` at the served site."""
    served_site = get_served_site(params)
    sites = [ProbeSite(layer, site) for layer in params.sweep.layers for site in params.sweep.sites]
    sites += [ProbeSite(served_site.layer, served_site.site, chunks) for chunks in params.sweep.contexts]
    return [place for place in dict.fromkeys(sites) if place != served_site]


def should_fit_regressors(params: Params) -> bool:
    """Return whether any regressors are fitted; each kind is fitted to each target."""
    return bool(params.regressors.kinds and params.regressors.targets)


@dataclass(frozen=True)
class LabelledAnswers:
    """Answers of a retrain.

    Attributes:
        rows: All answers with a label.
        holdout: The reviewed answers of the hold-out.
        audits: Names of the audits to run.
    """

    rows: Sequence[Interaction]
    holdout: Sequence[Interaction]
    audits: Sequence[str]

    @cached_property
    def variants(self) -> dict[str, list[Interaction]]:
        """All answers, as `asked`, and the counterfactuals of the hold-out for each audit that has some."""
        changed = {name: COUNTERFACTUALS[name](self.holdout) for name in self.audits if name in COUNTERFACTUALS}
        return {"asked": list(self.rows)} | changed


def plan_features(params: Params, scorers: Iterable[Scorer], labelled: LabelledAnswers) -> list[FeatureWork]:
    """Plan the requests of the stage `features`: all that do not need perturbed contexts.

    Args:
        params: Parameters of the project.
        scorers: Available scorers.
        labelled: Answers of the retrain.

    Returns:
        The feature work.
    """
    requests = (get_served_site(params).make_feature_request(params.llm), *collect_signal_requests(params, scorers))
    answers, *audits = labelled.variants.values()
    return [
        (answers, (*requests, *(site.make_feature_request(params.llm) for site in list_sweep_sites(params)))),
        *((rows, requests) for rows in audits),
    ]


def plan_site_choice(
    params: Params, scorers: Iterable[Scorer], train: Sequence[Interaction], sites: Sequence[ProbeSite]
) -> list[FeatureWork]:
    """Plan the requests for the choice of a probe site.

    They are the states of training answers at each site, and the features that the stage `features` will read of these
    answers with the same prompts.

    Args:
        params: Parameters of the project.
        scorers: Available scorers.
        train: Training answers.
        sites: Sites to choose from.

    Returns:
        The feature work.
    """
    return [
        (
            train,
            (*(site.make_feature_request(params.llm) for site in sites), *collect_signal_requests(params, scorers)),
        )
    ]


def list_components(params: Params, scorers: Iterable[Scorer]) -> dict[str, tuple[FeatureRequest, ...]]:
    """List what can decide about an answer by itself: all but those that are `NOT_SERVED`.

    Args:
        params: Parameters of the project.
        scorers: Available scorers.

    Returns:
        Name -> feature requests of the probe, of the scorers, and of the `REGRESSORS` if any are fitted.
    """
    components: dict[str, tuple[FeatureRequest, ...]] = {
        PROBE: (get_served_site(params).make_feature_request(params.llm),)
    }
    components |= {scorer.name: scorer.requires for scorer in scorers if scorer.name not in NOT_SERVED}
    if should_fit_regressors(params):
        components[REGRESSORS] = make_condition_requests(params.llm.layout)
    return components


def list_fusions(
    params: Params, scorers: Iterable[Scorer], components: Mapping[str, Sequence[FeatureRequest]]
) -> dict[str, list[str]]:
    """List the components of each fusion: the probe and what is free, those of one pass, of two passes, and all.

    Args:
        params: Parameters of the project.
        scorers: Available scorers.
        components: Output of `list_components`.

    Returns:
        Name of the fusion -> names of its components; none of a single component, or of the same ones as a cheaper one.
    """
    beyond_features = {scorer.name for scorer in scorers if isinstance(scorer, RunsModel)}
    if params.perturbation.n_copies:
        beyond_features.add(REGRESSORS)
    free = [name for name, requests in components.items() if not requests and name not in beyond_features]
    fusions: dict[str, list[str]] = {FREE: [PROBE, *free]}
    for fusion, prompts in ((ONE_PASS, NORMAL_PROMPTS), (TWO_PASSES, NORMAL_PROMPTS | {BASELINE_PROMPT})):
        fusions[fusion] = [
            name
            for name, requests in components.items()
            if name not in beyond_features
            and {(request.prompt_kind, request.chunks) for request in requests} <= prompts
        ]
    fusions[FUSION] = list(components)
    distinct = {tuple(names): fusion for fusion, names in reversed(fusions.items())}
    return {fusion: names for fusion, names in fusions.items() if len(names) > 1 and distinct[tuple(names)] == fusion}


def collect_signal_requests(params: Params, scorers: Iterable[Scorer]) -> tuple[FeatureRequest, ...]:
    """Return the requests of the scorers and of the regressors.

    Args:
        params: Parameters of the project.
        scorers: Available scorers.

    Returns:
        The feature requests.
    """
    requests = collect_feature_requests(scorers)
    if should_fit_regressors(params):
        requests += make_condition_requests(params.llm.layout)
    return requests


def plan_nll_features(
    params: Params, settings: Settings, labelled: LabelledAnswers
) -> tuple[ContextConditions, list[Interaction]]:
    """Plan the stage `nll_features`.

    Args:
        params: Parameters of the project.
        settings: Settings of this machine.
        labelled: Answers of the retrain.

    Returns:
        The conditions under which answers are read, and the answers, one variant after another; no answers if no
        regressors are fitted.
    """
    rows = [*itertools.chain(*labelled.variants.values())] if should_fit_regressors(params) else []
    return ContextConditions(params.llm, params.perturbation, settings), rows
