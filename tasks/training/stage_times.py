"""Durations of stages when they last ran on this machine, from which `abstain plan` estimates the next run.

There is one file for each stage in the home, because a stage's outputs must not depend on the machine.
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
    """The part of a run in which the base model read.

    Attributes:
        model: The base model.
        tokens: Tokens that it read.
        seconds: Seconds from the start of the stage until they were read.
    """

    model: str
    tokens: int
    seconds: float


@dataclass(frozen=True)
class StageTime:
    """The measured times of a stage.

    Attributes:
        other_seconds: Duration of the last run without reading.
        model: The base model; None if no reading was measured.
        seconds_per_token: Reading time of `model`; None if none was measured.
    """

    other_seconds: float
    model: str | None = None
    seconds_per_token: float | None = None


def record_run(stage: str, seconds: float, usage: BaseModelUsage | None) -> None:
    """Record a run of a stage; a run that read too little keeps the speed that was measured before.

    Args:
        stage: The stage.
        seconds: Duration.
        usage: What the base model read; None if nothing.
    """
    if usage and usage.tokens >= MIN_TOKENS:
        stage_time = StageTime(seconds - usage.seconds, usage.model, usage.seconds / usage.tokens)
    else:
        previous = _read(stage)
        stage_time = StageTime(seconds, previous.model, previous.seconds_per_token) if previous else StageTime(seconds)
    write_json(_file(stage), asdict(stage_time))


def estimate_seconds(stage: str, model: str, tokens: int) -> float | None:
    """Estimate how long a stage will take.

    Args:
        stage: The stage.
        model: The base model.
        tokens: Tokens that it has to read.

    Returns:
        The seconds; None if unknown.
    """
    last = _read(stage)
    if last is None or (tokens and (last.seconds_per_token is None or last.model != model)):
        return None
    return last.other_seconds + tokens * (last.seconds_per_token or 0.0)


def _read(stage: str) -> StageTime | None:
    file = _file(stage)
    return StageTime(**json.loads(file.read_text())) if file.is_file() else None


def _file(stage: str) -> Path:
    return load_settings().home.resolve() / "stage-times" / f"{stage}.json"
