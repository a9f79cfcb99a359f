import pytest
import torch
from torch import Tensor

from abstain.learning.estimators.probes import pca as module_under_test
from abstain.learning.estimators.probes.pca import PCAProbe
from abstain.learning.estimators.training_rows import TrainingRows
from tests.learning.estimators.builders import PARAMS, D, Watched, ragged
from tests.tolerance import assert_near


def make_rows(states: list[Tensor]) -> TrainingRows:
    return TrainingRows(states, torch.zeros(len(states), dtype=torch.int64), torch.ones(len(states)))


def make_correlated(rows: int, seed: int = 0) -> list[Tensor]:
    """States that vary in four directions, and little in others."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(4, D, generator=generator)
    lengths = torch.randint(1, 12, (rows,), generator=generator).tolist()
    return [
        7 + 2 * torch.randn(n, 4, generator=generator) @ mix + 0.1 * torch.randn(n, D, generator=generator)
        for n in lengths
    ]


def test_pca_probe_components_match_exact_decomposition() -> None:
    states = make_correlated(60)
    probe = PCAProbe(D, 4, 8, 0.0)
    probe.fit_preprocessing(make_rows(states))
    tokens = torch.cat(states).double()
    standard = (tokens - tokens.mean(0)) / tokens.std(0)
    _, vectors = torch.linalg.eigh(standard.T @ standard)
    expected = vectors[:, -4:]
    found = probe.projection.double()
    found = found / found.norm(dim=0)
    # The same space: the cosines of its principal angles with the exact one are ones.
    cosines = torch.linalg.svdvals(expected.T @ found)
    torch.testing.assert_close(cosines, torch.ones(4, dtype=torch.float64), atol=1e-5, rtol=0)


def test_pca_probe_projection_is_whitened() -> None:
    states = make_correlated(60)
    probe = PCAProbe(D, 4, 8, 0.0)
    probe.fit_preprocessing(make_rows(states))
    compressed = probe.standardize(torch.cat(states)) @ probe.projection
    torch.testing.assert_close(torch.cov(compressed.T), torch.eye(4), atol=1e-2, rtol=0)


def test_pca_probe_fewer_tokens_than_components_is_finite() -> None:
    probe = PCAProbe.from_params(D, PARAMS)
    assert module_under_test.COMPONENTS > D == probe.hyperparameters["components"]
    states = ragged(2, 1)
    probe.fit_preprocessing(make_rows(states))
    compressed = probe.standardize(torch.cat(states)) @ probe.projection
    assert float(compressed.abs().max()) < 10


def test_pca_probe_samples_evenly_spaced_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    states = make_correlated(60)
    watched = Watched(states)
    rows = TrainingRows(watched, torch.zeros(60, dtype=torch.int64), torch.ones(60))
    monkeypatch.setattr(module_under_test, "SAMPLE_TOKENS", int(rows.lengths.sum()) // 3 + 1)
    probe = PCAProbe(D, 4, 8, 0.0)
    probe.fit_preprocessing(rows)
    assert [i for i, reads in watched.read.items() if reads == 2] == list(range(0, 60, 3))
    whole = PCAProbe(D, 4, 8, 0.0)
    monkeypatch.undo()
    whole.fit_preprocessing(make_rows(states))
    directions = [p.projection / p.projection.norm(dim=0) for p in (probe, whole)]
    assert float(torch.linalg.svdvals(directions[0].T @ directions[1]).min()) > 0.99
    assert_near(probe.mean, whole.mean)  # mean and deviation are of all rows
    assert_near(probe.scale, whole.scale)
