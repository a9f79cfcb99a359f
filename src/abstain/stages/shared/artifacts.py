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
    """Run a stage with the parameters of this workspace; an `AbstainError` becomes one line and exit status 1."""
    try:
        stage(load_params(paths.PARAMS))
    except AbstainError as error:
        print(f"error {error.message_with_code}", file=sys.stderr)
        raise SystemExit(1) from None


def report_progress(done: int, total: int) -> None:
    """Print a line that a task can turn into a progress bar; print nothing if there is nothing to do."""
    if total:
        print(f"progress {done}/{total}", flush=True)


def write_text(file: Path, text: str) -> None:
    """Write a text file atomically."""
    write_atomically(file, text.encode())


def write_json(file: Path, value: Any) -> None:
    """Write JSON with sorted keys; nan is written as null, because JSON has no nan."""
    files.write_json(file, _nan_to_none(value))


def read_json(file: Path) -> Any:
    """Read a JSON file."""
    return json.loads(file.read_text(encoding="utf-8"))


def read_dataset_frame() -> pd.DataFrame:
    """Read the output of the stage `dataset`: one row for each labelled interaction."""
    return pd.read_parquet(paths.DATASET)


def read_signals(variant: str) -> pd.DataFrame:
    """Read the scorers' signals and the regressors' estimates.

    For training answers, those of scorers and regressors with parameters are out of fold.

    Args:
        variant: "asked", the original answers, or a counterfactual variant.

    Returns:
        A column for each scorer, by interaction id, in [0, 1]; nan without a score.
    """
    tables = [pd.read_parquet(file) for file in (paths.SIGNALS, paths.REGRESSOR_SCORES)]
    variant_tables = [table[table["variant"] == variant].drop(columns="variant") for table in tables]
    signals, regressors = (table.set_index("interaction_id") for table in variant_tables)
    return signals.join(regressors)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Make an empty folder that replaces another one once everything is written.

    Args:
        folder: The folder to replace.

    Yields:
        The temporary folder.
    """
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
