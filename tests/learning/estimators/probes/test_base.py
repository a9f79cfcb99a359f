import json
import weakref
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from abstain.config.params import Architecture
from abstain.core.errors import AbstainError
from abstain.learning.estimators import training_rows as rows_module
from abstain.learning.estimators.probe_registry import PROBES, load_probe, save_probe
from abstain.learning.estimators.probes import linear as linear_module
from abstain.learning.estimators.probes import pca as pca_module
from abstain.learning.estimators.probes.attention import AttentionProbe
from abstain.learning.estimators.probes.base import logits_to_confidence, predict_confidence, predict_logits
from abstain.learning.estimators.probes.descent import DimensionDropout, probe_loss
from abstain.learning.estimators.probes.linear import LinearProbe
from abstain.learning.estimators.probes.lstm import LSTMProbe
from abstain.learning.estimators.probes.mlp import MLPProbe
from abstain.learning.estimators.probes.pca import PCAProbe
from abstain.learning.estimators.training_rows import TrainingRows, pad
from tests.learning.estimators.builders import (
    EVERY_KIND,
    PARAMS,
    D,
    Watched,
    build_probe,
    make_planted,
    ragged,
    weights,
)
from tests.tolerance import assert_near, tolerance

lengths = st.lists(st.integers(1, 15), min_size=1, max_size=6)
every_kind = pytest.mark.parametrize("architecture", EVERY_KIND)


@pytest.mark.heavy
@every_kind
@settings(deadline=None, max_examples=20)
@given(lengths=lengths, filler=st.sampled_from([0.0, -3.0, 1e6]), more=st.integers(1, 5))
def test_probes_ignore_padding(architecture: Architecture, lengths: list[int], filler: float, more: int) -> None:
    module, (states, ends) = build_probe(architecture), pad(ragged(*lengths))
    filled = torch.full((len(lengths), states.shape[1] + more, D), filler)
    for row, end in enumerate(ends):
        filled[row, :end] = states[row, :end]
    with torch.inference_mode():
        torch.testing.assert_close(module(filled, ends), module(states, ends), atol=1e-5, rtol=1e-5)


@every_kind
def test_predict_logits_is_batch_invariant(architecture: Architecture, monkeypatch: pytest.MonkeyPatch) -> None:
    module, rows = build_probe(architecture), ragged(3, 1, 14, 7, 7)
    alone = torch.cat([predict_logits(module, [row]) for row in rows])
    torch.testing.assert_close(predict_logits(module, rows), alone, atol=1e-5, rtol=1e-5)
    assert alone.shape == (5, 2)
    confidence = logits_to_confidence(alone)
    assert float(confidence.max() - confidence.min()) > 0.05
    monkeypatch.setattr(rows_module, "BATCH_VALUES", 20 * D)
    for batched in (predict_confidence(module, rows), logits_to_confidence(predict_logits(module, iter(rows)))):
        torch.testing.assert_close(batched, confidence, atol=1e-5, rtol=1e-5)
    assert predict_confidence(module, []).shape == (0,)


def test_fit_standardization_constant_dimension_keeps_scale() -> None:
    rows, module = ragged(7, 3, 12), build_probe("linear")
    for row in rows:
        row[:, 2] = 4.0
    module.fit_standardization(rows)
    torch.testing.assert_close(module.standardize(rows[0] + 0.5)[:, 2], torch.full((7,), 0.5))
    module.fit_standardization([torch.full((1, D), 3.0)])
    assert torch.equal(module.mean, torch.full((D,), 3.0)) and torch.equal(module.scale, torch.ones(D))


@settings(deadline=None, max_examples=30)
@given(lengths, st.sampled_from([0.0, 5.0, -1e4, 1e7]), st.sampled_from([1e-3, 1.0, 100.0]), st.integers(0, 99))
def test_fit_standardization_matches_two_pass_formula(
    lengths: list[int], mean: float, deviation: float, seed: int
) -> None:
    """Also where a deviation is 1e-10 of its mean, of which a sum of squares in float64 would keep nothing."""
    generator = torch.Generator().manual_seed(seed)
    rows = [mean + deviation * torch.randn(n, D, generator=generator, dtype=torch.float64) for n in [*lengths, 2]]
    copies = [row.clone() for row in rows]
    module = build_probe("linear")
    module.fit_standardization(iter(rows))
    tokens = torch.cat(rows)
    expected = tokens.std(0)
    torch.testing.assert_close(module.mean, tokens.mean(0).float(), atol=0, rtol=1e-6)
    torch.testing.assert_close(
        module.scale, torch.where(expected < 1e-6, 1.0, expected).float(), atol=0, rtol=1e-5, check_dtype=False
    )
    assert all(torch.equal(row, copy) for row, copy in zip(rows, copies, strict=True)), "rows were changed"


