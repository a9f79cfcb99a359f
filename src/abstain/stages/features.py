"""DVC stage `features`: the base model's states of every labelled answer, from the cache or from a forward pass."""

from safetensors.torch import save

from abstain import paths
from abstain.features.extract import FeatureSource, pack
from abstain.feedback.store import read_dataset
from abstain.files import write_atomically
from abstain.params import Params
from abstain.settings import load_settings
from abstain.stages import common


def stage(params: Params) -> None:
    interactions = {row.interaction_id: row for row in read_dataset(paths.DATA).interactions}
    rows = [interactions[name] for name in common.read_dataset_frame()["interaction_id"]]
    source = FeatureSource(params.llm, load_settings())
    print(f"{source.missing(rows)} of {len(rows)} answers need a forward pass; the rest is cached", flush=True)
    states = source.states(rows, common.progress)
    # Which base model gave them is a property of the features, not of a later stage's machine. One entry alone:
    # safetensors writes several in no fixed order, and the same features shall be the same bytes.
    write_atomically(paths.FEATURES, save(pack(states), metadata={"model": source.space().model}))


if __name__ == "__main__":
    common.run(stage)
