"""How long stages took when they last ran on this machine: what `abstain plan` expects of the next run.

One file a stage in the home, because a stage's outputs must not depend on the machine.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from abstain.config.settings import load_settings
from abstain.core.files import write_json

MIN_TOKENS = 10_000
"""Fewer tokens measure how long the base model takes to load, not how fast it reads."""


@dataclass(frozen=True)
class BaseModelUsage:
    """The part of a run that read: `tokens` by the base model `model`, in the first `seconds` of the stage."""

    model: str
    tokens: int
    seconds: float


@dataclass(frozen=True)
class StageTime:
    """`other_seconds`: the last run's, reading apart. `seconds_per_token`: of `model`, None where none was measured."""

    other_seconds: float
    model: str | None = None
    seconds_per_token: float | None = None


def record_run(stage: str, seconds: float, reading: BaseModelUsage | None) -> None:
    """Remember a run of `stage`; a run that read too little keeps the speed that was measured before."""
    if reading and reading.tokens >= MIN_TOKENS:
        now = StageTime(seconds - reading.seconds, reading.model, reading.seconds / reading.tokens)
    else:
        before = _read(stage)
        now = StageTime(seconds, before.model, before.seconds_per_token) if before else StageTime(seconds)
    write_json(_file(stage), asdict(now))


def expected_seconds(stage: str, model: str, tokens: int) -> float | None:
    """The seconds that `stage` will take to read `tokens` with `model` and do the rest; None where that is unknown."""
    last = _read(stage)
    if last is None or (tokens and (last.seconds_per_token is None or last.model != model)):
        return None
    return last.other_seconds + tokens * (last.seconds_per_token or 0.0)


def _read(stage: str) -> StageTime | None:
    file = _file(stage)
    return StageTime(**json.loads(file.read_text())) if file.is_file() else None


def _file(stage: str) -> Path:
    return load_settings().home.resolve() / "stage-times" / f"{stage}.json"
