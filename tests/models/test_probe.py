from __future__ import annotations

import weakref
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from abstain.models import probe as module_under_test
from abstain.models.probe import Probe, batches, confidence, pad

D = 6


def probe(seed: int = 0, dropout: float = 0.3) -> Probe:
    torch.manual_seed(seed)
    made = Probe(D, 8, dropout)
    made.standardise_by([5 + 3 * torch.randn(40, D)])
    return made.eval()


def ragged(lengths: list[int], seed: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [5 + 3 * torch.randn(length, D, generator=generator) for length in lengths]


lengths = st.lists(st.integers(1, 15), min_size=1, max_size=6)


@settings(deadline=None, max_examples=30)
@given(lengths)
def test_logits_equal_those_of_a_packed_sequence(lengths: list[int]) -> None:
    module, rows = probe(), ragged(lengths)
    standard = nn.utils.rnn.pack_sequence([(row - module.mean) / module.scale for row in rows], enforce_sorted=False)
    with torch.inference_mode():
        _, (last, _) = module.lstm(standard)
        torch.testing.assert_close(module(*pad(rows)), module.head(last[0]), atol=1e-6, rtol=1e-5)


@settings(deadline=None, max_examples=30)
@given(lengths, st.sampled_from([0.0, 1e6, float("nan"), float("-inf")]), st.integers(1, 5))
def test_what_stands_after_a_rows_end_does_not_matter(lengths: list[int], filler: float, more: int) -> None:
    module, (states, ends) = probe(), pad(ragged(lengths))
    filled = torch.full((len(lengths), states.shape[1] + more, D), filler)
    for row, end in enumerate(ends):
        filled[row, :end] = states[row, :end]
    with torch.inference_mode():
        torch.testing.assert_close(module(filled, ends), module(states, ends), atol=1e-6, rtol=1e-5)


def test_the_last_valid_state_matters() -> None:
    module, (states, ends) = probe(), pad(ragged([4, 9]))
    changed = states.clone()
    changed[0, 3] += 1
    with torch.inference_mode():
        before, after = module(states, ends), module(changed, ends)
    assert float((before[0] - after[0]).abs().max()) > 1e-3
    assert torch.equal(before[1], after[1])


def test_confidence_is_the_second_entry_of_the_softmax() -> None:
    logits = torch.tensor([[0.0, 0.0], [1.0, 3.0], [2.0, -5.0]])
    z0, z1 = logits.exp().T
    torch.testing.assert_close(confidence(logits), z1 / (z0 + z1))


def test_states_are_standardised_by_the_training_tokens() -> None:
    rows = ragged([7, 3, 12])
    rows[0][:, 2] = 4.0
    rows[1][:, 2] = 4.0
    rows[2][:, 2] = 4.0  # a dimension that never changes must not divide by zero
    module = probe()
    module.standardise_by(rows)
    tokens = torch.cat(rows)
    standard = (tokens - module.mean) / module.scale
    varying = [0, 1, 3, 4, 5]
    torch.testing.assert_close(standard.mean(0), torch.zeros(D), atol=1e-4, rtol=0)
    torch.testing.assert_close(standard[:, varying].std(0), torch.ones(len(varying)), atol=1e-4, rtol=0)
    assert torch.isfinite(standard).all()


@settings(deadline=None, max_examples=30)
@given(lengths, st.sampled_from([0.0, 5.0, -1e4, 1e7]), st.sampled_from([1e-3, 1.0, 100.0]), st.integers(0, 99))
def test_standardisation_in_one_pass_is_the_two_pass_formula(
    lengths: list[int], mean: float, deviation: float, seed: int
) -> None:
    """Also where a deviation is 1e-10 of its mean, of which a sum of squares in float64 would keep nothing."""
    generator = torch.Generator().manual_seed(seed)
    rows = [mean + deviation * torch.randn(n, D, generator=generator, dtype=torch.float64) for n in [*lengths, 2]]
    copies = [row.clone() for row in rows]
    module = probe()
    module.standardise_by(iter(rows))
    tokens = torch.cat(rows)
    torch.testing.assert_close(module.mean, tokens.mean(0).float(), atol=0, rtol=1e-6)
    torch.testing.assert_close(module.scale, tokens.std(0).clamp_min(1e-6).float(), atol=0, rtol=1e-5)
    assert all(torch.equal(row, copy) for row, copy in zip(rows, copies, strict=True)), "rows were changed"


def test_one_token_standardises_without_a_nan() -> None:
    module = probe()
    module.standardise_by([torch.full((1, D), 3.0)])
    assert torch.equal(module.mean, torch.full((D,), 3.0)) and torch.isfinite(1 / module.scale).all()


def test_standardisation_holds_one_row() -> None:
    seen: list[weakref.ref[Tensor]] = []

    def rows() -> Iterator[Tensor]:
        for row in range(20):
            assert sum(ref() is not None for ref in seen) <= 1
            made = torch.randn(3, D) + row
            seen.append(weakref.ref(made))
            yield made
            del made

    probe().standardise_by(rows())
    assert len(seen) == 20


@settings(deadline=None, max_examples=50)
@given(lengths, st.integers(1, 4), st.integers(1, 200))
def test_batches_keep_the_order_and_stay_within_rows_and_values(lengths: list[int], most: int, values: int) -> None:
    rows = ragged(lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module_under_test, "BATCH_VALUES", values)
        made = list(batches(iter(rows), most))
    flat = [row for batch in made for row in batch]
    assert len(flat) == len(rows) and all(a is b for a, b in zip(flat, rows, strict=True))
    for batch, following in zip(made, [*made[1:], None], strict=True):
        assert 1 <= len(batch) <= most
        assert len(batch) == 1 or pad(batch)[0].numel() <= values
        if following and len(batch) < most:  # no smaller than it has to be
            assert pad([*batch, following[0]])[0].numel() > values


def test_standardisation_travels_with_the_weights() -> None:
    one, other = probe(), Probe(D, 8, 0.0).eval()
    other.load_state_dict(one.state_dict())
    with torch.inference_mode():
        assert torch.equal(one(*pad(ragged([3, 8]))), other(*pad(ragged([3, 8]))))


def test_dropout_is_for_training_only() -> None:
    module, batch = probe(dropout=0.5), pad(ragged([3, 8]))
    with torch.no_grad():
        assert torch.equal(module(*batch), module(*batch))
        module.train()
        assert not torch.equal(module(*batch), module(*batch))


@pytest.mark.parametrize("lengths", [[1], [3, 1, 2]])
def test_pad_puts_zeros_after_the_end(lengths: list[int]) -> None:
    rows = ragged(lengths)
    states, ends = pad(rows)
    assert states.shape == (len(lengths), max(lengths), D)
    assert ends.tolist() == lengths
    for row, end, padded in zip(rows, lengths, states, strict=True):
        assert torch.equal(padded[:end], row)
        assert not padded[end:].any()
