"""How often a hold-out was compared on, and what was decided before, by the records in `approvals/`."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from abstain.config.params import load_params
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.reasons import Reason
from abstain.release.champion_comparison import ComparisonBudget
from abstain_tasks.release.promotion_records import (
    find_earlier_rejection,
    find_holdout_acceptance,
    find_holdout_refill,
    get_prior_coverage_loss,
    hash_stage_inputs,
    read_comparison_budget,
    read_records,
    require_records,
    write_record,
)
from tests.conftest import ROOT
from tests.tasks.conftest import Candidates, Plain

NOT_BETTER = Reason(Code.NOT_BETTER, "better", "it is not")
NOW = {
    "champion": "v1.0.0",
    "limits": {"max_comparisons": 60},
    "erasure": None,
    "candidate_sha256": "a",
    "inputs_sha256": "b",
    "metrics": {"holdout": {"digest": "h"}},
}


def record(day: int, comparison: int | None = None, *, approved: bool = False, **more: Any) -> dict[str, Any]:
    decided = f"2026-11-{day:02}T00:00:00+00:00"
    return {
        **NOW,
        "approved": approved,
        "comparison": comparison,
        "alpha_spent": None if comparison is None else comparison / 100,
        "new_holdout_reason": None,
        "decided_at": decided,
        "checks": [],
        "reasons": [{"code": NOT_BETTER.code, "check": NOT_BETTER.field, "message": NOT_BETTER.message}],
    } | more


def test_every_comparison_since_the_hold_out_was_accepted_counts() -> None:
    assert read_comparison_budget([], "h", accepting=False) == ComparisonBudget()
    records = [
        record(1, approved=True),
        record(2, 1),
        record(3, 2, metrics={"holdout": {"digest": "erased"}}),
        record(4),
    ]
    assert read_comparison_budget(records, "h", accepting=False) == ComparisonBudget(2, 0.02)
    accepted = [*records, record(5, approved=True, new_holdout_reason="a new quarter"), record(6, 1)]
    assert read_comparison_budget(accepted, "h", accepting=False) == ComparisonBudget(1, 0.01)


def test_the_levels_of_all_comparisons_are_added_up() -> None:
    changed = [record(1, 1), record(2, 2, alpha_spent=0.015)]
    assert read_comparison_budget(changed, "h", accepting=False) == ComparisonBudget(2, 0.015)


def test_a_record_that_git_knows_of_and_that_is_gone_is_named(tmp_path: Path) -> None:
    names = ["approvals/v1.0.0.json", "approvals/rejected-a-h.json"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    require_records(names, tmp_path)
    (tmp_path / names[1]).unlink()
    with pytest.raises(AbstainError, match=r"^approvals/rejected-a-h.json was deleted, .* restore it"):
        require_records(names, tmp_path)


def test_what_a_champion_shows_less_is_that_of_its_own_record() -> None:
    def promoted(version: str, value: float | None, passed: bool | None = True, **more: Any) -> dict[str, Any]:
        checks = [{"name": "coverage", "passed": passed, "value": value}]
        return record(1, approved=True, version=version, checks=checks, **more)

    records = [promoted("v1.0.0", -0.15), promoted("v1.1.0", 0.05), promoted("v1.2.0", None, None), record(4)]
    assert [get_prior_coverage_loss(records, name) for name in ("v1.0.0", "v1.1.0", "v1.2.0", "v9.0.0")] == [
        0.15,
        0.0,
        0.0,
        0.0,
    ]
    assert get_prior_coverage_loss([promoted("v1.0.0", -0.5, None)], "v1.0.0") == 0.0, "chance may have made it"
    assert get_prior_coverage_loss([promoted("v1.0.0", -0.5, erasure={"accepted": "asked for"})], "v1.0.0") == 0.0
    assert get_prior_coverage_loss([promoted("v1.0.0", -0.5, erasure={"accepted": None})], "v1.0.0") == 0.5
    assert (
        get_prior_coverage_loss([record(1, approved=True, version="v1.0.0")], "v1.0.0")
        == get_prior_coverage_loss([], None)
        == 0.0
    )


def test_while_another_is_accepted_those_on_it_count() -> None:
    records = [record(1, 7), record(2, 1, metrics={"holdout": {"digest": "new"}}, new_holdout_reason="why")]
    assert read_comparison_budget(records, "new", accepting=True) == ComparisonBudget(1, 0.01)
    assert read_comparison_budget(records, "other", accepting=True) == ComparisonBudget()


def test_a_hold_out_that_was_accepted_once_stays_so() -> None:
    records = [record(1, approved=True), record(2, 1, metrics={"holdout": {"digest": "new"}}, new_holdout_reason="why")]
    assert find_holdout_acceptance(records, "new") == "why"
    assert find_holdout_acceptance(records, "h") is None


def test_a_refill_in_params_is_the_reason_whatever_record_there_is() -> None:
    split = load_params(ROOT / "params.yaml").split
    before = [record(1, approved=True, version="v1.0.0", params={"split": split.model_dump(mode="json")})]
    assert find_holdout_refill(before, "v1.0.0", split) is None
    opens = datetime(2026, 9, 1, tzinfo=UTC)
    refilled = split.model_copy(update={"holdout_from": opens})
    assert (
        find_holdout_refill(before, "v1.0.0", refilled) == "refilled with the answers asked since 2026-09-01T00:00:00Z"
    )
    assert find_holdout_refill([], "v1.0.0", refilled) is None
    since = [record(2, approved=True, version="v1.1.0", params={"split": refilled.model_dump(mode="json")})]
    assert find_holdout_refill(since, "v1.1.0", refilled) is None, "it is production's own now"


def test_records_come_back_in_their_order(tmp_path: Path) -> None:
    write_record(tmp_path / "rejected-b.json", record(3, 2))
    write_record(tmp_path / "v1.0.0.json", record(1, approved=True))
    assert [one["decided_at"][8:10] for one in read_records(tmp_path)] == ["01", "03"]


def changed(value: Any) -> Any:
    """Another value of the same kind."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"{value}0"
        case list():
            return [*value, 0]
        case dict():
            return {**value, "more": 0}
        case _:
            return 0


