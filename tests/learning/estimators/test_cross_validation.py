import os
from collections.abc import Sequence
from functools import cache
from itertools import islice, product

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

from abstain.config.params import Architecture
from abstain.core.errors import AbstainError
from abstain.core.labels import Labels
from abstain.learning.estimators import cross_validation
from abstain.learning.estimators import training_rows as rows_module
from abstain.learning.estimators.cross_validation import FittedProbe, fit_probe
from abstain.learning.estimators.probe_registry import PROBES
from abstain.learning.estimators.probes.base import Probe, predict_confidence, predict_logits
from abstain.learning.estimators.probes.descent import probe_loss
from abstain.learning.estimators.training_rows import TrainingRows
from abstain.learning.metrics.weighted_metrics import auroc
from tests.learning.estimators.builders import EVERY_KIND, PARAMS, Watched, make_groups, make_planted, weights
from tests.tolerance import assert_near

every_kind = pytest.mark.parametrize("architecture", EVERY_KIND)
FEW = PARAMS.model_copy(update={"max_epochs": 3, "folds": 3})
QUICK = PARAMS.model_copy(update={"max_epochs": 6, "folds": 3, "learning_rate": 0.03, "batch_size": 16})
"""Enough to learn what is planted in `ROWS` rows: six seeds gave every kind an AUROC of at least 0.77."""
ROWS, GROUPS = 240, make_groups(240)


def training_rows() -> TrainingRows:
    """A planted signal, and every third row of weight 0."""
    train = make_planted(ROWS, 10)
    train.weight[::3] = 0
    return train


@cache
def fit_planted(architecture: Architecture) -> tuple[FittedProbe, list[tuple[int, int]]]:
    """A fit to `training_rows`, and the progress that it reported; read by several tests."""
    seen: list[tuple[int, int]] = []
    fitted = fit_probe(architecture, training_rows(), GROUPS, QUICK, lambda done, total: seen.append((done, total)))
    return fitted, seen


@pytest.mark.heavy
@every_kind
def test_fit_probe_ranks_unseen_rows(architecture: Architecture) -> None:
    """Rows of weight 0 are not trained on, and get their confidence all the same."""
    fitted, seen = fit_planted(architecture)
    train, test = training_rows(), make_planted(200, 3)
    assert fitted.out_of_fold.shape == (ROWS,) and fitted.out_of_fold.dtype == np.float32
    assert auroc(train.correct.numpy(), fitted.out_of_fold) > 0.75
    assert auroc(train.correct[::3].numpy(), fitted.out_of_fold[::3]) > 0.75
    assert auroc(test.correct.numpy(), predict_confidence(fitted.probe, test.states).numpy()) > 0.75
    assert (fitted.probe.architecture, fitted.probe.training) == (architecture, False)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen}) and len({total for _, total in seen}) == 1
    assert seen[-1][0] == seen[-1][1]


@pytest.mark.heavy
@every_kind
def test_fit_probe_ignores_zero_weight_labels_and_global_rng(architecture: Architecture) -> None:
    """Such a label is in no sum; and whatever was drawn in between: a stage's files are hashed."""
    fitted, _ = fit_planted(architecture)
    train = training_rows()
    spoilt = TrainingRows(train.states, torch.where(train.weight > 0, train.correct, 1 - train.correct), train.weight)
    torch.rand(17)
    same = fit_probe(architecture, spoilt, GROUPS, QUICK)
    assert torch.equal(weights(fitted.probe), weights(same.probe))
    assert np.array_equal(fitted.out_of_fold, same.out_of_fold)
    assert fitted.history == same.history


