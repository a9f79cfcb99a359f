from pathlib import Path

import pytest

from abstain.config.params import Params
from abstain.config.settings import Settings
from abstain.core.errors import AbstainError
from abstain.llm.signals.entailment import Entailment
from benchmarks.latency import measure_latencies
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
    model = str(save_encoder(tmp_path / "judge", "classify", num_labels=1))
    scorers = {"enabled": ("entropy", "context_gain", "entailment"), "entailment_model": model}
    changes = {
        "llm": make_params(save_tiny_model(tmp_path / "tiny-bank"), layer=1, site="mlp"),
        "scorers": shipped.scorers.model_copy(update=scorers),
        "sweep": shipped.sweep.model_copy(update={"layers": (3,), "sites": ("mlp",), "contexts": (1,)}),
        "perturbation": shipped.perturbation.model_copy(update={"tokens": 3, "n_copies": 1}),
    }
    return shipped.model_copy(update=changes)


def test_measure_latencies_times_every_scorer(
    params: Params, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    compute = Entailment._compute
    monkeypatch.setattr(Entailment, "_compute", lambda self, pairs: calls.append(len(pairs)) or compute(self, pairs))
    found = measure_latencies(params, settings, [LONG, SHORT])
    scorers = ["entropy", "context_gain", "entailment", "perturbation", "regressors", "fusion"]
    assert list(found) == [*PLACES, *scorers]
    assert all(0 < of.mean == of.p99 for of in found.values()), "one answer fits, so both are the same"
    assert calls == [1] * 4, "twice alone and twice in the fusion, never from the cache"
    assert not Path(settings.features).exists(), "the team's own cache is neither read nor written"
    with pytest.raises(AbstainError, match="no answer to time fits"):
        measure_latencies(params, settings, [LONG])