def without(record: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in names}


EDITS: dict[str, Callable[[dict[str, Any]], list[Any]]] = {
    "a field is changed": lambda whole: [{**whole, name: changed(value)} for name, value in whole.items()],
    "a field is deleted": lambda whole: [without(whole, name) for name in whole],
    "a field and the seal are deleted": lambda whole: [without(whole, name, "seal") for name in whole],
    "comparison, alpha and seal are deleted": lambda whole: [without(whole, "comparison", "alpha_spent", "seal")],
    "an unknown field is added": lambda whole: [{**whole, "comment": "fine"}, {**whole, "": None}],
    "it is no record": lambda whole: [[], None, [whole], "", {}],
}


@pytest.mark.parametrize("edits", EDITS.values(), ids=EDITS)
def test_edited_record_stops_the_promotion(
    edits: Callable[[dict[str, Any]], list[Any]], candidates: Candidates, workspace: Plain
) -> None:
    file = workspace.path / paths.APPROVALS / "v1.0.0.json"
    text = file.read_text()
    whole = json.loads(text)
    assert {"comparison", "alpha_spent", "seal", "checks", "metrics", "params", "approved"} < whole.keys()
    candidates.write(2.0)
    said = r"approvals/v1\.0\.0\.json was edited since it was written, .* restore it from git \(git log -- [^ \n]+\)"
    for edited in edits(whole):
        assert edited != whole
        file.write_text(json.dumps(edited))
        with pytest.raises(AbstainError, match=f"^{said}$"):
            candidates.promote()
    file.write_text(text[:-9])
    with pytest.raises(AbstainError, match=f"^{said}$"):
        candidates.promote()
    assert candidates.judged == [] and workspace.on_origin().production_version == "v1.0.0"
    file.write_text(text)
    assert candidates.promote().status == "promoted"


def test_what_was_rejected_is_not_judged_again() -> None:
    before = [record(2)]
    assert find_earlier_rejection(before, NOW) == [NOT_BETTER]
    other_bytes = NOW | {
        "candidate_sha256": "of another processor",
        "metrics": {"holdout": {"digest": "h", "auroc": 0.8}},
    }
    assert find_earlier_rejection(before, other_bytes) == [NOT_BETTER]
    assert find_earlier_rejection(before, other_bytes | {"inputs_sha256": "more reviews"}) == []
    for key, value in (
        ("champion", "v1.1.0"),
        ("limits", {"max_comparisons": 30}),
        ("erasure", {"since": "2026-11-20"}),
    ):
        assert find_earlier_rejection(before, NOW | {key: value}) == []
    slow = [record(2, checks=[{"name": "latency", "passed": False}])]
    assert find_earlier_rejection(slow, NOW) == []
    assert find_earlier_rejection([record(2, approved=True)], NOW) == []


def test_inputs_are_what_no_stage_makes(tmp_path: Path) -> None:
    lock = {
        "stages": {
            "dataset": {
                "deps": [{"path": "data", "md5": "1"}],
                "params": {"params.yaml": {"split.seed": 3}},
                "outs": [{"path": "artifacts/dataset.parquet", "md5": "2"}],
            },
            "train": {"deps": [{"path": "artifacts/dataset.parquet", "md5": "2"}, {"path": "src/x", "md5": "4"}]},
        }
    }
    file = tmp_path / "dvc.lock"

    def digest(*changes: tuple[str, ...]) -> str | None:
        text = json.dumps(lock)
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        file.write_text(yaml.safe_dump(json.loads(text)))
        return hash_stage_inputs(file)

    assert hash_stage_inputs(file) is None
    first = digest()
    assert first == digest(('"md5": "2"', '"md5": "other bits of another processor"'))
    changed = {
        digest(('"md5": "1"', '"md5": "9"')),
        digest(('"md5": "4"', '"md5": "9"')),
        digest(('seed": 3', 'seed": 4')),
    }
    assert len(changed | {first}) == 4
