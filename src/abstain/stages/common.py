"""What every DVC stage shares: one way to start, to report progress, to fail in one line, and to write whole files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors.torch import load_file

from abstain import paths
from abstain.errors import AbstainError
from abstain.features.table import AGAIN, StateTable
from abstain.files import write_atomically
from abstain.models.probe import Probe
from abstain.params import Params, load_params


def run(stage: Callable[[Params], None]) -> None:
    """Run `stage` with the parameters of this workspace; an `AbstainError` becomes one line and exit status 1."""
    try:
        stage(load_params(paths.PARAMS))
    except AbstainError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None


def progress(done: int, total: int) -> None:
    """One line that a task can turn into a progress bar."""
    print(f"progress {done}/{total}", flush=True)


def write_text(file: Path, text: str) -> None:
    """Write a whole text file or none."""
    write_atomically(file, text.encode())


def write_json(file: Path, value: Any) -> None:
    """JSON with sorted keys; nan is written as null, which JSON has."""
    write_text(file, json.dumps(_plain(value), indent=2, sort_keys=True) + "\n")


def read_json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def read_labelled_states() -> tuple[pd.DataFrame, StateTable]:
    """The rows of the data set that have states, numbered from 0, and these states in the same order.

    A row has none where its prompt did not fit the base model's window. States are read when they are asked for.
    """
    frame, table = read_dataset_frame(), StateTable(paths.FEATURES)
    if len(frame) != len(table):
        raise AbstainError(f"{paths.FEATURES} has {len(table)} rows, {paths.DATASET} has {len(frame)}: {AGAIN}")
    kept = np.flatnonzero(table.lengths)
    return frame.iloc[kept].reset_index(drop=True), table.subset(kept)


def read_base_model() -> str:
    """`name@revision` of the base model that the features were read from."""
    return StateTable(paths.FEATURES).model


def read_dataset_frame() -> pd.DataFrame:
    """The dataset stage's output, one row a labelled interaction."""
    return pd.read_parquet(paths.DATASET)


def read_probe(params: Params) -> Probe:
    """The trained probe, as the train stage left it."""
    weights = load_file(paths.PROBE)
    probe = Probe(len(weights["mean"]), params.probe.hidden, params.probe.dropout)
    probe.load_state_dict(weights)
    return probe.eval()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and value != value else value
