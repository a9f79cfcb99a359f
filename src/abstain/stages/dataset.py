"""DVC stage `dataset`: one label an answer, and the split it belongs to."""

from abstain import paths
from abstain.feedback.dataset import training_table
from abstain.feedback.store import read_dataset, require_interactions
from abstain.files import write_atomically
from abstain.params import Params
from abstain.stages import common


def stage(params: Params) -> None:
    data = require_interactions(read_dataset(paths.DATA))
    frame, summary = training_table(data, params.labels, params.split)
    write_atomically(paths.DATASET, frame.to_parquet(index=False))
    common.write_json(paths.DATASET_SUMMARY, summary)


if __name__ == "__main__":
    common.run(stage)
