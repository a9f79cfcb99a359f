from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.replay import Policy, Replay, WeekResult, measure_drift, replay_weeks
from benchmarks.scorers import FILE
from tests.benchmarks.datasets.upstream import write_records
from tests.checkout import shipped_params
from tests.test_real_verdicts import flip_verdicts, make_records

WEEKS = (4, 5, 6)
TURNED = 5
"""The week since which verdicts are the opposite, in one of the replays."""


def replay_of(folder: Path, rows: list[dict[str, Any]]) -> Replay:
    made = Replay.from_file(write_records(folder / FILE.name, *rows), shipped_params())
    return replace(made, kind="linear")  # a hundredth of the time


@pytest.fixture(scope="module")
def turned(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, Policy], WeekResult]:
    rows = flip_verdicts(make_records(range(1, 7)), TURNED)
    found = replay_weeks(replay_of(tmp_path_factory.mktemp("replay"), rows), WEEKS)
    return {(week, policy): verdict for week, policy, verdict in found}


@pytest.mark.heavy
def test_replay_weeks_wrong_version_raises_alarms(turned: dict[tuple[int, Policy], WeekResult]) -> None:
    before, after = turned[TURNED - 1, "never retrained"], turned[TURNED, "never retrained"]
    assert before.alarms == [] and before.precision > 0.65
    assert after.alarms == ["guarantee violated", "calibration off"] and after.precision < 0.5
    assert abs(after.expected.value - before.expected.value) < 0.1, "probabilities do not know it"


@pytest.mark.heavy
def test_replay_weeks_only_retrained_parts_change(turned: dict[tuple[int, Policy], WeekResult]) -> None:
    live = {policy: [turned[week, policy].live for week in (WEEKS[0], WEEKS[-1])] for _, policy in turned}
    assert live["never retrained"][0] is live["never retrained"][1]
    assert live["recalibrated"][0].regressor is live["recalibrated"][1].regressor
    assert live["recalibrated"][0].threshold != live["recalibrated"][1].threshold
    assert live["retrained"][0].regressor is not live["retrained"][1].regressor


@pytest.mark.heavy
def test_replay_weeks_guarantee_is_of_the_live_version(turned: dict[tuple[int, Policy], WeekResult]) -> None:
    shown = {policy: [turned[week, policy].guarantee.reviews for week in WEEKS] for _, policy in turned}
    assert shown["never retrained"] == sorted(set(shown["never retrained"]))
    assert max(shown["retrained"]) <= 120, "the answers of a week"


@pytest.mark.heavy
def test_measure_drift_changed_texts_raise_an_alarm(tmp_path: Path) -> None:
    replay = replay_of(tmp_path, make_records(range(1, 7)))
    rows = np.random.default_rng(0).standard_normal((len(replay.dataset.correct), 8))
    assert measure_drift(replay, 5, {"questions": rows}).alarms == []
    moved = rows + 3.0 * (replay.dataset.round == 5)[:, None]
    assert "input drift" in measure_drift(replay, 5, {"questions": moved}).alarms
