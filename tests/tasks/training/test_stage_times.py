from pathlib import Path

import pytest

from abstain_tasks.training.stage_times import MIN_TOKENS, BaseModelUsage, estimate_seconds, record_run


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path))


def test_estimate_seconds_never_run_is_none() -> None:
    assert estimate_seconds("features", "m", 100) is None
    record_run("report", 4.0, None)
    assert estimate_seconds("report", "m", 0) == pytest.approx(4.0)
    assert estimate_seconds("report", "m", 100) is None


def test_estimate_seconds_grows_with_tokens() -> None:
    record_run("features", 60.0, BaseModelUsage("m", MIN_TOKENS, 50.0))
    assert estimate_seconds("features", "m", 2 * MIN_TOKENS) == pytest.approx(110.0)
    assert estimate_seconds("features", "m", 0) == pytest.approx(10.0)
    assert estimate_seconds("features", "another", MIN_TOKENS) is None


def test_record_run_few_tokens_keep_speed() -> None:
    record_run("features", 60.0, BaseModelUsage("m", MIN_TOKENS, 50.0))
    record_run("features", 20.0, BaseModelUsage("m", MIN_TOKENS - 1, 15.0))
    assert estimate_seconds("features", "m", MIN_TOKENS) == pytest.approx(70.0)
