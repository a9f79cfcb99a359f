from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from abstain.config.params import Params
from abstain.config.settings import Settings
from abstain.core.errors import AbstainError
from abstain.llm.engine.engine import Engine
from abstain.llm.signals.entailment import Entailment
from benchmarks.latency import Latency, measure_latencies
from tests.checkout import shipped_params
from tests.llm.builders import WINDOW, save_tiny_model
from tests.llm.conftest import settings
from tests.llm.signals.builders import TEXTS, interaction, save_encoder

__all__ = ["settings"]

pytestmark = pytest.mark.soak(twin="test_latency_benchmark_lists_scorers")

SHORT, LONG = interaction("5 euros", TEXTS[:1]), interaction("x" * WINDOW, name="i-2")
PLACES = ["probe: layer 1, mlp, all chunks", "probe: layer 3, mlp, all chunks", "probe: layer 1, mlp, best chunk"]


@pytest.fixture
def params(tmp_path: Path) -> Params:
    shipped = shipped_params()
    model = str(save_tiny_model(tmp_path / "tiny-bank"))
    llm = {"model": model, "layout": "rag-plain-v1", "layer": 1, "site": "mlp", "too_long": "refuse"}
    changes = {
        "llm": shipped.llm.model_copy(update=llm),
        "scorers": shipped.scorers.model_copy(update={"enabled": ("entropy", "context_gain", "entailment")}),
        "sweep": shipped.sweep.model_copy(update={"layers": (3,), "sites": ("mlp",), "contexts": (1,)}),
        "perturbation": shipped.perturbation.model_copy(update={"tokens": 3, "n_copies": 1}),
    }
    return shipped.model_copy(update=changes)


def test_everything_that_can_be_had_is_timed(params: Params, settings: Settings) -> None:
    seen: list[tuple[int, int]] = []
    found = measure_latencies(params, settings, [SHORT], lambda done, total: seen.append((done, total)))
    assert list(found) == [*PLACES, "entropy", "context_gain", "perturbation", "regressors", "fusion"]
    assert all(0 < of.mean == of.p99 for of in found.values()), "one answer, so both are the same"
    assert seen == [(at, len(found)) for at in range(len(found) + 1)]


@pytest.mark.heavy
def test_nothing_is_taken_from_another_answer(params: Params, settings: Settings, monkeypatch: Any) -> None:
    engines: list[Engine] = []
    monkeypatch.setattr(
        Engine, "run", lambda self, asked, tell=None, run=Engine.run: engines.append(self) or run(self, asked)
    )
    tokens = []
    for rows in range(1, 4):
        measure_latencies(params, settings, [SHORT] * rows)
        tokens.append(engines[-1].stats.forward_tokens)
    assert tokens[2] - tokens[1] == tokens[1] - tokens[0] > 0, "an equal answer costs as much again"


def test_of_few_times_the_longest_is_said_and_of_many_the_percentile() -> None:
    assert Latency((1.0, 2.0, 9.0)).p99 == 9.0 and Latency((1.0, 2.0, 9.0)).mean == 4.0
    assert Latency(tuple(float(n) for n in range(101))).p99 == 99.0


def test_a_scorer_with_a_model_of_its_own_is_timed_and_part_of_the_fusion(
    params: Params, settings: Settings, tmp_path: Path, monkeypatch: Any
) -> None:
    model = str(save_encoder(tmp_path / "judge", "classify", num_labels=1))
    none = params.regressors.model_copy(update={"kinds": ()})
    scorers = params.scorers.model_copy(update={"enabled": ("entailment",), "entailment_model": model})
    calls: list[int] = []
    monkeypatch.setattr(
        Entailment,
        "_compute",
        lambda self, pairs, own=Entailment._compute: calls.append(len(pairs)) or own(self, pairs),
    )
    found = measure_latencies(
        params.model_copy(update={"scorers": scorers, "regressors": none}), settings, [SHORT, SHORT]
    )
    assert list(found) == [*PLACES, "entailment", "fusion"]
    assert calls == [1] * 6, "the first answer twice and the second once, alone and in the fusion, never from the cache"


def test_without_regressors_no_context_is_perturbed(params: Params, settings: Settings) -> None:
    none = params.model_copy(update={"regressors": params.regressors.model_copy(update={"kinds": ()})})
    assert list(measure_latencies(none, settings, [SHORT])) == [*PLACES, "entropy", "context_gain", "fusion"]


def test_the_team_s_own_feature_cache_is_neither_read_nor_written(params: Params, settings: Settings) -> None:
    measure_latencies(params, settings, [SHORT])
    assert not Path(settings.features).exists()


def test_what_does_not_fit_the_window_is_not_timed(params: Params, settings: Settings) -> None:
    assert measure_latencies(params, settings, [LONG, SHORT])
    with pytest.raises(AbstainError, match="no answer to time fits the base model's context length: `abstain ingest`"):
        measure_latencies(params, settings, [LONG])
