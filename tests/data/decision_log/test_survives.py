"""What was acknowledged survives the death of the process that wrote it."""

from pathlib import Path

import pytest

from tests.data.decision_log.builders import url_of
from tests.data.decision_log.processes import assert_all_there, kill_writers

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions


@pytest.mark.heavy
def test_what_was_acknowledged_survives_a_kill_of_two_processes_on_one_file(tmp_path: Path) -> None:
    acknowledged = kill_writers(url_of(tmp_path), ["a", "b"], seed=0)
    assert {key[0] for key in acknowledged} == {"a", "b"}
    assert_all_there(url_of(tmp_path), acknowledged)


@pytest.mark.soak(twin="test_what_was_acknowledged_survives_a_kill_of_two_processes_on_one_file")
def test_what_was_acknowledged_survives_many_kills(tmp_path: Path) -> None:
    acknowledged: list[str] = []
    for seed in range(40):
        acknowledged += kill_writers(url_of(tmp_path), [f"a{seed}", f"b{seed}"], seed)
        assert_all_there(url_of(tmp_path), acknowledged)
