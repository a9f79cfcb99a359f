"""Latency of the live scorer per answer: `python -m abstain.serving.scorer_latency probe.onnx` prints it as JSON.

`p99_ms` is that of the scorer with all of its components on one core, without the base model. `base_model_ms` is the
time that the base model takes for one of the project's answers, read singly and without the cache; it is null if the
model is not on this machine. It runs in a separate process, because the threads of the caller (a flow, a server) would
be measured, too.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.data.store.dataset import DataStore
from abstain.llm.engine.requests import HiddenStates
from abstain.llm.features.extraction import PreparedRequest
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.features.feature_store import FeatureStore
from abstain.llm.signals.base import FeatureBatch
from abstain.llm.signals.compute_features import expand_requests
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
        if isinstance(request.operation, HiddenStates):
            return torch.from_numpy(rng.standard_normal((n_tokens, scorer.probe.width), np.float32))
        return torch.from_numpy(rng.random((n_tokens, 2), np.float32) * 5)

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
    """Measure the 99th percentile of the time to score one answer on one core, without the base model.

    Args:
        scorer: The live scorer.
        n_tokens: Length of the answer.
        n_blocks: Number of blocks.
        n_runs: Number of runs per block.

    Returns:
        The 99th percentile in milliseconds.
    """
    answer = make_random_features(scorer, n_tokens)
    return measure_p99_ms(lambda: scorer.score(replace(answer, derived={})), n_blocks, n_runs)


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


def measure_base_model_ms(predictor: Predictor, rows: Iterable[Interaction]) -> float:
    """Measure the time in which the base model reads the first readable answer, after the model is loaded.

    Args:
        predictor: Predictor with the base model.
        rows: Answers to try.

    Returns:
        The time in milliseconds; 0 if the scorer needs no forward pass or no answer is readable.
    """
    source, feature_requests = predictor.source, predictor.scorer.requires
    row = next((row for row in rows if isinstance(source.prepare(row), PreparedRequest)), None)
    if not feature_requests or row is None:
        return 0.0
    store, started_at = FeatureStore(source.params.model, source.settings), 0.0
    for _ in range(2):
        requests = expand_requests(source.params, source.settings, [([row], feature_requests)])
        started_at = time.perf_counter()
        store.compute_uncached(requests)
    return 1000 * (time.perf_counter() - started_at)


def _measure(file: Path) -> dict[str, float | None]:
    p99 = measure_scorer_p99_ms(LiveScorer.open(file))
    rows = itertools.islice(DataStore(paths.DATA).iter_rows(Interaction), MAX_ROWS_TRIED)
    try:
        return {"p99_ms": p99, "base_model_ms": measure_base_model_ms(Predictor.open(file, load_settings()), rows)}
    except AbstainError:  # that it is here is not checked before a promotion
        return {"p99_ms": p99, "base_model_ms": None}


if __name__ == "__main__":
    torch.set_num_threads(1)  # threads that wait for each other on a busy machine would be measured
    print(json.dumps(_measure(Path(sys.argv[1]))))
