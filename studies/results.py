"""Finished cells, each a JSON file under a digest of all that decides it: a study that is run again computes nothing.

A file that cannot be read is as good as none. What a cell is made of, the features, lies in the feature cache, so a
cell that is computed again, with another forest or by another threshold, asks no model anything twice.
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
from abstain.llm.engine.prompts import load_layout
from studies.cell import ExperimentRunner
from studies.declared import Experiment, ExperimentCell
from studies.rows import read_parts

RESULT = 2
"""Raised when `ExperimentRunner.run` says something else, or says it otherwise."""
NEEDS_ENCODER = "cosine"


def file_digests(study: Experiment, data: Path) -> dict[str, str]:
    """sha256 (hex) of the study's files, by name. Raises `AbstainError` where the folder or one of them is missing."""
    if not data.is_dir():
        raise AbstainError(Code.NOT_READABLE, f"{data} is no folder: say with --data where {_both(study)} are")
    found = {}
    for name in (study.files.train, study.files.evaluation):
        try:
            with (data / name).open("rb") as stream:
                found[name] = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError:
            raise AbstainError(
                Code.NOT_READABLE, f"{data} has no file {name}: say with --data where {_both(study)} are"
            ) from None
    return found


def check_rows(study: Experiment, data: Path, tables: Sequence[str]) -> None:
    """Raise `AbstainError` where a file of the study has a line that is none, or too few questions for a cell of
    `tables`."""
    files = study.files
    for size in dict.fromkeys(cell.size for cell in study.cells(tables)):
        read_parts(data / files.train, data / files.evaluation, (size.train, size.evaluation), study.seed)


def get_cell_inputs(laboratory: ExperimentRunner, cell: ExperimentCell, files: Mapping[str, str]) -> dict[str, Any]:
    """All that the result of `cell` depends on, as JSON; `files` as `file_digests` says.

    Raises `AbstainError` where one of its models is not to be found.
    """
    study, settings = laboratory.study, laboratory.settings
    llm = laboratory.llm(cell)
    return {
        "result": RESULT,
        "cell": cell.model_dump(mode="json"),
        "models": [str(find_model(llm.model, settings)), laboratory.pm(cell)],
        "layout": load_layout(llm.layout).digest,
        "dtype": str(choose_dtype(settings, choose_device(settings))),
        "engine": ENGINE_VERSION,
        "encoder": _encoder() if cell.metric == NEEDS_ENCODER else None,
        "scikit-learn": version("scikit-learn"),
        "files": [files[study.files.train], files[study.files.evaluation]],
        "seed": study.seed,
        "answer_tokens": study.answer_tokens,
        "regressors": study.regressors.model_dump(mode="json"),
        "draws": study.draws,
        "candidates": study.candidates_of(cell),
        "thresholds": study.thresholds_of(cell),
        "buffer": study.buffer,
        "baselines": study.wants_baselines(cell),
    }


@dataclass(frozen=True)
class ResultStore:
    """The folder of finished cells, each beside what it was decided by, for people to read."""

    folder: Path

    def read(self, decided: Mapping[str, Any]) -> dict[str, Any] | None:
        """The result that was made under `decided`; None where there is none."""
        try:
            result: dict[str, Any] = json.loads(self.file(decided).read_bytes())["result"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        return result

    def write(self, decided: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """Keep `result`, in which what is not a number becomes null."""
        content = {"decided_by": decided, "result": result}
        write_atomically(self.file(decided), to_json(content, indent=1, inf_nan_mode="null"))

    def file(self, decided: Mapping[str, Any]) -> Path:
        digest = hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).hexdigest()
        return self.folder / f"{digest[:32]}.json"


def _both(study: Experiment) -> str:
    return f"{study.files.train} and {study.files.evaluation}"


@lru_cache(maxsize=1)
def _encoder() -> str:
    return SentenceEncoder().identity
