"""The shadow in the origin, and its comparison by reviews in the records, with real git and a stub of DVC."""

import json
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from abstain.config.settings import get_decision_log_url, load_settings
from abstain.core import paths
from abstain.core.bundle_format import compute_sha256
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.data.decision_log.decisions import ShadowDecision
from abstain.data.decision_log.log import DecisionLog
from abstain.release.shadow import Shadow
from abstain_cli import shadow as cli
from abstain_tasks.release import bundles, version_source
from abstain_tasks.release.promotion import PromotionResult
from abstain_tasks.release.shadow import clear_shadow, read_shadow, review_shadow, set_shadow
from abstain_tasks.release.version_source import OriginShadowSource
from abstain_tasks.runs.git_commit import commit
from abstain_tasks.runs.run_params import edit_params
from abstain_tasks.runs.workspace import BRANCH
from tests.data.decision_log.builders import decision, open_log
from tests.factories import cited, interaction
from tests.factories import review as make_review
from tests.release.builders import make_confidences
from tests.tasks.conftest import Candidates, Plain

pytestmark = pytest.mark.heavy  # git, and ONNX Runtime


@pytest.fixture
def shadow(workspace: Plain, candidates: Candidates) -> Shadow:
    candidates.write(1.0)
    assert candidates.promote().status == "rejected"
    return set_shadow(workspace)


@pytest.fixture
def log(workspace: Plain) -> Iterator[DecisionLog]:
    opened = open_log(get_decision_log_url(load_settings()))
    yield opened
    opened.close()


def decide(log: DecisionLog, shadow: Shadow, rows: int = 300, strength: float = 1.6) -> np.ndarray:
    """Log decisions of both, and return which answers are correct."""
    correct = (np.random.default_rng(7).random(rows) < 0.6).astype(int)
    own, other = make_confidences(correct, strength, seed=1), make_confidences(correct, 0.6, seed=2)
    for i, (confidence, live) in enumerate(zip(own.tolist(), other.tolist(), strict=True)):
        log.record_decision(decision(f"i-{i}", shown=live >= 0.5, confidence=live))
        values = (confidence >= 0.5, confidence, confidence, 0.5)
        written = log.record_shadow_decision(ShadowDecision(f"i-{i}", shadow.version, datetime.now(UTC), *values))
    assert written.result() == "recorded"
    return correct


def write_data(workspace: Plain, correct: np.ndarray, reviewed: int) -> None:
    """Write the logged answers, about 40 documents, of which the first `reviewed` are reviewed."""
    data = workspace.path / paths.DATA
    rows = [interaction(f"i-{at}", contexts=cited(f"doc-{at % 40}#1")) for at in range(len(correct))]
    verdicts = [make_review(f"i-{at}", right=bool(correct[at]), inclusion_probability=0.5) for at in range(reviewed)]
    for name, lines in (("interactions", rows), ("reviews", verdicts)):
        (data / name).mkdir(parents=True, exist_ok=True)
        (data / name / "a.jsonl").write_text("".join(f"{line.to_json_line()}\n" for line in lines))


def read_head(workspace: Plain) -> str:
    return workspace.git("rev-parse", f"origin/{BRANCH}").strip()


def test_set_shadow_and_clear_shadow(workspace: Plain, shadow: Shadow) -> None:
    assert read_shadow(workspace.path, f"origin/{BRANCH}") == shadow and shadow.production_version == "v1.0.0"
    assert shadow.tag in workspace.git("ls-remote", "--tags", "origin")
    names = {file.name for file in (workspace.path / paths.SHADOW).iterdir()}
    assert names == {"probe.onnx", "parts", "smoke.npy", "smoke.json", "bundle.sha256"}, "nothing that shows answers"
    before = read_head(workspace)
    assert set_shadow(workspace).tag == shadow.tag, "its files are under this tag already"
    assert clear_shadow(workspace) and read_shadow(workspace.path, f"origin/{BRANCH}") is None
    assert read_head(workspace) != before and not clear_shadow(workspace)


def test_set_shadow_of_production_itself_raises(workspace: Plain, candidates: Candidates) -> None:
    with pytest.raises(AbstainError, match="v1.0.0") as error:
        set_shadow(workspace)
    assert error.value.code is Code.NO_VERSION and read_shadow(workspace.path, "HEAD") is None


def test_review_is_a_comparison(workspace: Plain, candidates: Candidates, shadow: Shadow, log: DecisionLog) -> None:
    correct = decide(log, shadow)
    write_data(workspace, correct, reviewed=9)
    with pytest.raises(AbstainError, match="9 answers about 9 documents"):
        review_shadow(workspace)
    write_data(workspace, correct, reviewed=200)
    review = review_shadow(workspace)
    assert (review.is_repeat, review.record.outcome, review.record.approved) == (False, "better", False)
    assert (review.record.comparison, review.record.alpha_spent) == (2, pytest.approx(2 * 0.1 / 60))
    assert (review.record.rows, review.record.documents) == (200, 40)
    (file,) = (workspace.path / paths.APPROVALS).glob("shadow-*.json")
    assert file.name in workspace.git("ls-tree", "-r", "--name-only", f"origin/{BRANCH}")
    before = read_head(workspace)
    again = review_shadow(workspace)
    assert again.is_repeat and again.record == review.record and read_head(workspace) == before
    write_data(workspace, correct, reviewed=201)
    assert review_shadow(workspace).record.comparison == 3
    candidates.write(0.95)
    assert any("comparison 4 of 60" in reason for reason in candidates.promote().reasons)
    assert workspace.on_origin().production_version == "v1.0.0"


