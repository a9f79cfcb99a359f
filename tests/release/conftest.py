"""Fewer resamples than in a promotion: these tests decide many times."""

import pytest

from abstain.learning.metrics.bootstrap import BootstrapConfig
from abstain.release import degradation_checks, evaluation_set


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (degradation_checks, evaluation_set):
        monkeypatch.setattr(module, "RESAMPLING", BootstrapConfig(100, 3))
