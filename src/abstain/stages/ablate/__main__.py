"""DVC stage `ablate`: ablations by layer, site, number of chunks, and leave-one-product-out.

`sweep` lists the layers, sites and numbers of chunks (the paper's table 4), and the architecture that is trained for
each. The stage `features` has computed all of them: here they are read from the cache.
"""

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pandas as pd

from abstain.config.params import Architecture, Params
from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.data.store.dataset import DataStore
from abstain.data.store.state_table import StateTable
from abstain.learning.estimators.probe_registry import load_probe
from abstain.learning.estimators.probes.base import predict_confidence
from abstain.learning.evaluation.ablation import ReadStates, evaluate_left_out_products, evaluate_site
from abstain.learning.metrics.bootstrap import RESAMPLES
from abstain.llm.features.extraction import FeatureSource
from abstain.llm.signals.feature_plan import ProbeSite, get_served_site, list_sweep_sites
from abstain.stages.shared import artifacts
from abstain.stages.shared.ideal_answers import read_rouge
from abstain.stages.shared.states import load_labelled_states


def stage(params: Params) -> None:
    others, leaves_out = list_sweep_sites(params), "product_left_out" in params.audits.run
    if not (others or leaves_out):  # the default, which needs no states
        artifacts.write_json(paths.ABLATIONS, {"sites": [], "left_out": []})
        return
    frame, states = load_labelled_states()
    rouge = read_rouge(frame)
    here = get_served_site(params)
    places = [here, *others] if others else []
    rows: list[dict[str, Any]] = []
    for number, place in enumerate(places, start=1):
        with tempfile.TemporaryDirectory(dir=paths.ARTIFACTS, prefix=".ablate-") as folder:
            take = states.subset if place == here else _read_states_at(params, frame, place, Path(folder))
            found = evaluate_site(
                frame, take, params.sweep.architecture, params.probe, params.threshold, RESAMPLES, rouge
            )
        rows.append({**asdict(place), "served": place == here, **found})
        artifacts.progress(number, len(places) + 1)
    left_out = []
    if leaves_out:
        probe = load_probe(paths.PROBE)
        left_out = evaluate_left_out_products(
            frame,
            states.subset,
            cast(Architecture, probe.architecture),
            params.probe,
            RESAMPLES,
            params.gate.min_slice,
            pd.Series(predict_confidence(probe, states).numpy(), frame.index),
        )
    artifacts.progress(len(places) + 1, len(places) + 1)
    artifacts.write_json(paths.ABLATIONS, {"sites": rows, "left_out": left_out})


def _read_states_at(params: Params, frame: pd.DataFrame, place: ProbeSite, folder: Path) -> ReadStates:
    """The states that a probe at `place` reads for the rows of `frame`, as a table in `folder`, read on access.

    A prompt that fits the window with all chunks fits with fewer, so every row has states there.
    """
    interactions = DataStore(paths.DATA).interactions(frame["interaction_id"])
    source = FeatureSource(params.llm, load_settings(), place.make_feature_request(params.llm))
    source.compute_missing(interactions)
    source.save(interactions, folder / "states.npy")
    return StateTable(folder / "states.npy").subset


if __name__ == "__main__":
    artifacts.run_stage(stage)