def test_shadow_record_is_sealed(workspace: Plain, candidates: Candidates, shadow: Shadow, log: DecisionLog) -> None:
    write_data(workspace, decide(log, shadow), reviewed=200)
    review_shadow(workspace)
    candidates.write(1.0)
    assert any("comparison 1 of 60" in reason for reason in candidates.promote().reasons)
    (file,) = (workspace.path / paths.APPROVALS).glob("shadow-*.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "comparison": None}))
    with pytest.raises(AbstainError, match="was edited since it was written"):
        candidates.promote(recheck=True)
    file.unlink()
    with pytest.raises(AbstainError, match="was deleted, so the comparisons"):
        review_shadow(workspace)


def test_review_shadow_other_production_raises(
    workspace: Plain, candidates: Candidates, shadow: Shadow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version_source, "fetch_origin_snapshot", lambda: (workspace.path, f"origin/{BRANCH}"))
    source = OriginShadowSource()
    live = source.get_production()
    assert live is not None and (live.version, live.digest) == (shadow.version, shadow.bundle_sha256)
    candidates.write(1.8)
    assert candidates.promote() == PromotionResult("promoted", "v1.1.0", [])
    assert source.get_production() is None
    with pytest.raises(AbstainError, match="shadow of v1.0.0, and v1.1.0 is in production"):
        review_shadow(workspace)


def test_shadow_source_fetches_and_verifies(workspace: Plain, shadow: Shadow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_source, "fetch_origin_snapshot", lambda: (workspace.path, f"origin/{BRANCH}"))
    commands: list[list[str]] = []

    def run(command: list[str], *_: Any) -> str:
        commands.append(command)
        shutil.copytree(workspace.path / paths.SHADOW, command[-1])
        if len(commands) == 1:
            (Path(command[-1]) / "smoke.json").write_bytes(b"{}")
        return ""

    monkeypatch.setattr(bundles, "run", run)
    source = OriginShadowSource()
    live = source.get_production()
    with pytest.raises(AbstainError, match="abstain shadow clear"):
        source.fetch_bundle(live)
    bundle = source.fetch_bundle(live)
    assert (bundle / "probe.onnx").is_file() and bundle.parent.name == "releases"
    assert commands[-1][2:6] == [str(workspace.path), "shadow", "--rev", shadow.tag]


def test_promote_rejected_candidate_becomes_shadow_if_enabled(workspace: Plain, candidates: Candidates) -> None:
    candidates.write(1.0)
    assert candidates.promote().status == "rejected" and read_shadow(workspace.path, f"origin/{BRANCH}") is None
    edit_params(workspace, {"shadow": {"from_rejected": True}})
    commit(workspace, "Let rejected candidates become the shadow", paths.PARAMS)
    candidates.write(0.95)
    assert candidates.promote().status == "rejected"
    first = read_shadow(workspace.path, f"origin/{BRANCH}")
    assert first is not None and first.candidate_sha256 == compute_sha256(workspace.path / paths.ONNX)
    candidates.write(0.9)
    assert candidates.promote().status == "rejected"
    assert read_shadow(workspace.path, f"origin/{BRANCH}") == first
    candidates.write(1.8)
    assert candidates.promote().version == "v1.1.0"
    candidates.write(0.9)
    assert candidates.promote().status == "rejected"
    second = read_shadow(workspace.path, f"origin/{BRANCH}")
    assert second is not None and second.production_version == "v1.1.0"


def test_shadow_commands_show_compare_clear(
    workspace: Plain,
    shadow: Shadow,
    log: DecisionLog,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def read_output() -> str:
        return " ".join(capsys.readouterr().out.split())

    monkeypatch.setattr("abstain_tasks.runs.workspace.open_workspace", lambda: nullcontext(workspace))
    monkeypatch.setattr(
        "abstain_tasks.runs.workspace.fetch_origin_snapshot", lambda: (workspace.path, f"origin/{BRANCH}")
    )
    write_data(workspace, decide(log, shadow), reviewed=200)
    cli.show()
    assert f"{shadow.version} is the shadow of v1.0.0" in (shown := read_output()) and "300 answers" in shown
    cli.compare()
    assert "better: " in (first := read_output()) and "comparison 2 of 60" in first
    cli.compare()
    assert "no other was made" in read_output()
    cli.clear()
    cli.show()
    assert "there is no shadow" in read_output()
