import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from abstain.learning.estimators import training_rows as module_under_test
from abstain.learning.estimators.training_rows import TrainingRows, iter_batches, pad
from tests.learning.estimators.builders import D, Watched, make_planted, ragged

lengths = st.lists(st.integers(1, 15), min_size=1, max_size=6)


@settings(deadline=None, max_examples=50)
@given(lengths, st.integers(1, 4), st.integers(1, 200))
def test_iter_batches_keeps_order_within_limits(lengths: list[int], most: int, values: int) -> None:
    rows = ragged(*lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module_under_test, "BATCH_VALUES", values)
        made = list(iter_batches(iter(rows), most))
    flat = [row for batch in made for row in batch]
    assert len(flat) == len(rows) and all(a is b for a, b in zip(flat, rows, strict=True))
    for batch, following in zip(made, [*made[1:], None], strict=True):
        assert 1 <= len(batch) <= most
        assert len(batch) == 1 or pad(batch)[0].numel() <= values
        if following and len(batch) < most:  # no smaller than it has to be
            assert pad([*batch, following[0]])[0].numel() > values


def test_pad_fills_with_zeros() -> None:
    for lengths in ([7], [3, 1, 2]):
        rows = ragged(*lengths)
        states, ends = pad(rows)
        assert states.shape == (len(lengths), max(lengths), D) and ends.tolist() == lengths
        for row, end, padded in zip(rows, lengths, states, strict=True):
            assert torch.equal(padded[:end], row) and not padded[end:].any()


def test_training_rows_subset_is_consistent_and_lazy() -> None:
    rows = make_planted(6, 1)
    rows.weight[:] = torch.arange(6)
    watched = Watched(rows.states)
    whole = TrainingRows(watched, rows.correct, rows.weight)
    subset = whole.subset(torch.tensor([4, 0, 5])).subset(torch.tensor([1, 0]))
    assert len(subset) == 2
    assert subset.weight.tolist() == [0, 4]
    assert subset.correct.tolist() == [rows.correct[0], rows.correct[4]]
    assert subset.lengths.tolist() == [len(rows.states[0]), len(rows.states[4])]
    assert not watched.read
    assert torch.equal(subset.states[1], rows.states[4])
    assert all(torch.equal(a, rows.states[i]) for a, i in zip(subset.states[:5], [0, 4], strict=True))
    assert [len(row) for row in subset.states] == subset.lengths.tolist()


def test_load_into_memory_loads_only_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_planted(30, 1)
    watched = Watched(rows.states)
    held = TrainingRows(watched, rows.correct, rows.weight).load_into_memory()
    assert isinstance(held.states, list)
    assert all(torch.equal(a, b) for a, b in zip(held.states, rows.states, strict=True))
    assert (held.correct is rows.correct) and (held.weight is rows.weight)
    watched.read.clear()
    monkeypatch.setattr(module_under_test, "MEMORY_VALUES", int(watched.lengths[:10].sum()) * D)
    many = TrainingRows(watched, rows.correct, rows.weight)
    assert many.load_into_memory() is many and watched.read.total() <= 11, "it reads on beyond what fits"
