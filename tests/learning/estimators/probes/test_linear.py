import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from abstain.learning.estimators.probes import linear as module_under_test
from abstain.learning.estimators.probes.base import predict_confidence
from abstain.learning.estimators.probes.linear import LinearProbe
from abstain.learning.estimators.training_rows import TrainingRows
from tests.learning.estimators.builders import PARAMS, D, make_planted, weights
from tests.tolerance import assert_near, tolerance


def make_features(rows: TrainingRows) -> np.ndarray:
    return np.stack([np.concatenate([row.mean(0).numpy(), row[-1].numpy()]) for row in rows.states]).astype(float)


def fits(rows: TrainingRows) -> list[tuple[float, float, torch.Tensor]]:
    """C, training loss and weights, step by step."""
    return [(step.value, step.train_loss, weights(step.probe).clone()) for step in LinearProbe.fit_path(rows, PARAMS)]


def test_linear_path_matches_scikit_learn() -> None:
    rows = make_planted(120, 1)
    rows.weight[::3] = 0.4
    correct, weight = rows.correct.numpy(), (rows.weight / rows.weight.mean()).double().numpy()
    steps = 0
    for step in LinearProbe.fit_path(rows, PARAMS):
        plain = make_pipeline(StandardScaler(), LogisticRegression(C=step.value, tol=1e-8, max_iter=10_000))
        plain.fit(make_features(rows), correct, logisticregression__sample_weight=weight)
        expected = plain.predict_proba(make_features(rows))[:, 1]
        found = predict_confidence(step.probe, rows.states).numpy()
        np.testing.assert_allclose(found, expected, atol=5e-3)
        assert step.train_loss == pytest.approx(log_loss(correct, expected, sample_weight=weight), abs=1e-3)
        steps += 1
    assert steps == LinearProbe.count_steps(PARAMS)


def test_linear_path_loss_falls_with_penalty() -> None:
    penalties, losses, _ = zip(*fits(make_planted(120, 1)), strict=True)
    assert list(penalties) == sorted(penalties)
    assert list(losses) == sorted(losses, reverse=True)
    assert penalties[0] * 2 * D == pytest.approx(10**-1.5) and penalties[-1] * 2 * D == pytest.approx(10**2.5)


def test_linear_path_depends_on_weight_ratio() -> None:
    rows = make_planted(60, 1)
    rows.weight[::2] = 0.5
    doubled = TrainingRows(rows.states, rows.correct, rows.weight * 2)  # exact in floating point, and so is its ratio
    assert all(torch.equal(a, b) for (*_, a), (*_, b) in zip(fits(rows), fits(doubled), strict=True))


def test_linear_path_memory_mapped_features_give_same_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_planted(150, 1)
    in_memory = fits(rows)
    monkeypatch.setattr(module_under_test, "MEMORY_VALUES", 0)
    seen = []
    monkeypatch.setattr(np, "memmap", lambda *args, _made=np.memmap, **more: seen.append(1) or _made(*args, **more))
    on_disk = fits(rows)
    assert seen == [1]
    for one, other in zip(in_memory, on_disk, strict=True):
        assert one[0] == other[0] and one[1] == pytest.approx(other[1], rel=tolerance(torch.float32))
        assert_near(one[2], other[2])
