"""Versions without a checked guarantee: the first goes live as such, and the first with one replaces it."""

from __future__ import annotations

import json
from typing import Any

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
from tests.tasks.conftest import MISSING, Candidates, Plain

WHY = MISSING.message


@pytest.fixture
def frozen(workspace: Plain, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The version in production before each promotion that freezes the hold-out."""
    found: list[str | None] = []

    def write(_: Plain, event: RegistryEvent) -> bool:
        if event.has_guarantee:
            found.append(load_registry(workspace.path / paths.REGISTRY).production_version)
        return False

    monkeypatch.setattr(promotion, "write_promotion_params", write)
    return found


def set_on_infeasible(workspace: Plain, value: str) -> None:
    """Also the hold-out is not frozen, as at the start of a project."""
    edit_params(workspace, {"threshold": {"on_infeasible": value}, "split": {"holdout_frozen_at": None}})
    commit(workspace, "Where nothing can be guaranteed", paths.PARAMS)


def approval(workspace: Plain, name: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((workspace.path / paths.APPROVALS / f"{name}.json").read_text())
    return read


def carried_guarantee(workspace: Plain) -> Guarantee:
    """The guarantee that the released file tells its callers."""
    entries = onnx.load(workspace.path / paths.RELEASED_ONNX).metadata_props
    (text,) = (entry.value for entry in entries if entry.key == "guarantee")
    return Guarantee.model_validate_json(text)


def test_the_first_version_may_lack_a_guarantee_until_one_has_it(
    workspace: Plain, first_candidates: Candidates, frozen: list[str | None]
) -> None:
    set_on_infeasible(workspace, "heuristic")
    first_candidates.write(1.5, guaranteed=False)
    assert first_candidates.promote() == PromotionResult("promoted", "v1.0.0", [f"none yet: {WHY}"])
    live = workspace.on_origin().production
    assert live is not None and live.guarantee == carried_guarantee(workspace) == MISSING and frozen == []
    assert approval(workspace, "v1.0.0")["guarantee"] == MISSING.model_dump(mode="json")
    first_candidates.write(1.4, drop=20, guaranteed=False)  # the hold-out has grown, and is no rival's
    assert first_candidates.promote().version == "v1.1.0"
    first_candidates.write(1.2, drop=10)  # ranks worse, but keeps its word
    assert first_candidates.promote() == PromotionResult("promoted", "v1.2.0", [])
    live = workspace.on_origin().production
    assert live is not None and live.has_guarantee and frozen == ["v1.1.0"]
    assert live.guarantee == carried_guarantee(workspace)
    assert live.guarantee.holdout == HoldoutResult(reviews=390, value=0.5 * (1 - 0.8), low=0.08, high=0.12)
    first_candidates.write(1.6, drop=10, guaranteed=False)
    assert first_candidates.promote() == PromotionResult(
        "rejected", "v1.2.0", [f"A302 the check `guarantee` failed: none: {WHY}"]
    )


def test_where_it_must_not_the_record_and_an_event_say_why(
    workspace: Plain, first_candidates: Candidates, frozen: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    emitted: list[dict[str, str]] = []
    monkeypatch.setattr(promotion, "post_event", lambda name, about, **said: emitted.append({name: about, **said}))
    assert load_params(workspace.path / paths.PARAMS).threshold.on_infeasible == "fail"
    first_candidates.write(1.5, guaranteed=False)
    assert first_candidates.promote() == PromotionResult(
        "rejected", None, [f"A302 the check `guarantee` failed: none: {WHY}"]
    )
    assert workspace.on_origin().production is None and frozen == []
    assert list((workspace.path / paths.APPROVALS).glob("rejected-*.json"))
    candidate = compute_sha256(workspace.path / paths.ONNX)[:12]
    event = {
        REJECTED: f"{REJECTED}.{candidate}",
        "code": "A302",
        "text": f"rejected: the check `guarantee` failed: none: {WHY}",
        "remedy": Code.NO_THRESHOLD.remedy,
    }
    assert emitted == [event]
    first_candidates.promote()  # the next night: about the same candidate
    assert emitted == [event, event]


FEW = 380
"""So many answers fewer leave a hold-out that shows too few to check a guarantee."""


def test_a_guarantee_that_cannot_be_checked_is_none_until_it_can(
    workspace: Plain, first_candidates: Candidates, frozen: list[str | None]
) -> None:
    set_on_infeasible(workspace, "heuristic")
    first_candidates.write(1.5, drop=FEW)
    outcome = first_candidates.promote()
    record, live = approval(workspace, "v1.0.0"), workspace.on_origin().production
    (said,) = outcome.reasons
    shown = next(check["value"] for check in record["checks"] if check["name"] == "guarantee")
    more = record["guarantee"]["additional_reviews"]
    assert 0 < shown < 20 and 60 * 20 / shown <= 60 + more < 60 * 20 / shown + 1, "of 60 reviews a third are here"
    assert said.startswith("not checked yet: the hold-out shows ") and said.endswith(f"bring about {more} more reviews")
    assert record["approved"] and record["guarantee"]["status"] == "unchecked" and frozen == []
    assert live is not None and live.guarantee == carried_guarantee(workspace)
    assert live.guarantee.model_dump(mode="json") == record["guarantee"]
    assert live.notice in first_candidates.judged[-1] and live.notice in workspace.git("log", "-1", "--format=%b")
    first_candidates.write(1.4, drop=FEW)  # not compared with the other
    assert first_candidates.promote().version == "v1.1.0" and frozen == []
    first_candidates.write(1.2)  # ranks worse, but is checked
    assert first_candidates.promote() == PromotionResult("promoted", "v1.2.0", [])
    assert workspace.on_origin().has_guarantee and frozen == ["v1.1.0"]


def test_the_same_bytes_are_judged_again_once_the_hold_out_can_check_them(
    workspace: Plain, first_candidates: Candidates, frozen: list[str | None]
) -> None:
    set_on_infeasible(workspace, "heuristic")
    first_candidates.write(1.5, drop=FEW)
    assert first_candidates.promote().status == "promoted"
    first_candidates.write(1.5, drop=FEW - 1)
    assert first_candidates.promote().status == "unchanged" and workspace.on_origin().production_version == "v1.0.0"
    first_candidates.write(1.5)
    assert first_candidates.promote() == PromotionResult("promoted", "v1.1.0", [])
    first, second = workspace.on_origin().history
    assert first.candidate_sha256 == second.candidate_sha256 and (first.has_guarantee, second.has_guarantee) == (
        False,
        True,
    )
    first_candidates.write(1.5, drop=FEW)
    assert first_candidates.promote().status == "unchanged"


def test_one_that_cannot_be_checked_replaces_none_that_was(
    workspace: Plain, first_candidates: Candidates, frozen: list[str | None]
) -> None:
    set_on_infeasible(workspace, "heuristic")
    first_candidates.write(1.2)
    assert first_candidates.promote() == PromotionResult("promoted", "v1.0.0", [])
    first_candidates.write(1.6, drop=FEW)
    outcome = first_candidates.promote(new_holdout="fewer answers")
    assert (outcome.status, outcome.version) == ("rejected", "v1.0.0")
    assert any(reason.startswith("A402 the check `error rate` failed: ") for reason in outcome.reasons)


def test_where_versions_must_be_guaranteed_too_few_shown_answers_are_a_rejection(
    workspace: Plain, first_candidates: Candidates, frozen: list[str | None]
) -> None:
    set_on_infeasible(workspace, "fail")
    first_candidates.write(1.5, drop=FEW)
    outcome = first_candidates.promote()
    assert outcome.status == "rejected" and any(
        reason.startswith("A402 the check `error rate` failed: ") for reason in outcome.reasons
    )
    assert workspace.on_origin().production is None


def test_a_frozen_hold_out_grows_by_no_review(
    workspace: Plain, first_candidates: Candidates, frozen: list[str | None]
) -> None:
    edit_params(workspace, {"threshold": {"on_infeasible": "heuristic"}})
    commit(workspace, "Where nothing can be guaranteed", paths.PARAMS)
    first_candidates.write(1.5, drop=FEW)
    (said,) = first_candidates.promote().reasons
    assert (
        "move split.holdout_frozen_at" in said
        and approval(workspace, "v1.0.0")["guarantee"]["additional_reviews"] is None
    )


@pytest.mark.heavy
def test_every_comparison_on_the_hold_out_is_counted_and_the_last_one_promotes_nothing(
    workspace: Plain, candidates: Candidates
) -> None:
    edit_params(workspace, {"promotion": {"max_comparisons": 2, "false_promotion_rate": 0.1}})
    commit(workspace, "Two comparisons", paths.PARAMS)
    for comparison, strength in enumerate((1.18, 1.19), start=1):
        candidates.write(strength)
        assert candidates.promote().status == "rejected"
        assert f"(comparison {comparison} of 2 on this hold-out)" in candidates.judged[-1]
    candidates.write(2.4)
    outcome = candidates.promote()
    assert outcome.status == "rejected" and "compared on 2 times" in str(outcome.reasons)
    candidates.write(1.19)  # the last one that took a comparison, judged again, gives none back
    candidates.promote(recheck=True)
    candidates.write(2.4)
    assert "compared on 2 times" in str(candidates.promote(recheck=True).reasons)
    assert candidates.promote(new_holdout="the same one again").status == "rejected"
    candidates.write(1.19, drop=40)
    assert candidates.promote(new_holdout="a new quarter").status == "rejected"
    candidates.write(2.4, drop=40)
    assert candidates.promote().status == "promoted"
    record = approval(workspace, "v1.1.0")
    assert (record["comparison"], record["new_holdout_reason"]) == (2, "a new quarter"), "accepted once, it stays so"
    assert record["alpha_spent"] == pytest.approx(0.1), "the whole level"


@pytest.mark.heavy
def test_a_refilled_hold_out_is_compared_on_anew(workspace: Plain, candidates: Candidates) -> None:
    edit_params(workspace, {"promotion": {"max_comparisons": 2, "false_promotion_rate": 0.1}})
    commit(workspace, "Two comparisons", paths.PARAMS)
    for strength in (1.18, 1.19):
        candidates.write(strength)
        assert candidates.promote().status == "rejected"
    edit_params(workspace, {"split": {"holdout_from": "2026-09-01T00:00:00Z"}})
    commit(workspace, "Refill the hold-out", paths.PARAMS)
    candidates.write(1.19, drop=40)
    assert candidates.promote().status == "rejected"
    assert "(comparison 1 of 2 on this hold-out)" in candidates.judged[-1]
    candidates.write(2.4, drop=40)
    assert candidates.promote() == PromotionResult("promoted", "v1.1.0", [])
    record = approval(workspace, "v1.1.0")
    assert record["new_holdout_reason"] == "refilled with the answers asked since 2026-09-01T00:00:00Z"
    assert candidates.promote().status == "unchanged", "it is production's own hold-out now"


def test_a_deleted_record_stops_the_gate(workspace: Plain, candidates: Candidates) -> None:
    candidates.write(1.18)
    assert candidates.promote().status == "rejected"
    (record,) = (workspace.path / paths.APPROVALS).glob("rejected-*.json")
    workspace.git("rm", "-q", str(record.relative_to(workspace.path)))
    workspace.git("commit", "-q", "-m", "Tidy up")
    candidates.write(2.4)
    with pytest.raises(AbstainError, match=f"{record.name} was deleted, .* restore it"):
        candidates.promote()
    assert workspace.on_origin().production_version == "v1.0.0"


def test_where_the_first_tag_is_missing_the_gate_says_what_to_do(workspace: Plain, candidates: Candidates) -> None:
    workspace.git("tag", "--delete", make_version_tag("v1.0.0"))
    candidates.write(2.4)
    with pytest.raises(AbstainError, match="is not in the origin, .*: push it there"):
        candidates.promote()


def test_an_edited_record_stops_the_gate(workspace: Plain, candidates: Candidates) -> None:
    file = workspace.path / paths.APPROVALS / "v1.0.0.json"
    file.write_text(file.read_text().replace('"comparison": null', '"comparison": 1'))
    candidates.write(2.4)
    with pytest.raises(AbstainError, match="v1.0.0.json was edited since it was written"):
        candidates.promote()
    assert workspace.on_origin().production_version == "v1.0.0"


def test_a_champion_that_cannot_be_scored_stays_although_another_hold_out_was_accepted_before(
    workspace: Plain, candidates: Candidates, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidates.write(1.19, drop=40)
    assert candidates.promote(new_holdout="a new quarter").status == "rejected"

    def unreachable(*_: object) -> None:
        raise AbstainError(Code.FAILED_STEP, "the remote is down")

    monkeypatch.setattr(promotion_inputs, "score_champion", unreachable)
    candidates.write(1.0, drop=40)
    with pytest.raises(AbstainError, match="v1.0.0 cannot be compared with: the remote is down"):
        candidates.promote()
    assert workspace.on_origin().production_version == "v1.0.0"


def test_reviews_that_chose_themselves_do_not_check_a_guarantee_of_all_answers(
    workspace: Plain, first_candidates: Candidates
) -> None:
    first_candidates.write(1.6, n_self_selected=100)
    assert first_candidates.promote().status == "promoted"
    (shown,) = (check for check in approval(workspace, "v1.0.0")["checks"] if check["name"] == "error rate")
    assert shown["value"] < 0.1, "a quarter of all reviews call what is shown incorrect"