def test_fit_standardization_holds_one_row() -> None:
    seen: list[weakref.ref[Tensor]] = []

    def rows() -> Iterator[Tensor]:
        for row in range(20):
            assert sum(ref() is not None for ref in seen) <= 1
            made = torch.randn(3, D) + row
            seen.append(weakref.ref(made))
            yield made
            del made

    build_probe("linear").fit_standardization(rows())
    assert len(seen) == 20


def test_attention_probe_matches_definition() -> None:
    """By its definition, row by row: each head pools first, and classifies then."""
    module, rows = build_probe("attention"), ragged(1, 4, 9)
    assert isinstance(module, AttentionProbe)
    heads = module.hyperparameters["heads"]
    queries, *values = module.queries_and_values.weight.detach().split(heads)
    _, *biases = module.queries_and_values.bias.detach().split(heads)
    for row in rows:
        standard = (row - module.mean) / module.scale
        pooled = (standard @ queries.T).softmax(0).T @ standard
        logits = [(pooled * weight).sum() + bias.sum() for weight, bias in zip(values, biases, strict=True)]
        with torch.inference_mode():
            torch.testing.assert_close(module(*pad([row]))[0], torch.stack(logits), atol=1e-4, rtol=1e-4)


def test_mlp_probe_matches_definition_in_any_order() -> None:
    module, rows = build_probe("mlp"), ragged(1, 4, 9)
    assert isinstance(module, MLPProbe)
    for row in rows:
        mean = ((row - module.mean) / module.scale).mean(0)
        expected = module.head.weight @ (module.hidden.weight @ mean + module.hidden.bias).clamp(0) + module.head.bias
        with torch.inference_mode():
            torch.testing.assert_close(module(*pad([row.flip(0)]))[0], expected, atol=1e-4, rtol=1e-4)


