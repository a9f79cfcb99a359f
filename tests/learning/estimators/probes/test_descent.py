from itertools import islice, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from abstain.config.params import Architecture
from abstain.learning.estimators.probe_registry import PROBES
from abstain.learning.estimators.probes import descent as module_under_test
from abstain.learning.estimators.probes.descent import DimensionDropout, probe_loss
from abstain.learning.estimators.probes.lstm import LSTMProbe
from abstain.learning.estimators.training_rows import TrainingRows
from tests.learning.estimators.builders import EVERY_KIND, PARAMS, Watched, make_planted, weights


def compute_loss(
    logits: np.ndarray, correct: np.ndarray, weight: np.ndarray, huber_lambda: float, huber_delta: float
) -> float:
    """Equations 7 to 9 of the paper, row by row, in float64."""
    share = weight / weight.sum()
    total, confident, accurate = 0.0, 0.0, 0.0
    for z, y, s in zip(logits.astype(float), correct, share, strict=True):
        p = np.exp(z) / np.exp(z).sum()
        total += s * -np.log(p[y])
        confident += s * p.max()
        accurate += s * (p.argmax() == y)
    x = abs(confident - accurate)
    huber = x**2 / 2 if x <= huber_delta else huber_delta * (x - huber_delta / 2)
    return total + huber_lambda * huber


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


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=80), st.integers(1, 7), st.integers(0, 99))
def test_length_batches_have_every_row_and_similar_lengths(lengths: list[int], size: int, seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    made = module_under_test._make_length_batches(torch.tensor(lengths), size, draws)
    assert sorted(torch.cat(made).tolist()) == list(range(len(lengths)))
    assert all(len(batch) <= size for batch in made)
    assert len(made) <= -(-len(lengths) // size)
    if len(made) <= module_under_test.POOL:  # of one pool: no two batches' lengths overlap
        spans = sorted((min(lengths[i] for i in b), max(lengths[i] for i in b)) for b in (b.tolist() for b in made))
        assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_length_batches_differ_between_epochs() -> None:
    draws = torch.Generator().manual_seed(0)
    one, other = (module_under_test._make_length_batches(torch.arange(600) % 30, 32, draws) for _ in range(2))
    assert [batch.tolist() for batch in one] != [batch.tolist() for batch in other]


def test_dimension_dropout_is_equal_for_all_tokens() -> None:
    torch.manual_seed(0)
    dropped = DimensionDropout(0.5)(torch.ones(6, 9, 40))
    assert (dropped == dropped[:, :1]).all()
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert not torch.equal(dropped[0], dropped[1])
    assert torch.equal(DimensionDropout(0.5).eval()(torch.ones(2, 3, 4)), torch.ones(2, 3, 4))


@pytest.mark.parametrize("architecture", [name for name in EVERY_KIND if name != "linear"])
def test_fit_path_is_independent_of_global_rng(
    architecture: Architecture,
) -> None:
    kind, train = PROBES[architecture].probe_class, make_planted(70, 1)
    torch.manual_seed(3)
    undisturbed = torch.rand(5)
    torch.manual_seed(3)
    one = [(s.value, s.train_loss, weights(s.probe).clone()) for s in islice(kind.fit_path(train, PARAMS), 3)]
    assert torch.equal(torch.rand(5), undisturbed)
    again = []
    for step in islice(kind.fit_path(train, PARAMS), 3):
        torch.rand(17)
        again.append((step.value, step.train_loss, weights(step.probe).clone()))
    other = next(kind.fit_path(train, PARAMS.model_copy(update={"seed": 8})))
    assert [step[:2] for step in one] == [step[:2] for step in again]
    assert all(torch.equal(a[2], b[2]) for a, b in zip(one, again, strict=True))
    assert not torch.equal(one[0][2], weights(other.probe))
    assert [step[0] for step in one] == [1, 2, 3]


def test_fit_path_reads_states_once_per_epoch() -> None:
    rows = make_planted(80, 1)
    watched = Watched(rows.states)
    params = PARAMS.model_copy(update={"max_epochs": 3})
    path = list(LSTMProbe.fit_path(TrainingRows(watched, rows.correct, rows.weight), params))
    assert len(path) == LSTMProbe.count_steps(params) == 3
    assert {watched.read[i] for i in range(1, 80)} == {4} and watched.read[0] == 5  # the first says the width, too
