"""What is fetched is what was promoted."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from abstain.core import paths
from abstain.core.errors import AbstainError
from abstain.release.registry import Event
from tasks.release_bundle import fetch_release


def test_a_release_that_is_not_what_was_promoted_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path))
    onnx = tmp_path / "releases" / "v1.0.0" / paths.RELEASED_ONNX.name
    onnx.parent.mkdir(parents=True)
    onnx.write_bytes(b"promoted")
    event = Event(
        action="promote",
        version="v1.0.0",
        sha256=hashlib.sha256(b"promoted").hexdigest(),
        candidate="c",
        at=datetime(2026, 11, 20, tzinfo=UTC),
        holdout="h",
        reason="approved by the gate",
    )
    assert fetch_release(tmp_path, event) == onnx.parent
    onnx.write_bytes(b"changed")
    with pytest.raises(AbstainError, match=r"is not what was promoted as v1\.0\.0: delete that folder and try again$"):
        fetch_release(tmp_path, event)
