"""The shadow in the origin, and its comparison by reviews in the records, with real git; DVC is stood in for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from tests.data.builders import cited, interaction, review
from tests.data.decision_log.builders import decision, open_log
from tests.release.test_promotion_check import calibrated
from tests.tasks.conftest import Candidates, Plain

pytestmark = pytest.mark.heavy  # git, and ONNX Runtime


@pytest.fixture
def shadow(workspace: Plain, candidates: Candidates) -> Shadow:
    """Of a candidate that was refused after one comparison."""
    candidates.write(1.0)
    assert candidates.promote().status == "rejected"
    return set_shadow(workspace)


@pytest.fixture
def log(workspace: Plain) -> Iterator[DecisionLog]:
    opened = open_log(get_decision_log_url(load_settings()))
    yield opened
    opened.close()


def decide(log: DecisionLog, shadow: Shadow, rows: int = 300, strength: float = 1.6) -> np.ndarray:
    """Decisions of both, the shadow's confidences as `strength` has them; which answers are correct."""
    correct = (np.random.default_rng(7).random(rows) < 0.6).astype(int)
    own, other = calibrated(correct, strength, seed=1), calibrated(correct, 0.6, seed=2)
    for at in range(rows):
        log.record_decision(decision(f"i-{at}", shown=bool(other[at] >= 0.5), confidence=float(other[at])))
        written = log.record_shadow_decision(shadow_decision(f"i-{at}", shadow.version, float(own[at])))
    assert written.result() == "recorded"
    return correct


def shadow_decision(key: str, candidate: str, confidence: float) -> ShadowDecision:
    return ShadowDecision(
        key, candidate, datetime.now(UTC), confidence >= 0.5, confidence, probability=confidence, threshold=0.5
    )


def write_data(workspace: Plain, correct: np.ndarray, reviewed: int) -> None:
    """The answers of the log, about 40 documents, of which the first `reviewed` are."""
    data = workspace.path / paths.DATA
    rows = [interaction(f"i-{at}", contexts=cited(f"doc-{at % 40}#1")) for at in range(len(correct))]
    verdicts = [review(f"i-{at}", right=bool(correct[at]), inclusion_probability=0.5) for at in range(reviewed)]
    for name, lines in (("interactions", rows), ("reviews", verdicts)):
        (data / name).mkdir(parents=True, exist_ok=True)
        (data / name / "a.jsonl").write_text("".join(f"{line.to_json_line()}\n" for line in lines))


def head(workspace: Plain) -> str:
    return workspace.git("rev-parse", f"origin/{BRANCH}").strip()


def test_a_refused_candidate_becomes_the_shadow_of_what_is_in_production(workspace: Plain, shadow: Shadow) -> None:
    assert read_shadow(workspace.path, f"origin/{BRANCH}") == shadow and shadow.production_version == "v1.0.0"
    assert shadow.tag in workspace.git("ls-remote", "--tags", "origin")
    there = {file.name for file in (workspace.path / paths.SHADOW).iterdir()}
    assert there == {"probe.onnx", "parts", "smoke.npy", "smoke.json", "bundle.sha256"}, "nothing that shows answers"
    before = head(workspace)
    assert set_shadow(workspace).tag == shadow.tag, "its files are under this tag already"
    assert clear_shadow(workspace) and read_shadow(workspace.path, f"origin/{BRANCH}") is None
    assert head(workspace) != before and not clear_shadow(workspace)


def test_what_is_in_production_is_no_shadow_of_itself(workspace: Plain, candidates: Candidates) -> None:
    with pytest.raises(AbstainError, match="the last candidate is v1.0.0, which is in production") as error:
        set_shadow(workspace)
    assert error.value.code is Code.NO_VERSION and read_shadow(workspace.path, "HEAD") is None


def test_a_look_at_its_reviews_is_one_of_the_comparisons_on_the_hold_out(
    workspace: Plain, candidates: Candidates, shadow: Shadow, log: DecisionLog
) -> None:
    correct = decide(log, shadow)
    write_data(workspace, correct, reviewed=200)
    found = review_shadow(workspace)
    level = 0.1 / 60
    assert (found.is_repeat, found.record.outcome, found.record.approved) == (False, "better", False)
    assert (found.record.comparison, found.record.alpha_spent) == (2, pytest.approx(2 * level)), (
        "after the one that refused it"
    )
    assert (found.record.rows, found.record.documents) == (200, 40)
    (file,) = (workspace.path / paths.APPROVALS).glob("shadow-*.json")
    assert file.relative_to(workspace.path).as_posix() in workspace.git(
        "ls-tree", "-r", "--name-only", f"origin/{BRANCH}"
    )

    before = head(workspace)
    again = review_shadow(workspace)
    assert again.is_repeat and again.record == found.record and head(workspace) == before, "no other comparison"

    write_data(workspace, correct, reviewed=201)
    assert review_shadow(workspace).record.comparison == 3
    candidates.write(0.95)
    assert any("comparison 4 of 60" in reason for reason in candidates.promote().reasons)
    assert workspace.on_origin().production_version == "v1.0.0", "nothing of this has promoted it"


