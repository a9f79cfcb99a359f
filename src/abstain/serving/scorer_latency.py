"""Latency of the live scorer per answer: `python -m abstain.serving.scorer_latency probe.onnx` prints it as JSON.

`p99_ms` is that of the scorer with all of its parts, the base model left out; `base_model_ms` is the base model's
median for one of the project's answers, read alone and without the cache. Both are on one core. It is a separate
process, because the threads of the caller (a flow, a server) would be measured, too.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor

from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.core.contracts import Interaction
from abstain.data.store.dataset import DataStore
from abstain.llm.engine.requests import HiddenStates
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.features.feature_store import FeatureStore
from abstain.llm.signals.base import Answers
from abstain.llm.signals.compute_features import requests_of
from abstain.serving.live_scorer import LiveScorer
from abstain.serving.predictor import Predictor
from abstain.serving.requests import from_flags

TOKENS = 128
"""Of an answer whose results are made up."""
ANSWERS = 3
"""Of the project, that the base model reads."""


def made_up_answer(scorer: LiveScorer, tokens: int = TOKENS, seed: int = 0) -> Answers:
    """An answer with random results of every request of the live scorer; the same wherever it is made."""
    drawn = np.random.default_rng(seed)

    def result(reading: FeatureRequest) -> Tensor:
        if isinstance(reading.ask, HiddenStates):
            return torch.from_numpy(drawn.standard_normal((tokens, scorer.head.width), np.float32))
        return torch.from_numpy(drawn.random((tokens, 2), np.float32) * 5)

    return Answers([from_flags("?", "!", [])], {reading: [result(reading)] for reading in scorer.readings})


def latency_p99_ms(scorer: LiveScorer, tokens: int = TOKENS, blocks: int = 25, runs: int = 100) -> float:
    """The 99th percentile, in ms, of scoring one answer of `tokens` tokens on one core, the LLM left out.

    Taken from the fastest of several blocks: other load on a shared machine is not the scorer's latency.
    """
    answer = made_up_answer(scorer, tokens)
    scorer.score(answer)
    took = np.empty((blocks, runs))
    for at in np.ndindex(took.shape):
        start = time.perf_counter()
        scorer.score(answer)
        took[at] = time.perf_counter() - start
    return float(np.quantile(took, 0.99, axis=1).min() * 1000)


def base_model_ms(predictor: Predictor, rows: Sequence[Interaction]) -> float:
    """The median time, in ms, that the base model takes to read one of `rows`; 0 where the scorer needs no pass."""
    source, readings = predictor.source, predictor.scorer.readings
    if not readings or not rows:
        return 0.0
    store, took = FeatureStore(source.params.model, source.settings), []
    for row in (rows[0], *rows):  # the first of all loads the model
        requests = requests_of(source.params, source.settings, [([row], readings)])
        start = time.perf_counter()
        store.run(requests)
        took.append(1000 * (time.perf_counter() - start))
    return median(took[1:])


def _measure(file: Path) -> dict[str, float]:
    predictor = Predictor.open(file, load_settings())
    rows = list(itertools.islice(DataStore(paths.DATA).rows(Interaction), ANSWERS))
    return {"p99_ms": latency_p99_ms(predictor.scorer), "base_model_ms": base_model_ms(predictor, rows)}


if __name__ == "__main__":
    torch.set_num_threads(1)  # threads that wait for each other on a busy machine would be measured
    print(json.dumps(_measure(Path(sys.argv[1]))))