@settings(deadline=None, max_examples=30)
@given(lengths)
def test_lstm_probe_matches_packed_sequence(lengths: list[int]) -> None:
    module, rows = build_probe("lstm"), ragged(*lengths)
    assert isinstance(module, LSTMProbe)
    standard = nn.utils.rnn.pack_sequence([(row - module.mean) / module.scale for row in rows], enforce_sorted=False)
    with torch.inference_mode():
        _, (last, _) = module.reader.lstm(standard)
        torch.testing.assert_close(module(*pad(rows)), module.reader.head(last[0]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("filler", [float("nan"), float("-inf")])
def test_lstm_probe_ignores_nan_padding(filler: float) -> None:
    module, (states, ends) = build_probe("lstm"), pad(ragged(4, 9))
    filled = states.clone()
    filled[0, 4:] = filler
    with torch.inference_mode():
        torch.testing.assert_close(module(filled, ends), module(states, ends))


def fits(rows: TrainingRows) -> list[tuple[float, float, torch.Tensor]]:
    """C, training loss and weights, step by step."""
    return [(step.value, step.train_loss, weights(step.probe).clone()) for step in LinearProbe.fit_path(rows, PARAMS)]


@pytest.mark.heavy
def test_linear_path_matches_scikit_learn() -> None:
    rows = make_planted(120, 1)
    rows.weight[::3] = 0.4
    features = torch.stack([torch.cat([row.mean(0), row[-1]]) for row in rows.states]).double().numpy()
    correct, penalties = rows.correct.numpy(), []
    weight = (rows.weight / rows.weight.mean()).double().numpy()
    for step in LinearProbe.fit_path(rows, PARAMS):
        plain = make_pipeline(StandardScaler(), LogisticRegression(C=step.value, tol=1e-8, max_iter=10_000))
        plain.fit(features, correct, logisticregression__sample_weight=weight)
        expected = plain.predict_proba(features)[:, 1]
        np.testing.assert_allclose(predict_confidence(step.probe, rows.states), expected, atol=5e-3)
        assert step.train_loss == pytest.approx(log_loss(correct, expected, sample_weight=weight), abs=1e-3)
        penalties.append(step.value)
    assert len(penalties) == LinearProbe.count_steps(PARAMS) and penalties == sorted(penalties)
    assert penalties[0] * 2 * D == pytest.approx(10**-1.5) and penalties[-1] * 2 * D == pytest.approx(10**2.5)


@pytest.mark.heavy
def test_linear_path_depends_on_weight_ratio() -> None:
    rows = make_planted(60, 1)
    rows.weight[::2] = 0.5
    doubled = TrainingRows(rows.states, rows.correct, rows.weight * 2)  # exact in floating point, and so is its ratio
    assert all(torch.equal(a, b) for (*_, a), (*_, b) in zip(fits(rows), fits(doubled), strict=True))


@pytest.mark.heavy
def test_linear_path_memory_mapped_features_give_same_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_planted(150, 1)
    in_memory = fits(rows)
    monkeypatch.setattr(linear_module, "MEMORY_VALUES", 0)
    seen = []
    monkeypatch.setattr(np, "memmap", lambda *args, _made=np.memmap, **more: seen.append(1) or _made(*args, **more))
    on_disk = fits(rows)
    assert seen == [1]
    for one, other in zip(in_memory, on_disk, strict=True):
        assert one[0] == other[0] and one[1] == pytest.approx(other[1], rel=tolerance(torch.float32))
        assert_near(one[2], other[2])


def make_rows(states: Sequence[Tensor]) -> TrainingRows:
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
    states, probe = make_correlated(60), PCAProbe(D, 4, 8, 0.0)
    probe.fit_preprocessing(make_rows(states))
    tokens = torch.cat(states).double()
    standard = (tokens - tokens.mean(0)) / tokens.std(0)
    _, vectors = torch.linalg.eigh(standard.T @ standard)
    found = probe.projection.double()
    # The same space: the cosines of its principal angles with the exact one are ones.
    cosines = torch.linalg.svdvals(vectors[:, -4:].T @ (found / found.norm(dim=0)))
    torch.testing.assert_close(cosines, torch.ones(4, dtype=torch.float64), atol=1e-5, rtol=0)
    compressed = probe.standardize(torch.cat(states)) @ probe.projection
    torch.testing.assert_close(torch.cov(compressed.T), torch.eye(4), atol=1e-2, rtol=0)


def test_pca_probe_fewer_tokens_than_components_is_finite() -> None:
    probe = PCAProbe.from_params(D, PARAMS)
    assert pca_module.COMPONENTS > D == probe.hyperparameters["components"]
    states = ragged(2, 1)
    probe.fit_preprocessing(make_rows(states))
    compressed = probe.standardize(torch.cat(states)) @ probe.projection
    assert float(compressed.abs().max()) < 10


def test_pca_probe_samples_evenly_spaced_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    states = make_correlated(60)
    watched, whole, probe = Watched(states), PCAProbe(D, 4, 8, 0.0), PCAProbe(D, 4, 8, 0.0)
    whole.fit_preprocessing(make_rows(states))
    monkeypatch.setattr(pca_module, "SAMPLE_TOKENS", int(watched.lengths.sum()) // 3 + 1)
    probe.fit_preprocessing(make_rows(watched))
    assert [i for i, reads in watched.read.items() if reads == 2] == list(range(0, 60, 3))
    directions = [p.projection / p.projection.norm(dim=0) for p in (probe, whole)]
    assert float(torch.linalg.svdvals(directions[0].T @ directions[1]).min()) > 0.99
    assert_near(probe.mean, whole.mean)  # mean and deviation are of all rows
    assert_near(probe.scale, whole.scale)


def test_probes_cover_every_architecture_lstm_without_huber() -> None:
    assert set(PROBES) == set(get_args(Architecture))
    assert PROBES["lstm_no_huber"].probe_class is PROBES["lstm"].probe_class
    assert PROBES["lstm_no_huber"].apply_fixed_params(PARAMS) == PARAMS.model_copy(update={"huber_lambda": 0.0})
    assert PROBES["lstm"].apply_fixed_params(PARAMS) == PARAMS


@pytest.mark.parametrize("architecture", EVERY_KIND)
def test_save_probe_round_trip(architecture: Architecture, tmp_path: Path) -> None:
    probe, rows = build_probe(architecture), ragged(3, 8, 1)
    save_probe(probe, tmp_path / "probe.safetensors")
    loaded = load_probe(tmp_path / "probe.safetensors")
    assert type(loaded) is type(probe)
    assert (loaded.architecture, loaded.width, loaded.training) == (architecture, D, False)
    assert loaded.hyperparameters == probe.hyperparameters
    assert torch.equal(predict_logits(loaded, rows), predict_logits(probe, rows))
    save_probe(loaded, tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "probe.safetensors").read_bytes()


UNKNOWN, OTHER_SHAPE = (
    {"probe": json.dumps({"architecture": name, "d": d})} for name, d in (("perceptron", D), ("linear", D + 1))
)


@pytest.mark.parametrize("damage", [b"", b"\x00none\xff" * 9, "truncated", None, UNKNOWN, OTHER_SHAPE])
def test_load_probe_missing_or_damaged_file_raises(damage: Any, tmp_path: Path) -> None:
    file, probe = tmp_path / "probe.safetensors", build_probe("linear")
    with pytest.raises(AbstainError, match=r"probe\.safetensors is missing"):
        load_probe(file)
    save_probe(probe, file)
    if damage is None or isinstance(damage, dict):
        save_file(probe.state_dict(), file, damage)
    else:
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2] if damage == "truncated" else damage)
    with pytest.raises(AbstainError, match=r"probe\.safetensors is no probe"):
        load_probe(file)


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
def test_probe_loss_matches_equations_7_to_9(huber_lambda: float, huber_delta: float, weighted: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(9, 2, generator=generator)
    correct = torch.tensor([0, 1, 1, 0, 1, 1, 0, 1, 0])
    weight = torch.rand(9, generator=generator) + 0.1 if weighted else torch.ones(9)
    weight[0] = 0.0 if weighted else 1.0
    loss = probe_loss(logits, correct, weight, huber_lambda, huber_delta)
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