def test_its_look_is_no_refusal_of_the_candidate_and_cannot_be_taken_back(
    workspace: Plain, candidates: Candidates, shadow: Shadow, log: DecisionLog
) -> None:
    write_data(workspace, decide(log, shadow), reviewed=200)
    review_shadow(workspace)
    candidates.write(1.0)
    assert any("comparison 1 of 60" in reason for reason in candidates.promote().reasons), "what was said before it"
    (file,) = (workspace.path / paths.APPROVALS).glob("shadow-*.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "comparison": None}))
    with pytest.raises(AbstainError, match="was edited since it was written"):
        candidates.promote(recheck=True)
    file.unlink()
    with pytest.raises(AbstainError, match="was deleted, so the comparisons"):
        review_shadow(workspace)


def test_too_few_reviews_take_no_look(workspace: Plain, shadow: Shadow, log: DecisionLog) -> None:
    with pytest.raises(AbstainError, match="0 answers about 0 documents"):
        review_shadow(workspace)
    write_data(workspace, decide(log, shadow), reviewed=9)
    with pytest.raises(AbstainError, match="9 answers about 9 documents"):
        review_shadow(workspace)
    assert list((workspace.path / paths.APPROVALS).glob("shadow-*.json")) == []


def test_beside_another_version_it_is_no_shadow(
    workspace: Plain, candidates: Candidates, shadow: Shadow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version_source, "fetch_origin_snapshot", lambda: (workspace.path, f"origin/{BRANCH}"))
    follows = OriginShadowSource()
    live = follows.get_production()
    assert live is not None and (live.version, live.digest) == (shadow.version, shadow.bundle_sha256)
    candidates.write(1.8)
    assert candidates.promote() == PromotionResult("promoted", "v1.1.0", [])
    assert follows.get_production() is None
    with pytest.raises(AbstainError, match="is the shadow of v1.0.0, and v1.1.0 is in production now"):
        review_shadow(workspace)


def test_a_gate_fetches_it_by_its_tag_and_refuses_other_files(
    workspace: Plain, shadow: Shadow, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(version_source, "fetch_origin_snapshot", lambda: (workspace.path, f"origin/{BRANCH}"))
    asked: list[list[str]] = []

    def get(damage: bytes = b"") -> Callable[..., Any]:
        def run(command: list[str], *_: Any) -> str:
            asked.append(command)
            target = Path(command[-1])
            bundles.shutil.copytree(workspace.path / paths.SHADOW, target)
            (target / "smoke.json").write_bytes((target / "smoke.json").read_bytes() + damage)
            return ""

        return run

    follows = OriginShadowSource()
    live = follows.get_production()
    assert live is not None
    monkeypatch.setattr(bundles, "run", get(damage=b" "))
    with pytest.raises(AbstainError, match="abstain shadow clear"):
        follows.fetch_bundle(live)
    monkeypatch.setattr(bundles, "run", get())
    bundle = follows.fetch_bundle(live)
    assert (bundle / "probe.onnx").is_file() and bundle.parent.name == "releases"
    assert asked[-1][2:6] == [str(workspace.path), "shadow", "--rev", shadow.tag]


def test_a_rejected_candidate_becomes_the_shadow_by_itself_only_where_params_say_so_and_none_is_there(
    workspace: Plain, candidates: Candidates
) -> None:
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
    assert read_shadow(workspace.path, f"origin/{BRANCH}") == first, "its reviews have only begun to come"
    candidates.write(1.8)
    assert candidates.promote().version == "v1.1.0"
    candidates.write(0.9)
    assert candidates.promote().status == "rejected"
    second = read_shadow(workspace.path, f"origin/{BRANCH}")
    assert second is not None and second.production_version == "v1.1.0"


def test_the_commands_say_what_is_there_and_what_the_look_means(
    workspace: Plain,
    shadow: Shadow,
    log: DecisionLog,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    @contextmanager
    def here() -> Iterator[Plain]:
        yield workspace

    def said() -> str:
        return " ".join(capsys.readouterr().out.split())

    monkeypatch.setattr("abstain_tasks.runs.workspace.open_workspace", here)
    monkeypatch.setattr(
        "abstain_tasks.runs.workspace.fetch_origin_snapshot", lambda: (workspace.path, f"origin/{BRANCH}")
    )
    write_data(workspace, decide(log, shadow), reviewed=200)
    cli.show()
    assert f"{shadow.version} is the shadow of v1.0.0" in (shown := said()) and "by both: 300 answers" in shown
    cli.compare()
    first = said()
    assert (
        "better: paired reviews: AUROC" in first and "comparison 2 of 60" in first and "no version was changed" in first
    )
    cli.compare()
    assert "no other was made" in said()
    cli.clear()
    cli.show()
    assert "there is no shadow" in said()
