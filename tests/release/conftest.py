"""Fewer draws than the gate's own: these tests decide many times."""

from __future__ import annotations

import pytest

from abstain.learning.metrics.bootstrap import BootstrapConfig
from abstain.release import degradation_checks as drops
from abstain.release import evaluation_set as evaluation_window


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (drops, evaluation_window):
        monkeypatch.setattr(module, "RESAMPLES", BootstrapConfig(100, 3))
