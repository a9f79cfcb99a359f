"""DVC stage `features`: the base model's states of every labelled answer, from the cache or from a forward pass."""

from abstain import paths
from abstain.errors import AbstainError
from abstain.features.extract import FeatureSource, Prepared
from abstain.feedback.store import read_dataset
from abstain.params import Params
from abstain.settings import load_settings
from abstain.stages import common


def stage(params: Params) -> None:
    interactions = {row.interaction_id: row for row in read_dataset(paths.DATA).interactions}
    rows = [interactions[name] for name in common.read_dataset_frame()["interaction_id"]]
    source = FeatureSource(params.llm, load_settings())
    prepared = {row.interaction_id: source.prepare(row) for row in rows}
    refused = {name: p.reason for name, p in prepared.items() if not isinstance(p, Prepared)}
    for name, reason in refused.items():
        print(f"refused: interaction {name}: {reason}", flush=True)
    if len(refused) == len(rows):
        raise AbstainError("no answer fits the base model's window: take a model that reads more, or retrieve less")
    print(f"{source.missing(rows)} of {len(rows)} answers need a forward pass; the rest is cached", flush=True)
    cost = source.fill(rows, common.progress)
    if cost.rows:
        print(f"{cost.forward_tokens} tokens were run for passes of {cost.pass_tokens}", flush=True)
    source.save(rows, paths.FEATURES)
    shortened = {name: p.dropped for name, p in prepared.items() if isinstance(p, Prepared) and p.dropped}
    common.write_json(
        paths.FEATURES_SUMMARY,
        {"rows": len(rows) - len(refused), "refused": refused, "chunks_dropped": shortened},
    )


if __name__ == "__main__":
    common.run(stage)
