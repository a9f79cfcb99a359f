"""DVC stage `nll_features`: NLL statistics of every labelled answer under B_c, N_c and, if contexts are perturbed, P_c.

The audits' counterfactuals are in it too, under the names of their variants: regressors are audited like other scorers.
"""

import pandas as pd

from abstain.config.params import Params
from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.core.contracts import Interaction
from abstain.core.files import write_atomically
from abstain.data.store.dataset import DataStore
from abstain.data.store.splits import select_reviewed_holdout
from abstain.llm.signals.context_conditions import ContextConditions
from abstain.llm.signals.feature_plan import LabelledAnswers, plan_nll_features
from abstain.stages.shared import artifacts


def stage(params: Params) -> None:
    frame = artifacts.read_dataset_frame()
    rows = DataStore(paths.DATA).interactions(frame["interaction_id"])
    labelled = LabelledAnswers(rows, select_reviewed_holdout(frame, rows), params.audits.run)
    read, everyone = plan_nll_features(params, load_settings(), labelled)
    if not everyone:
        print("no regressors are wanted: nothing is perturbed", flush=True)
    perturbing, reading = read.compute_missing(everyone, artifacts.progress)
    for what, cost in (
        ("perturbing contexts", perturbing),
        ("reading answers under the conditions of contexts", reading),
    ):
        print(f"{what}: {cost.forward_tokens} tokens were run for passes of {cost.pass_tokens}", flush=True)
    parts = labelled.variants if everyone else {"asked": []}
    tables = [_table(read, name, part) for name, part in parts.items()]
    write_atomically(paths.NLL_FEATURES, pd.concat(tables, ignore_index=True).to_parquet(index=False))
    asked = parts["asked"]
    artifacts.write_json(
        paths.NLL_SUMMARY,
        {
            "rows": len(asked),
            "perturbation_model": read.perturber.model if read.perturber.operations else None,
            "perturbed": read.count_remarks(asked),
            "forward_tokens": read.forward_tokens(asked),
            "forward_tokens_of_copies": read.perturbed_forward_tokens(asked),
        },
    )


def _table(read: ContextConditions, variant: str, rows: list[Interaction]) -> pd.DataFrame:
    named = pd.DataFrame({"interaction_id": [row.interaction_id for row in rows], "variant": variant})
    return named.join(read.build_table(rows))


if __name__ == "__main__":
    artifacts.run_stage(stage)
