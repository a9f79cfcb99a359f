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
from tests.llm.builders import WINDOW, make_params, save_tiny_model
from tests.llm.conftest import settings
from tests.llm.signals.builders import TEXTS, interaction, save_encoder

__all__ = ["settings"]

pytestmark = pytest.mark.soak(twin="test_latency_benchmark_lists_scorers")

SHORT, LONG = interaction("5 euros", TEXTS[:1]), interaction("x" * WINDOW, name="i-2")
PLACES = ["probe: layer 1, mlp, all chunks", "probe: layer 3, mlp, all chunks", "probe: layer 1, mlp, best chunk"]


@pytest.fixture
def params(tmp_path: Path) -> Params:
    shipped = shipped_params()
    changes = {
        "llm": make_params(save_tiny_model(tmp_path / "tiny-bank"), layer=1, site="mlp"),
        "scorers": shipped.scorers.model_copy(update={"enabled": ("entropy", "context_gain", "entailment")}),
        "sweep": shipped.sweep.model_copy(update={"layers": (3,), "sites": ("mlp",), "contexts": (1,)}),
        "perturbation": shipped.perturbation.model_copy(update={"tokens": 3, "n_copies": 1}),
    }
    return shipped.model_copy(update=changes)


def test_measure_latencies_times_every_scorer(params: Params, settings: Settings) -> None:
    seen: list[tuple[int, int]] = []
    found = measure_latencies(params, settings, [SHORT], lambda done, total: seen.append((done, total)))
    assert list(found) == [*PLACES, "entropy", "context_gain", "perturbation", "regressors", "fusion"]
    assert all(0 < of.mean == of.p99 for of in found.values()), "one answer, so both are the same"
    assert seen == [(at, len(found)) for at in range(len(found) + 1)]
    assert not Path(settings.features).exists(), "the team's own cache is neither read nor written"
    none = params.model_copy(update={"regressors": params.regressors.model_copy(update={"kinds": ()})})
    assert list(measure_latencies(none, settings, [SHORT])) == [*PLACES, "entropy", "context_gain", "fusion"]


def test_latency_p99_of_few_times_is_the_longest() -> None:
    assert Latency((1.0, 2.0, 9.0)).p99 == 9.0 and Latency((1.0, 2.0, 9.0)).mean == 4.0
    assert Latency(tuple(float(n) for n in range(101))).p99 == 99.0


@pytest.mark.heavy
def test_measure_latencies_shares_nothing_between_answers(params: Params, settings: Settings, monkeypatch: Any) -> None:
    engines: list[Engine] = []
    monkeypatch.setattr(
        Engine, "run", lambda self, asked, tell=None, run=Engine.run: engines.append(self) or run(self, asked)
    )
    tokens = []
    for rows in range(1, 4):
        measure_latencies(params, settings, [SHORT] * rows)
        tokens.append(engines[-1].stats.forward_tokens)
    assert tokens[2] - tokens[1] == tokens[1] - tokens[0] > 0, "an equal answer costs as much again"


def test_measure_latencies_includes_auxiliary_models(
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


def test_measure_latencies_skips_too_long_answers(params: Params, settings: Settings) -> None:
    assert measure_latencies(params, settings, [LONG, SHORT])
    with pytest.raises(AbstainError, match="no answer to time fits"):
        measure_latencies(params, settings, [LONG])
