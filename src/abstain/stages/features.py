"""DVC stage `features`: the base model's states of every labelled answer, from the cache or from a forward pass."""

from abstain import paths
from abstain.errors import AbstainError
from abstain.features.extract import FeatureSource, Refused
from abstain.feedback.store import Store
from abstain.params import Params
from abstain.settings import load_settings
from abstain.stages import common


def stage(params: Params) -> None:
    rows = Store(paths.DATA).interactions(common.read_dataset_frame()["interaction_id"])
    source = FeatureSource(params.llm, load_settings())
    refused: dict[str, str] = {}
    shortened: dict[str, int] = {}
    for row in rows:
        prepared = source.prepare(row)
        if isinstance(prepared, Refused):
            refused[row.interaction_id] = prepared.reason
            print(f"refused: interaction {row.interaction_id}: {prepared.reason}", flush=True)
        elif prepared.dropped:
            shortened[row.interaction_id] = prepared.dropped
    if len(refused) == len(rows):
        raise AbstainError("no answer fits the base model's window: take a model that reads more, or retrieve less")
    cost = source.fill(rows, common.progress)
    print(
        f"{cost.rows} of {len(rows)} answers were not in the cache: {cost.forward_tokens} tokens were run "
        f"for passes of {cost.pass_tokens}",
        flush=True,
    )
    source.save(rows, paths.FEATURES)
    common.write_json(
        paths.FEATURES_SUMMARY,
        {"rows": len(rows) - len(refused), "refused": refused, "chunks_dropped": shortened},
    )


if __name__ == "__main__":
    common.run(stage)
