import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from abstain.learning.estimators.probes.lstm import LSTMProbe
from abstain.learning.estimators.training_rows import pad
from tests.learning.estimators.builders import build_probe, ragged

lengths = st.lists(st.integers(1, 15), min_size=1, max_size=6)


def probe() -> LSTMProbe:
    made = build_probe("lstm")
    assert isinstance(made, LSTMProbe)
    return made


@settings(deadline=None, max_examples=30)
@given(lengths)
def test_lstm_probe_matches_packed_sequence(lengths: list[int]) -> None:
    module, rows = probe(), ragged(*lengths)
    standard = nn.utils.rnn.pack_sequence([(row - module.mean) / module.scale for row in rows], enforce_sorted=False)
    with torch.inference_mode():
        _, (last, _) = module.reader.lstm(standard)
        torch.testing.assert_close(module(*pad(rows)), module.reader.head(last[0]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("filler", [float("nan"), float("-inf")])
def test_lstm_probe_ignores_nan_padding(filler: float) -> None:
    module, (states, ends) = probe(), pad(ragged(4, 9))
    filled = states.clone()
    filled[0, 4:] = filler
    with torch.inference_mode():
        torch.testing.assert_close(module(filled, ends), module(states, ends))
