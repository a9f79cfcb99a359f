"""Choose the layer and the site that the probe reads, by out-of-fold AUROC on the reviewed training answers.

This is not a stage of the DAG, because its result is a parameter: a retrain with `llm.layer: auto` runs it once,
between the stages `dataset` and `features`, and commits the choice (tasks/training/site_choice.py). Its forward passes
also compute the other features of these answers that the stage `features` needs, so no answer is read twice.

python -m abstain.stages.choose_site OUTPUT.json
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from abstain.config.params import Params
from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.data.store.dataset import DataStore
from abstain.data.store.state_table import StateTable
from abstain.learning.evaluation.ablation import compute_out_of_fold_aurocs
from abstain.learning.evaluation.records import SiteAuroc, SiteChoice
from abstain.learning.evaluation.scorer_choice import choose_cheapest_of_best
from abstain.learning.metrics.bootstrap import RESAMPLING, make_interval_columns
from abstain.llm.engine.loading import find_model, read_layer_count
from abstain.llm.features.extraction import NOTHING_FITS, FeatureSource
from abstain.llm.signals.compute_features import compute_missing
from abstain.llm.signals.feature_plan import list_candidate_sites, plan_site_choice
from abstain.llm.signals.registry import build_scorers
from abstain.stages.shared import artifacts


def choose_site(params: Params) -> SiteChoice:
    """Choose the site with the best out-of-fold AUROC; within one standard error of it, the shallowest.

    Returns:
        The choice.

    Raises:
        AbstainError: No answer fits into the context length, or the training answers are too few for a probe.
    """
    settings = load_settings()
    frame = artifacts.read_dataset_frame()
    train = frame[frame["split"] == "train"]
    rows = DataStore(paths.DATA).read_interactions(train["interaction_id"])
    sites = list_candidate_sites(read_layer_count(find_model(params.llm.model, settings)))
    scorers = build_scorers(params, settings).scorers
    compute_missing(params.llm, settings, plan_site_choice(params, scorers, rows, sites), artifacts.report_progress)
    with tempfile.TemporaryDirectory(dir=paths.ARTIFACTS, prefix=".sites-") as folder:
        tables = []
        for index, site in enumerate(sites):
            file = Path(folder) / f"{index}.npy"
            FeatureSource(params.llm, settings, site.make_feature_request(params.llm)).save(rows, file)
            tables.append(StateTable(file))
        readable_rows = np.flatnonzero(tables[0].lengths)
        if not len(readable_rows):
            raise AbstainError(Code.TOO_LONG, NOTHING_FITS)
        readable = train.iloc[readable_rows].reset_index(drop=True)
        aurocs = compute_out_of_fold_aurocs(
            readable,
            {site: table.subset(readable_rows).subset for site, table in zip(sites, tables, strict=True)},
            params.sweep.architecture,
            params.probe,
            RESAMPLING,
        )
    if any(np.isnan(estimate.value) for estimate in aurocs.values()):
        raise AbstainError(
            Code.TOO_FEW_LABELS,
            "the layer is chosen by the reviewed training answers, and these are not of both kinds: bring reviews, or "
            "set llm.layer",
        )
    chosen = choose_cheapest_of_best(aurocs, {site: site.layer for site in sites})
    return SiteChoice(
        layer=chosen.layer,
        site=chosen.site,
        rows=len(readable),
        reviewed=int((readable["source"] == "review").sum()),
        sites=[
            SiteAuroc(layer=site.layer, site=site.site, **make_interval_columns("auroc", aurocs[site]))
            for site in sites
        ],
    )


if __name__ == "__main__":
    artifacts.run_stage(lambda params: artifacts.write_json(Path(sys.argv[1]), choose_site(params).to_dict()))
