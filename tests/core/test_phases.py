from __future__ import annotations

import os
from collections import namedtuple
from collections.abc import Iterator

import pytest

from abstain.core.phases import measured, phase

Times = namedtuple("Times", "user system children_user children_system elapsed")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that uses a second of CPU, and its commands another, between any two looks at the clock."""
    seconds = iter(range(1000))
    monkeypatch.setattr(os, "times", lambda: Times(at := next(seconds), 0, at, 0, 0))
    yield


def test_phase_counts_without_the_phases_inside_it(clock: None) -> None:
    with measured() as found:
        with phase("weights"), phase("import"):
            pass
        with phase("import"):
            pass
    assert found.seconds == {"other": 4, "weights": 4, "import": 4}


def test_phase_costs_nothing_unless_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr(os, "times", lambda: looks.append(1))
    with phase("reading"):
        pass
    assert looks == []
