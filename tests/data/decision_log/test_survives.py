from pathlib import Path

import pytest

from tests.data.decision_log.builders import url_of
from tests.data.decision_log.processes import assert_acknowledged_rows, kill_writers

pytestmark = pytest.mark.heavy


def test_acknowledged_rows_survive_a_kill_of_two_processes(tmp_path: Path) -> None:
    acknowledged = kill_writers(url_of(tmp_path), ["a", "b"], seed=0)
    assert {key[0] for key in acknowledged} == {"a", "b"}
    assert_acknowledged_rows(url_of(tmp_path), acknowledged)


@pytest.mark.soak(twin="test_acknowledged_rows_survive_a_kill_of_two_processes")
def test_acknowledged_rows_survive_many_kills(tmp_path: Path) -> None:
    acknowledged: list[str] = []
    for seed in range(40):
        acknowledged += kill_writers(url_of(tmp_path), [f"a{seed}", f"b{seed}"], seed)
        assert_acknowledged_rows(url_of(tmp_path), acknowledged)
