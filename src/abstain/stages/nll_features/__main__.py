"""DVC stage `nll_features`: NLL statistics of every labelled answer under B_c, N_c and, if contexts are perturbed, P_c.

The table includes the audits' counterfactuals, under the names of their variants: regressors are audited like other
scorers.
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
    """Compute the NLL features of all labelled answers."""
    frame = artifacts.read_dataset_frame()
    rows = DataStore(paths.DATA).read_interactions(frame["interaction_id"])
    labelled = LabelledAnswers(rows, select_reviewed_holdout(frame, rows), params.audits.enabled)
    conditions, interactions = plan_nll_features(params, load_settings(), labelled)
    if not interactions:
        print("no regressors are wanted: nothing is perturbed", flush=True)
    perturbing, reading = conditions.compute_missing(interactions, artifacts.report_progress)
    for description, cost in (
        ("perturbing contexts", perturbing),
        ("reading answers under the conditions of contexts", reading),
    ):
        print(f"{description}: {cost.forward_tokens} tokens were run for passes of {cost.pass_tokens}", flush=True)
    variants = labelled.variants if interactions else {"asked": []}
    tables = [_make_table(conditions, name, variant_rows) for name, variant_rows in variants.items()]
    write_atomically(paths.NLL_FEATURES, pd.concat(tables, ignore_index=True).to_parquet(index=False))
    original = variants["asked"]
    artifacts.write_json(
        paths.NLL_SUMMARY,
        {
            "rows": len(original),
            "perturbation_model": conditions.perturber.model if conditions.perturber.operations else None,
            "perturbed": conditions.count_remarks(original),
            "forward_tokens": conditions.estimate_forward_tokens(original),
            "forward_tokens_of_copies": conditions.estimate_perturbed_forward_tokens(original),
        },
    )


def _make_table(conditions: ContextConditions, variant: str, rows: list[Interaction]) -> pd.DataFrame:
    named = pd.DataFrame({"interaction_id": [row.interaction_id for row in rows], "variant": variant})
    return named.join(conditions.build_table(rows))


if __name__ == "__main__":
    artifacts.run_stage(stage)