@pytest.mark.heavy
@pytest.mark.parametrize(("architecture", "held"), [("linear", True), ("linear", False), ("pca", False)])
def test_fit_probe_lazy_states_give_same_probe(
    architecture: Architecture, held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two paths that read states each in its own way."""
    expected, _ = fit_planted(architecture)
    train = training_rows()
    watched = Watched(train.states)
    if not held:
        monkeypatch.setattr(rows_module, "MEMORY_VALUES", 0)
    lazy = fit_probe(architecture, TrainingRows(watched, train.correct, train.weight), GROUPS, QUICK)
    assert (set(watched.read.values()) == {1}) == held, "what fits into memory is read once"
    assert_near(weights(lazy.probe), weights(expected.probe))
    assert_near(lazy.out_of_fold, expected.out_of_fold)
    assert lazy.history.selected_step == expected.history.selected_step
    assert_near(lazy.history.held_out_loss, expected.history.held_out_loss, np.float32)


@pytest.mark.heavy
@every_kind
def test_fit_probe_selects_step_of_least_held_out_loss(architecture: Architecture) -> None:
    """By hand: what a fold's probe has learnt is of other groups."""
    train, groups = make_planted(90, 1), make_groups(90)
    train.weight[::2] = 0.4
    fitted = fit_probe(architecture, train, groups, FEW)
    history, entry = fitted.history, PROBES[architecture]
    params = entry.apply_fixed_params(FEW)
    labels = Labels(train.correct.numpy(), train.weight.numpy(), groups)
    fold = torch.from_numpy(labels.assign_folds(params.folds, params.seed))
    assert all(len(set(fold[groups == group].tolist())) == 1 for group in groups)
    logits = torch.empty(90, 2)
    for f in range(3):
        held_out = (fold == f).nonzero().flatten()
        path = entry.probe_class.fit_path(train.subset((fold != f).nonzero().flatten()), params)
        step = next(islice(path, history.selected_step, None))
        logits[held_out] = predict_logits(step.probe, train.subset(held_out).states)
    loss = probe_loss(logits, train.correct, train.weight, params.huber_lambda, params.huber_delta)
    assert float(loss) == pytest.approx(min(history.held_out_loss), abs=1e-6)
    np.testing.assert_allclose(fitted.out_of_fold, logits.softmax(1)[:, 1], atol=1e-5)
    whole = next(islice(entry.probe_class.fit_path(train, params), history.selected_step, None))
    assert_near(weights(whole.probe), weights(fitted.probe))
    assert history.step_values[history.selected_step] == whole.value


def test_fit_probe_patience_stops_training() -> None:
    """A learning rate at which it overfits noise soon: the end is worse than the best."""
    params = PARAMS.model_copy(update={"learning_rate": 0.03, "max_epochs": 60, "patience": 5, "dropout": 0.0})
    history = fit_probe("lstm", make_planted(60, 1, strength=0.2), make_groups(60), params).history
    losses = history.held_out_loss
    assert len(history.step_values) == len(losses) == len(history.train_loss) == history.selected_step + 6 < 60
    assert losses[history.selected_step] == min(losses) < losses[-1]
    assert history.step_values == tuple(range(1, len(losses) + 1))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["linear", "pca", "lstm"])
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core has no order of sums to change")
def test_fit_probe_is_independent_of_thread_count(architecture: Architecture) -> None:
    """Wide states, whose sums are long enough to be shared out among threads."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(120, 5, 300, generator=generator)
    rows = TrainingRows(list(states), torch.randint(0, 2, (120,), generator=generator), torch.ones(120))
    found, params = [], FEW.model_copy(update={"max_epochs": 1, "folds": 2})
    for threads in (1, 2):
        torch.set_num_threads(threads)
        with threadpool_limits(threads):
            found.append(fit_probe(architecture, rows, make_groups(120), params))
    assert torch.equal(weights(found[0].probe), weights(found[1].probe))
    assert np.array_equal(found[0].out_of_fold, found[1].out_of_fold)


def test_fit_probe_flushes_denormal_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """With which arithmetic is ten times as slow; each fold's thread has a setting of its own."""
    found: list[float] = []

    def noted(probe: Probe, rows: Sequence[torch.Tensor]) -> torch.Tensor:
        found.append(float(torch.tensor(1e-39) * 0.5))
        return predict_logits(probe, rows)

    monkeypatch.setattr(cross_validation, "predict_logits", noted)
    fit_probe("attention", make_planted(60, 1), make_groups(60), FEW.model_copy(update={"max_epochs": 2, "folds": 3}))
    assert found == [0.0] * 6


def test_fit_probe_zero_weight_batch_is_finite() -> None:
    train = make_planted(40, 1)
    train.weight[20:] = 0
    fitted = fit_probe("lstm", train, make_groups(40), FEW.model_copy(update={"batch_size": 2, "max_epochs": 1}))
    assert torch.isfinite(weights(fitted.probe)).all()
    assert np.isfinite([*fitted.history.train_loss, *fitted.history.held_out_loss]).all()


@pytest.mark.heavy
def test_fit_probe_unlearnable_rows_raise() -> None:
    train, groups = make_planted(40, 1), make_groups(40)
    right = train.correct == 1
    lonely = TrainingRows(train.states, train.correct, right.float())  # a class that weighs nothing is not there
    for one_class in (train.subset(right.nonzero().flatten()), lonely, train.subset(torch.arange(0))):
        with pytest.raises(AbstainError, match="one class only"):
            fit_probe("linear", one_class, groups[: len(one_class)], PARAMS)
    with pytest.raises(AbstainError, match=r"attention.*probe\.learning_rate"):
        fit_probe("attention", train, groups, FEW.model_copy(update={"learning_rate": 1e38}))
    for architecture, value in product(PROBES, (float("nan"), float("-inf"))):
        train.states[7][0, 0] = value
        with pytest.raises(AbstainError, match="set ABSTAIN_DTYPE=float32"):
            fit_probe(architecture, train, groups, FEW)
