"""Finished cells, each a JSON file named by a digest of all its inputs: a repeated run computes nothing.

An unreadable file counts as missing. The features of a cell are in the feature cache, so a cell that is computed again,
with another forest or threshold, runs no model twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from abstain.knowledge.retrieval.encoder import SentenceEncoder
from abstain.llm.engine.device import choose_device, choose_dtype
from abstain.llm.engine.engine import ENGINE_VERSION
from abstain.llm.engine.loading import find_model
from abstain.llm.engine.tokenization import load_model_layout
from studies.cell import ExperimentRunner
from studies.declared import Experiment, ExperimentCell
from studies.rows import read_parts

RESULT = 2
"""Raised when `ExperimentRunner.run` says something else, or says it otherwise."""
NEEDS_ENCODER = "cosine"


def file_digests(experiment: Experiment, data: Path) -> dict[str, str]:
    """Return the sha256 (hex) of the experiment's files, by name.

    Raises:
        AbstainError: the folder or one of the files is missing.
    """
    if not data.is_dir():
        raise AbstainError(
            Code.NOT_READABLE, f"{data} is no folder: say with --data where {_format_files(experiment)} are"
        )
    digests = {}
    for name in (experiment.files.train, experiment.files.evaluation):
        try:
            with (data / name).open("rb") as stream:
                digests[name] = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError:
            raise AbstainError(
                Code.NOT_READABLE, f"{data} has no file {name}: say with --data where {_format_files(experiment)} are"
            ) from None
    return digests


def check_rows(experiment: Experiment, data: Path, tables: Sequence[str]) -> None:
    """Check that the files of the experiment have valid lines, and enough questions for the cells of `tables`.

    Raises:
        AbstainError: a line is invalid, or there are too few questions.
    """
    files = experiment.files
    for size in dict.fromkeys(cell.size for cell in experiment.list_cells(tables)):
        read_parts(data / files.train, data / files.evaluation, (size.train, size.evaluation), experiment.seed)


def get_cell_inputs(runner: ExperimentRunner, cell: ExperimentCell, files: Mapping[str, str]) -> dict[str, Any]:
    """Return everything that the result of `cell` depends on, as JSON.

    Args:
        runner: The experiment and its settings.
        cell: The cell.
        files: Digests of the files, as of `file_digests`.

    Returns:
        The inputs of the cell.

    Raises:
        AbstainError: one of its models is not found.
    """
    experiment, settings = runner.experiment, runner.settings
    llm = runner.make_llm_params(cell)
    return {
        "result": RESULT,
        "cell": cell.model_dump(mode="json"),
        "models": [str(find_model(llm.model, settings)), runner.get_perturbation_model(cell)],
        "layout": load_model_layout(find_model(llm.model, settings), llm.layout).digest,
        "dtype": str(choose_dtype(settings, choose_device(settings))),
        "engine": ENGINE_VERSION,
        "encoder": _encoder() if cell.metric == NEEDS_ENCODER else None,
        "scikit-learn": version("scikit-learn"),
        "files": [files[experiment.files.train], files[experiment.files.evaluation]],
        "seed": experiment.seed,
        "answer_tokens": experiment.answer_tokens,
        "regressors": experiment.regressors.model_dump(mode="json"),
        "draws": experiment.draws,
        "candidates": experiment.get_candidates(cell),
        "thresholds": experiment.get_thresholds(cell),
        "buffer": experiment.buffer,
        "baselines": experiment.wants_baselines(cell),
    }


@dataclass(frozen=True)
class ResultStore:
    """The folder of finished cells, each stored with its inputs, so that people can read them."""

    folder: Path

    def read(self, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the result for `inputs`; None if there is none."""
        try:
            result: dict[str, Any] = json.loads(self.get_path(inputs).read_bytes())["result"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        return result

    def write(self, inputs: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """Store `result`; nan and infinity become null."""
        content = {"decided_by": inputs, "result": result}
        write_atomically(self.get_path(inputs), to_json(content, indent=1, inf_nan_mode="null"))

    def get_path(self, inputs: Mapping[str, Any]) -> Path:
        """Return the file of the result for `inputs`."""
        digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
        return self.folder / f"{digest[:32]}.json"


def _format_files(experiment: Experiment) -> str:
    return f"{experiment.files.train} and {experiment.files.evaluation}"


@lru_cache(maxsize=1)
def _encoder() -> str:
    return SentenceEncoder().identity
