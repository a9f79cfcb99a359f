"""Promotion of candidates night after night, with real git: guarantees, the comparison budget and the records."""

from typing import Any
from unittest.mock import Mock

import onnx
import pytest

from abstain.config.params import load_params
from abstain.core import paths
from abstain.core.bundle_format import compute_sha256
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.learning.thresholds.guarantee import Guarantee, HoldoutResult
from abstain.release.registry import RegistryEvent, load_registry, make_version_tag
from abstain_tasks.release import promotion, promotion_inputs
from abstain_tasks.release.promotion import PromotionResult
from abstain_tasks.runs.events import REJECTED
from abstain_tasks.runs.git_commit import commit
from abstain_tasks.runs.run_params import edit_params
from tests.tasks.conftest import MISSING, Candidates, Plain, read_approval, read_checks

pytestmark = pytest.mark.heavy  # git, and whole evaluations: not pure functions

FEW = 380
"""So many answers fewer leave a hold-out that shows too few to check a guarantee."""


@pytest.fixture
def frozen(workspace: Plain, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The version in production before each promotion that freezes the hold-out."""
    versions: list[str | None] = []

    def write(_: Plain, event: RegistryEvent) -> bool:
        if event.has_guarantee:
            versions.append(load_registry(workspace.path / paths.REGISTRY).production_version)
        return False

    monkeypatch.setattr(promotion, "write_promotion_params", write)
    return versions


def write_params(workspace: Plain, **sections: dict[str, Any]) -> None:
    edit_params(workspace, sections)
    commit(workspace, "Change parameters", paths.PARAMS)


def allow_missing_guarantee(workspace: Plain) -> None:
    write_params(workspace, threshold={"on_infeasible": "heuristic"}, split={"holdout_frozen_at": None})


def read_released_guarantee(workspace: Plain) -> Guarantee:
    entries = onnx.load(workspace.path / paths.RELEASED_ONNX).metadata_props
    (text,) = (entry.value for entry in entries if entry.key == "guarantee")
    return Guarantee.model_validate_json(text)


def test_promote_missing_guarantee_until_one_has(workspace: Plain, first_candidates: Candidates, frozen: list) -> None:
    allow_missing_guarantee(workspace)
    first_candidates.write(1.5, guaranteed=False)
    outcome = first_candidates.promote()
    assert (outcome.status, outcome.version, len(outcome.reasons)) == ("promoted", "v1.0.0", 1)
    assert workspace.on_origin().production.guarantee == read_released_guarantee(workspace) == MISSING and frozen == []
    assert read_approval(workspace, "v1.0.0")["guarantee"] == MISSING.model_dump(mode="json")
    first_candidates.write(1.4, drop=20, guaranteed=False)  # the hold-out may change: it is no champion's
    assert first_candidates.promote().version == "v1.1.0"
    first_candidates.write(1.2, drop=10)  # ranks worse, but has a guarantee
    assert first_candidates.promote() == PromotionResult("promoted", "v1.2.0", [])
    event = workspace.on_origin().production
    assert event.has_guarantee and frozen == ["v1.1.0"] and event.guarantee == read_released_guarantee(workspace)
    assert event.guarantee.holdout == HoldoutResult(reviews=390, value=0.5 * (1 - 0.8), low=0.08, high=0.12)
    first_candidates.write(1.6, drop=10, guaranteed=False)
    outcome = first_candidates.promote()
    assert (outcome.status, outcome.version) == ("rejected", "v1.2.0") and outcome.reasons[0].startswith("A302 ")


def test_promote_no_or_unchecked_guarantee_rejected_with_event(
    workspace: Plain, first_candidates: Candidates, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[dict[str, str]] = []
    monkeypatch.setattr(promotion, "post_event", lambda name, key, **fields: events.append({name: key, **fields}))
    assert load_params(workspace.path / paths.PARAMS).threshold.on_infeasible == "fail"
    first_candidates.write(1.5, drop=FEW)
    assert "A402 the check `error rate`" in str(first_candidates.promote().reasons)
    events.clear()
    first_candidates.write(1.5, guaranteed=False)
    outcome = first_candidates.promote()
    assert (outcome.status, outcome.version) == ("rejected", None) and outcome.reasons[0].startswith("A302 ")
    assert workspace.on_origin().production is None
    (event,) = events
    resource = f"{REJECTED}.{compute_sha256(workspace.path / paths.ONNX)[:12]}"
    assert (event[REJECTED], event["code"], event["remedy"]) == (resource, "A302", Code.NO_THRESHOLD.remedy)
    assert MISSING.message in event["text"]
    first_candidates.promote()  # the next night: about the same candidate
    assert events == [event, event]


def test_promote_unchecked_until_holdout_suffices(workspace: Plain, first_candidates: Candidates, frozen: list) -> None:
    allow_missing_guarantee(workspace)
    first_candidates.write(1.5, drop=FEW)
    (reason,) = first_candidates.promote().reasons
    record, event = read_approval(workspace, "v1.0.0"), workspace.on_origin().production
    shown = read_checks(workspace, "v1.0.0")["guarantee"]["value"]
    more = record["guarantee"]["additional_reviews"]
    assert 0 < shown < 20 and 60 * 20 / shown <= 60 + more < 60 * 20 / shown + 1, "of 60 reviews a third are here"
    assert f"about {more} more reviews" in reason
    assert record["approved"] and record["guarantee"]["status"] == "unchecked" and frozen == []
    assert event.guarantee == read_released_guarantee(workspace)
    assert event.guarantee.model_dump(mode="json") == record["guarantee"]
    assert event.notice in first_candidates.judged[-1] and event.notice in workspace.git("log", "-1", "--format=%b")
    first_candidates.write(1.4, drop=FEW)  # not compared with the other
    assert first_candidates.promote().version == "v1.1.0" and frozen == []
    first_candidates.write(1.2)  # ranks worse, but is checked
    assert first_candidates.promote() == PromotionResult("promoted", "v1.2.0", [])
    assert workspace.on_origin().has_guarantee and frozen == ["v1.1.0"]
    first_candidates.write(1.6, drop=FEW)  # a checked guarantee is not replaced by an unchecked one
    outcome = first_candidates.promote(new_holdout="fewer answers")
    assert (outcome.status, outcome.version) == ("rejected", "v1.2.0")
    assert any(reason.startswith("A402 the check `error rate`") for reason in outcome.reasons)


def test_promote_same_bytes_again_once_checked(workspace: Plain, first_candidates: Candidates, frozen: list) -> None:
    write_params(workspace, threshold={"on_infeasible": "heuristic"})
    statuses = []
    for drop in (FEW, FEW - 1, 0, FEW):
        first_candidates.write(1.5, drop=drop)
        statuses.append(first_candidates.promote().status)
    assert statuses == ["promoted", "unchanged", "promoted", "unchanged"]
    first, second = workspace.on_origin().history
    assert first.candidate_sha256 == second.candidate_sha256
    assert (first.has_guarantee, second.has_guarantee) == (False, True)
    assert read_approval(workspace, "v1.0.0")["guarantee"]["additional_reviews"] is None, "the hold-out is frozen"


def test_promote_used_up_budget_rejects(workspace: Plain, candidates: Candidates) -> None:
    write_params(workspace, promotion={"max_comparisons": 2, "false_promotion_rate": 0.1})
    for comparison, strength in enumerate((1.18, 1.19), start=1):
        candidates.write(strength)
        assert candidates.promote().status == "rejected"
        assert f"(comparison {comparison} of 2 on this hold-out)" in candidates.judged[-1]
    candidates.write(2.4)
    assert "compared on 2 times" in str(candidates.promote().reasons)
    candidates.write(1.19)  # the last one that took a comparison, judged again, gives none back
    candidates.promote(recheck=True)
    candidates.write(2.4)
    assert "compared on 2 times" in str(candidates.promote(recheck=True).reasons)
    assert candidates.promote(new_holdout="the same one again").status == "rejected"
    candidates.write(1.19, drop=40)
    assert candidates.promote(new_holdout="a new quarter").status == "rejected"
    candidates.write(2.4, drop=40)
    assert candidates.promote().status == "promoted"
    record = read_approval(workspace, "v1.1.0")
    assert (record["comparison"], record["new_holdout_reason"]) == (2, "a new quarter"), "accepted once, it stays so"
    assert record["alpha_spent"] == pytest.approx(0.1)


def test_promote_refilled_holdout_has_new_budget(workspace: Plain, candidates: Candidates) -> None:
    write_params(workspace, promotion={"max_comparisons": 2, "false_promotion_rate": 0.1})
    for strength in (1.18, 1.19):
        candidates.write(strength)
        assert candidates.promote().status == "rejected"
    write_params(workspace, split={"holdout_from": "2026-09-01T00:00:00Z"})
    candidates.write(1.19, drop=40)
    assert candidates.promote().status == "rejected"
    assert "(comparison 1 of 2 on this hold-out)" in candidates.judged[-1]
    candidates.write(2.4, drop=40)
    assert candidates.promote() == PromotionResult("promoted", "v1.1.0", [])
    assert "2026-09-01T00:00:00Z" in read_approval(workspace, "v1.1.0")["new_holdout_reason"]
    assert candidates.promote().status == "unchanged", "it is production's own hold-out now"


def test_promote_deleted_record_or_first_tag_raises(workspace: Plain, candidates: Candidates) -> None:
    candidates.write(1.18)
    assert candidates.promote().status == "rejected"
    (record,) = (workspace.path / paths.APPROVALS).glob("rejected-*.json")
    workspace.git("rm", "-q", str(record.relative_to(workspace.path)))
    workspace.git("commit", "-q", "-m", "Tidy up")
    candidates.write(2.4)
    with pytest.raises(AbstainError, match=f"{record.name} was deleted, .* restore it"):
        candidates.promote()
    assert workspace.on_origin().production_version == "v1.0.0"
    workspace.git("tag", "--delete", make_version_tag("v1.0.0"))
    with pytest.raises(AbstainError, match="probe@v1.0.0 is not in the origin"):
        candidates.promote()


def test_promote_unscorable_champion(workspace: Plain, candidates: Candidates, monkeypatch: pytest.MonkeyPatch) -> None:
    candidates.write(1.19, drop=40)
    assert candidates.promote(new_holdout="a new quarter").status == "rejected"
    lost = AbstainError(Code.FAILED_STEP, "the remote is down")
    monkeypatch.setattr(promotion_inputs, "score_champion", Mock(side_effect=lost))
    candidates.write(1.0, drop=40)
    with pytest.raises(AbstainError, match="v1.0.0 cannot be compared with: the remote is down"):
        candidates.promote()
    assert workspace.on_origin().production_version == "v1.0.0"


def test_promote_self_selected_reviews_do_not_check_guarantee(workspace: Plain, first_candidates: Candidates) -> None:
    first_candidates.write(1.6, n_self_selected=100)
    assert first_candidates.promote().status == "promoted", "a quarter of all reviews find what is shown incorrect"
    assert read_checks(workspace, "v1.0.0")["error rate"]["value"] < 0.1
