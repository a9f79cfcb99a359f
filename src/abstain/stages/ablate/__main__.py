"""DVC stage `ablate`: ablations by layer, site, number of chunks, and leave-one-product-out.

`sweep` lists the layers, sites and numbers of chunks (table 4 of Huang et al.), and the architecture that is trained
for each. The stage `features` has computed all features: here they are read from the cache.
"""

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import cast

import pandas as pd

from abstain.config.params import Architecture, Params
from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.data.store.dataset import DataStore
from abstain.data.store.state_table import StateTable
from abstain.learning.estimators.probe_registry import load_probe
from abstain.learning.estimators.probes.base import predict_confidence
from abstain.learning.evaluation.ablation import ReadStates, evaluate_left_out_products, evaluate_site
from abstain.learning.evaluation.records import Ablations, ProductLeftOut, Site
from abstain.learning.metrics.bootstrap import RESAMPLING
from abstain.llm.features.extraction import FeatureSource
from abstain.llm.signals.feature_plan import ProbeSite, get_served_site, list_sweep_sites
from abstain.stages.shared import artifacts
from abstain.stages.shared.ideal_answers import read_rouge
from abstain.stages.shared.states import load_labelled_states


def stage(params: Params) -> None:
    """Evaluate the sites of `sweep` and the left-out products."""
    sweep_sites, audits_products = list_sweep_sites(params), "product_left_out" in params.audits.enabled
    if not (sweep_sites or audits_products):  # the default, which needs no states
        artifacts.write_json(paths.ABLATIONS, Ablations(sites=[], left_out=[]).to_dict())
        return
    frame, states = load_labelled_states()
    rouge = read_rouge(frame)
    served_site = get_served_site(params)
    sites = [served_site, *sweep_sites] if sweep_sites else []
    results: list[Site] = []
    for number, site in enumerate(sites, start=1):
        with tempfile.TemporaryDirectory(dir=paths.ARTIFACTS, prefix=".ablate-") as folder:
            read_states = states.subset if site == served_site else _read_site_states(params, frame, site, Path(folder))
            metrics = evaluate_site(
                frame, read_states, params.sweep.architecture, params.probe, params.threshold, RESAMPLING, rouge
            )
        results.append(Site(**asdict(site), served=site == served_site, **metrics.to_dict()))
        artifacts.report_progress(number, len(sites) + 1)
    left_out: list[ProductLeftOut] = []
    if audits_products:
        probe = load_probe(paths.PROBE)
        left_out = evaluate_left_out_products(
            frame,
            states.subset,
            cast(Architecture, probe.architecture),
            params.probe,
            RESAMPLING,
            params.evaluation.min_n_eff,
            pd.Series(predict_confidence(probe, states).numpy(), frame.index),
        )
    artifacts.report_progress(len(sites) + 1, len(sites) + 1)
    artifacts.write_json(paths.ABLATIONS, Ablations(sites=results, left_out=left_out).to_dict())


def _read_site_states(params: Params, frame: pd.DataFrame, site: ProbeSite, folder: Path) -> ReadStates:
    """Write the states that a probe at `site` reads to a table in `folder`, and read them on access.

    A prompt that fits into the context length with all chunks fits with fewer, so every row has states.
    """
    interactions = DataStore(paths.DATA).read_interactions(frame["interaction_id"])
    source = FeatureSource(params.llm, load_settings(), site.make_feature_request(params.llm))
    source.compute_missing(interactions)
    source.save(interactions, folder / "states.npy")
    return StateTable(folder / "states.npy").subset


if __name__ == "__main__":
    artifacts.run_stage(stage)
