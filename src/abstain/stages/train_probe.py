"""DVC stage `train_probe`: fit the LSTM on the training split, stop early on the validation split."""

import pandas as pd
import torch
from safetensors.torch import save

from abstain import paths
from abstain.features.table import StateTable
from abstain.files import write_atomically
from abstain.models.training import Rows, train_probe
from abstain.params import Params
from abstain.stages import common


def stage(params: Params) -> None:
    frame, states = common.read_labelled_states()
    splits = {name: _rows(frame, states, name) for name in ("train", "validation")}
    probe, history = train_probe(splits["train"], splits["validation"], params.probe, common.progress)
    curve = {"epoch": range(1, len(history.train_loss) + 1), "train_loss": history.train_loss}
    common.write_text(
        paths.TRAINING, pd.DataFrame({**curve, "validation_loss": history.validation_loss}).to_csv(index=False)
    )
    print(f"kept epoch {history.best_epoch + 1} of {len(history.train_loss)}")
    write_atomically(paths.PROBE, save(probe.state_dict()))


def _rows(frame: pd.DataFrame, states: StateTable, split: str) -> Rows:
    index = frame.index[frame["split"] == split]
    return Rows(
        states.subset(index),
        torch.tensor(frame.loc[index, "correct"].to_numpy(int)),
        torch.tensor(frame.loc[index, "weight"].to_numpy("float32")),
    )


if __name__ == "__main__":
    common.run(stage)
