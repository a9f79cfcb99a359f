"""Shared code of the DVC stages: start, progress, one-line errors, reading and writing of artifacts."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from abstain.config.params import Params, load_params
from abstain.core import files, paths
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically


def run_stage(stage: Callable[[Params], None]) -> None:
    """Run `stage` with the parameters of this workspace; an `AbstainError` becomes one line and exit status 1."""
    try:
        stage(load_params(paths.PARAMS))
    except AbstainError as error:
        print(f"error {error.message_with_code}", file=sys.stderr)
        raise SystemExit(1) from None


def progress(done: int, total: int) -> None:
    """Print one line that a task can turn into a progress bar; nothing where there is nothing to do."""
    if total:
        print(f"progress {done}/{total}", flush=True)


def write_text(file: Path, text: str) -> None:
    """Write a whole text file or none."""
    write_atomically(file, text.encode())


def write_json(file: Path, value: Any) -> None:
    """JSON with sorted keys; nan is written as null, which JSON has."""
    files.write_json(file, _nan_to_none(value))


def read_json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def read_dataset_frame() -> pd.DataFrame:
    """The dataset stage's output, one row a labelled interaction."""
    return pd.read_parquet(paths.DATASET)


def read_signals(variant: str) -> pd.DataFrame:
    """The scorers' signals and the regressors' estimates, by interaction: a column each, in [0, 1], nan without a
    score; for training answers, those of scorers and regressors with parameters are out of fold.

    `variant`: `asked`, of the original answers, or one of the counterfactual variants.
    """
    tables = [pd.read_parquet(file) for file in (paths.SIGNALS, paths.REGRESSOR_SCORES)]
    of_variant = [table[table["variant"] == variant].drop(columns="variant") for table in tables]
    signals, regressors = (table.set_index("interaction_id") for table in of_variant)
    return signals.join(regressors)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """An empty folder to write to, which takes the place of `folder` once all is written."""
    scratch = folder.with_name(f".{folder.name}")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    yield scratch
    shutil.rmtree(folder, ignore_errors=True)
    scratch.rename(folder)


def _nan_to_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _nan_to_none(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_nan_to_none(item) for item in value]
    return None if isinstance(value, float) and value != value else value
