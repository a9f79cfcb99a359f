"""Latency of the live scorer per answer: `python -m abstain.serving.scorer_latency probe.onnx` prints it as JSON.

`p99_ms` is that of the scorer with all of its parts on one core, the base model left out; `base_model_ms` is the time
that the base model takes for one of the project's answers, read alone and without the cache, null where it is not on
this machine. It is a separate process, because the threads of the caller (a flow, a server) would be measured, too.
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

TOKENS = 128
"""Of an answer whose results are made up."""
MAX_ROWS_TRIED = 100
"""Of the project's answers, to find one that fits the base model's window."""


def make_random_features(scorer: LiveScorer, tokens: int = TOKENS, seed: int = 0) -> FeatureBatch:
    """An answer with random results of every request of the live scorer; the same wherever it is made."""
    drawn = np.random.default_rng(seed)

    def result(reading: FeatureRequest) -> Tensor:
        if isinstance(reading.operation, HiddenStates):
            return torch.from_numpy(drawn.standard_normal((tokens, scorer.probe.width), np.float32))
        return torch.from_numpy(drawn.random((tokens, 2), np.float32) * 5)

    answer = make_interaction_from_texts("?", "!", [])
    if scorer.writer and scorer.writer.scores:
        (model, _, name), among = next(iter(scorer.writer.scores.items()))
        marks = {"writer": {name.partition(".")[2]: float(among[0])}, "token_log_probs": (float(among[0]),)}
        answer = answer.model_copy(update={"model": model, **marks})
    return FeatureBatch([answer], {reading: [result(reading)] for reading in scorer.requires})


def measure_scorer_p99_ms(scorer: LiveScorer, tokens: int = TOKENS, blocks: int = 25, runs: int = 100) -> float:
    """The 99th percentile, in ms, of scoring one answer of `tokens` tokens on one core, the LLM left out."""
    answer = make_random_features(scorer, tokens)
    return measure_p99_ms(lambda: scorer.score(replace(answer, derived={})), blocks, runs)


def measure_p99_ms(run: Callable[[], object], blocks: int = 25, runs: int = 100) -> float:
    """The 99th percentile, in ms, of `run`, after a first one.

    Taken from the fastest of several blocks: other load on a shared machine is not the scorer's latency.
    """
    run()
    took = np.empty((blocks, runs))
    for at in np.ndindex(took.shape):
        start = time.perf_counter()
        run()
        took[at] = time.perf_counter() - start
    return float(np.quantile(took, 0.99, axis=1).min() * 1000)


def measure_base_model_ms(predictor: Predictor, rows: Iterable[Interaction]) -> float:
    """The time, in ms, in which the base model reads the first readable one of `rows`; the model is loaded before.

    0 where the scorer needs no pass.
    """
    source, readings = predictor.source, predictor.scorer.requires
    row = next((row for row in rows if isinstance(source.prepare(row), PreparedRequest)), None)
    if not readings or row is None:
        return 0.0
    store, start = FeatureStore(source.params.model, source.settings), 0.0
    for _ in range(2):
        requests = expand_requests(source.params, source.settings, [([row], readings)])
        start = time.perf_counter()
        store.compute_uncached(requests)
    return 1000 * (time.perf_counter() - start)


def _measure(file: Path) -> dict[str, float | None]:
    p99 = measure_scorer_p99_ms(LiveScorer.open(file))
    rows = itertools.islice(DataStore(paths.DATA).iter_rows(Interaction), MAX_ROWS_TRIED)
    try:
        return {"p99_ms": p99, "base_model_ms": measure_base_model_ms(Predictor.open(file, load_settings()), rows)}
    except AbstainError:  # that it is here is not what the gate asks
        return {"p99_ms": p99, "base_model_ms": None}


if __name__ == "__main__":
    torch.set_num_threads(1)  # threads that wait for each other on a busy machine would be measured
    print(json.dumps(_measure(Path(sys.argv[1]))))
