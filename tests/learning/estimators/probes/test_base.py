import weakref
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from abstain.config.params import Architecture
from abstain.learning.estimators import training_rows as rows_module
from abstain.learning.estimators.probes.base import logits_to_confidence, predict_confidence, predict_logits
from abstain.learning.estimators.training_rows import pad
from tests.learning.estimators.builders import EVERY_KIND, D, build_probe, ragged, weights

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
def test_predict_logits_is_batch_invariant(architecture: Architecture) -> None:
    module, rows = build_probe(architecture), ragged(3, 1, 14, 7, 7)
    alone = torch.cat([predict_logits(module, [row]) for row in rows])
    with torch.inference_mode():
        unpadded = torch.cat([module(row, None) for row in rows])
    torch.testing.assert_close(unpadded, alone, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(predict_logits(module, rows), alone, atol=1e-5, rtol=1e-5)
    assert alone.shape == (5, 2)
    assert float(logits_to_confidence(alone).max() - logits_to_confidence(alone).min()) > 0.05


@every_kind
def test_predict_confidence_is_independent_of_batch_size(
    architecture: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, rows = build_probe(architecture), ragged(*range(1, 11))
    whole = predict_confidence(module, rows)
    monkeypatch.setattr(rows_module, "BATCH_VALUES", 20 * D)
    torch.testing.assert_close(predict_confidence(module, rows), whole, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(whole, logits_to_confidence(predict_logits(module, iter(rows))), atol=1e-5, rtol=1e-5)
    assert predict_confidence(module, []).shape == (0,)


@every_kind
def test_probe_to_serving_matches_trained_probe(architecture: Architecture) -> None:
    module, batch = build_probe(architecture), pad(ragged(3, 8, 1))
    before = weights(module)
    with torch.inference_mode():
        expected = module(*batch)
        served = module.to_serving()
        torch.testing.assert_close(served(*batch), expected.diff(), atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(served(*batch).sigmoid()[:, 0], logits_to_confidence(expected), atol=1e-5, rtol=1e-5)
        served.scale.fill_(float("nan"))  # nothing is divided by it any more
        torch.testing.assert_close(served(*batch), expected.diff(), atol=1e-4, rtol=1e-5)
        assert torch.equal(module(*batch), expected)
    assert torch.equal(weights(module), before)


@pytest.mark.parametrize("architecture", [name for name in EVERY_KIND if name != "linear"])
def test_probe_dropout_applies_in_training_only(architecture: Architecture) -> None:
    module, batch = build_probe(architecture, dropout=0.5), pad(ragged(3, 8))
    with torch.no_grad():
        assert torch.equal(module(*batch), module(*batch))
        module.train()
        assert not torch.equal(module(*batch), module(*batch))


def test_fit_standardization_constant_dimension_keeps_scale() -> None:
    rows = ragged(7, 3, 12)
    for row in rows:
        row[:, 2] = 4.0
    module = build_probe("linear")
    module.fit_standardization(rows)
    torch.testing.assert_close(module.standardize(rows[0] + 0.5)[:, 2], torch.full((7,), 0.5))


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


def test_fit_standardization_single_token_has_no_nan() -> None:
    module = build_probe("linear")
    module.fit_standardization([torch.full((1, D), 3.0)])
    assert torch.equal(module.mean, torch.full((D,), 3.0)) and torch.equal(module.scale, torch.ones(D))


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
