"""Latency of the live scorer per answer: `python -m abstain.serving.scorer_latency probe.onnx` prints it as JSON.

`p99_ms` is that of the scorer on one core, without the models that it runs. `decision_ms` is the time of a decision
about one of the project's answers, read singly and without the cache; it is null if a model is not on this machine. It
runs in a separate process, because the threads of the caller (a flow, a server) would be measured, too.
"""

from __future__ import annotations

import itertools
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from abstain.config.settings import Settings, load_settings
from abstain.core import paths
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.data.store.dataset import DataStore
from abstain.llm.engine.requests import NLL, Generate, HiddenStates, get_tracked_tokens
from abstain.llm.features.extraction import PreparedRequest
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.base import FeatureBatch, RunsModel
from abstain.serving.live_scorer import LiveScorer
from abstain.serving.predictor import Predictor
from abstain.serving.request_files import make_interaction_from_texts

N_TOKENS = 128
"""Length of the answer with random features."""
MAX_ROWS_TRIED = 100
"""Maximum number of the project's answers that are tried to find one that fits the base model's context length."""


def make_random_features(scorer: LiveScorer, n_tokens: int = N_TOKENS, seed: int = 0) -> FeatureBatch:
    """Build one answer with random features for every request of the live scorer.

    Args:
        scorer: The live scorer.
        n_tokens: Length of the answer.
        seed: Seed of the random numbers; the result is the same on every machine.

    Returns:
        A batch with one answer.
    """
    rng = np.random.default_rng(seed)

    def make_result(request: FeatureRequest) -> Tensor:
        operation = request.operation
        if isinstance(operation, HiddenStates):
            return torch.from_numpy(rng.standard_normal((n_tokens, scorer.probe.width), np.float32))
        if isinstance(operation, NLL):
            return torch.from_numpy(rng.random((n_tokens, 2), np.float32) * 5)
        n_tracked = len(get_tracked_tokens(operation))
        shape = (operation.max_new_tokens, 1 + n_tracked) if isinstance(operation, Generate) else (n_tracked, 1)
        return torch.from_numpy(rng.random(shape, np.float32))

    answer = make_interaction_from_texts("?", "!", [])
    if scorer.writer and scorer.writer.scores:
        (model, _, name), ranked_values = next(iter(scorer.writer.scores.items()))
        scores = {
            "writer_scores": {name.partition(".")[2]: float(ranked_values[0])},
            "token_log_probs": (float(ranked_values[0]),),
        }
        answer = answer.model_copy(update={"model": model, **scores})
    return FeatureBatch([answer], {request: [make_result(request)] for request in scorer.requires})


def measure_scorer_p99_ms(scorer: LiveScorer, n_tokens: int = N_TOKENS, n_blocks: int = 25, n_runs: int = 100) -> float:
    """Measure the 99th percentile of the time to score one answer on one core, without the models that it runs.

    Args:
        scorer: The live scorer.
        n_tokens: Length of the answer.
        n_blocks: Number of blocks.
        n_runs: Number of runs per block.

    Returns:
        The 99th percentile in milliseconds.
    """
    answer = make_random_features(scorer, n_tokens)

    def score() -> None:
        batch = replace(answer, derived={})
        for component in components:
            component.score(batch)

    components = (
        [scorer.scorer]
        if not scorer.running
        else [component for component in scorer.components.values() if not isinstance(component, RunsModel)]
    )
    return measure_p99_ms(score, n_blocks, n_runs)


def measure_p99_ms(run: Callable[[], object], n_blocks: int = 25, n_runs: int = 100) -> float:
    """Measure the 99th percentile of the run time of a function, after a first run.

    It is that of the fastest block: other load on a shared machine is not the scorer's latency.

    Args:
        run: The function.
        n_blocks: Number of blocks.
        n_runs: Number of runs per block.

    Returns:
        The 99th percentile in milliseconds.
    """
    run()
    durations_s = np.empty((n_blocks, n_runs))
    for index in np.ndindex(durations_s.shape):
        started_at = time.perf_counter()
        run()
        durations_s[index] = time.perf_counter() - started_at
    return float(np.quantile(durations_s, 0.99, axis=1).min() * 1000)


def measure_decision_ms(file: Path, settings: Settings, rows: Iterable[Interaction]) -> float:
    """Measure the time of a decision about the first readable answer, after the models are loaded.

    Args:
        file: ONNX file of the bundle's probe.
        settings: Settings with the place of the models.
        rows: Answers to try.

    Returns:
        The time in milliseconds; 0 if no answer is readable.

    Raises:
        AbstainError: As in `Predictor.open`.
    """
    duration_s = 0.0
    with tempfile.TemporaryDirectory() as folder:
        predictor = Predictor.open(file, settings.model_copy(update={"features_url": f"{folder}/features"}))
        readable = (row for row in rows if isinstance(predictor.source.prepare(row), PreparedRequest))
        for row in [row for row in itertools.islice(readable, 1) for _ in range(2)]:
            shutil.rmtree(Path(folder) / "features", ignore_errors=True)
            started_at = time.perf_counter()
            predictor.decide_interactions([row])
            duration_s = time.perf_counter() - started_at
    return 1000 * duration_s


def _measure(file: Path) -> dict[str, float | None]:
    settings = load_settings()
    p99 = measure_scorer_p99_ms(LiveScorer.open(file, settings))
    rows = itertools.islice(DataStore(paths.DATA).iter_rows(Interaction), MAX_ROWS_TRIED)
    try:
        return {"p99_ms": p99, "decision_ms": measure_decision_ms(file, settings, rows)}
    except AbstainError:  # that the base model is here is not checked before a promotion
        return {"p99_ms": p99, "decision_ms": None}


if __name__ == "__main__":
    torch.set_num_threads(1)  # threads that wait for each other on a busy machine would be measured
    print(json.dumps(_measure(Path(sys.argv[1]))))
