from itertools import islice

import numpy as np
import pytest
import torch

from abstain.config.params import Architecture
from abstain.learning.estimators.probe_registry import PROBES
from abstain.learning.estimators.probes import descent as module_under_test
from abstain.learning.estimators.probes.descent import DimensionDropout, probe_loss
from abstain.learning.estimators.probes.lstm import LSTMProbe
from abstain.learning.estimators.training_rows import TrainingRows, pad
from tests.learning.estimators.builders import EVERY_KIND, PARAMS, Watched, build_probe, make_planted, ragged, weights


def compute_loss(logits: np.ndarray, correct: np.ndarray, weight: np.ndarray, strength: float, delta: float) -> float:
    """Equations 7 to 9 of the paper, in float64."""
    odds, share = np.exp(logits.astype(float)), weight / weight.sum()
    p = odds / odds.sum(axis=1, keepdims=True)
    x = abs(share @ p.max(axis=1) - share @ (p.argmax(axis=1) == correct))
    huber = x**2 / 2 if x <= delta else delta * (x - delta / 2)
    return -share @ np.log(p[np.arange(len(p)), correct]) + strength * huber


@pytest.mark.parametrize("huber_lambda", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("huber_delta", [0.01, 1.0])  # beyond the knee, and within it
@pytest.mark.parametrize("weighted", [False, True])
def test_probe_loss_matches_equations_7_to_9(
    huber_lambda: float, huber_delta: float, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module_under_test, "HUBER_DELTA", huber_delta)
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(9, 2, generator=generator)
    correct = torch.tensor([0, 1, 1, 0, 1, 1, 0, 1, 0])
    weight = torch.rand(9, generator=generator) + 0.1 if weighted else torch.ones(9)
    weight[0] = 0.0 if weighted else 1.0
    loss = probe_loss(logits, correct, weight, huber_lambda)
    expected = compute_loss(logits.numpy(), correct.numpy(), weight.numpy(), huber_lambda, huber_delta)
    assert float(loss) == pytest.approx(expected, abs=1e-6)


def test_dimension_dropout_is_equal_for_all_tokens() -> None:
    torch.manual_seed(0)
    dropped = DimensionDropout(0.5)(torch.ones(6, 9, 40))
    assert (dropped == dropped[:, :1]).all()
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert not torch.equal(dropped[0], dropped[1])


@pytest.mark.parametrize("architecture", [name for name in EVERY_KIND if name != "linear"])
def test_probe_dropout_applies_in_training_only(architecture: Architecture) -> None:
    module, batch = build_probe(architecture, dropout=0.5), pad(ragged(3, 8))
    with torch.no_grad():
        assert torch.equal(module(*batch), module(*batch))
        module.train()
        assert not torch.equal(module(*batch), module(*batch))


@pytest.mark.parametrize("architecture", [name for name in EVERY_KIND if name != "linear"])
def test_fit_path_is_independent_of_global_rng(architecture: Architecture) -> None:
    train = make_planted(70, 1)

    def fit(seed: int, disturb: int) -> list[tuple[float, float, list[float]]]:
        path, found = PROBES[architecture].probe_class.fit_path(train, PARAMS.model_copy(update={"seed": seed})), []
        for step in islice(path, 3):
            torch.rand(disturb)
            found.append((step.value, step.train_loss, weights(step.probe).tolist()))
        return found

    torch.manual_seed(3)
    undisturbed = torch.rand(5)
    torch.manual_seed(3)
    one = fit(PARAMS.seed, disturb=0)
    assert torch.equal(torch.rand(5), undisturbed)
    assert fit(PARAMS.seed, disturb=17) == one and fit(PARAMS.seed + 1, disturb=0)[0] != one[0]
    assert [step[0] for step in one] == [1, 2, 3]


def test_fit_path_reads_states_once_per_epoch() -> None:
    rows = make_planted(80, 1)
    watched = Watched(rows.states)
    params = PARAMS.model_copy(update={"max_epochs": 3})
    path = list(LSTMProbe.fit_path(TrainingRows(watched, rows.correct, rows.weight), params))
    assert len(path) == LSTMProbe.count_steps(params) == 3
    assert {watched.read[i] for i in range(1, 80)} == {4} and watched.read[0] == 5  # the first says the width, too
