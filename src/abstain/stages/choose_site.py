"""Choose the layer and the site that the probe reads, by out-of-fold AUROC on the reviewed training answers.

No stage of the DAG, because its result is a parameter: a retrain with `llm.layer: auto` runs it once, between the
stages `dataset` and `features`, and commits the choice (tasks/training/site_choice.py). The passes that it runs also
give what the stage `features` needs of these answers otherwise, so no answer is read twice.

python -m abstain.stages.choose_site OUTPUT.json
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from abstain.config.params import Params
from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.data.store.dataset import DataStore
from abstain.data.store.state_table import StateTable
from abstain.learning.evaluation.ablation import out_of_fold_aurocs
from abstain.learning.evaluation.scorer_choice import choose_cheapest_of_best
from abstain.learning.metrics.bootstrap import RESAMPLES, make_interval_columns
from abstain.llm.engine.loading import find_model, read_layer_count
from abstain.llm.features.extraction import NOTHING_FITS, FeatureSource
from abstain.llm.signals.compute_features import compute_missing
from abstain.llm.signals.feature_plan import candidate_sites, plan_site_choice
from abstain.llm.signals.registry import build_scorers
from abstain.stages.shared import artifacts


def choose_site(params: Params) -> dict[str, Any]:
    """`layer` and `site`, the number of training `rows` and of `reviewed` ones, and the `sites` compared, each with its
    AUROC and interval.

    The shallower one wins within one standard error of the best. Raises `AbstainError` where no answer fits the window,
    or the training answers are too few for a probe.
    """
    settings = load_settings()
    frame = artifacts.read_dataset_frame()
    train = frame[frame["split"] == "train"]
    rows = DataStore(paths.DATA).interactions(train["interaction_id"])
    sites = candidate_sites(read_layer_count(find_model(params.llm.model, settings)))
    scorers = build_scorers(params, settings).scorers
    compute_missing(params.llm, settings, plan_site_choice(params, scorers, rows, sites), artifacts.progress)
    with tempfile.TemporaryDirectory(dir=paths.ARTIFACTS, prefix=".sites-") as folder:
        tables = []
        for at, place in enumerate(sites):
            file = Path(folder) / f"{at}.npy"
            FeatureSource(params.llm, settings, place.make_feature_request(params.llm)).save(rows, file)
            tables.append(StateTable(file))
        kept = np.flatnonzero(tables[0].lengths)
        if not len(kept):
            raise AbstainError(Code.TOO_LONG, NOTHING_FITS)
        readable = train.iloc[kept].reset_index(drop=True)
        aurocs = out_of_fold_aurocs(
            readable,
            {place: table.subset(kept).subset for place, table in zip(sites, tables, strict=True)},
            params.sweep.architecture,
            params.probe,
            RESAMPLES,
        )
    if any(np.isnan(estimate.value) for estimate in aurocs.values()):
        raise AbstainError(
            Code.TOO_FEW_LABELS,
            "the layer is chosen by the reviewed training answers, and these are not of both kinds: bring reviews, or "
            "set llm.layer",
        )
    chosen = choose_cheapest_of_best(aurocs, {place: place.layer for place in sites})
    return {
        "layer": chosen.layer,
        "site": chosen.site,
        "rows": len(readable),
        "reviewed": int((readable["source"] == "review").sum()),
        "sites": [{"layer": at.layer, "site": at.site, **make_interval_columns("auroc", aurocs[at])} for at in sites],
    }


if __name__ == "__main__":
    artifacts.run_stage(lambda params: artifacts.write_json(Path(sys.argv[1]), choose_site(params)))
