import json
from collections.abc import Iterator
from datetime import UTC, datetime
from math import nan
from pathlib import Path
from typing import Any

import pytest
import yaml

from abstain.config.params import load_params
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.release.champion_comparison import ComparisonBudget
from abstain.release.evaluation_set import PromotionCheck
from abstain.release.metric_comparison import MetricComparison
from abstain.release.promotion_record import DecisionInputs, Erasure, PromotionRecord, RecordedHoldout, RecordedMetrics
from abstain_tasks.release import promotion_records as module
from abstain_tasks.release.promotion_records import read_records, write_record
from tests.conftest import ROOT
from tests.learning.thresholds.builders import make_guarantee

NOT_BETTER = PromotionCheck(Code.NOT_BETTER, "better", False, 0.2, 0.001, "it is not")
INPUTS = DecisionInputs(
    champion="v1.0.0",
    limits={"max_comparisons": 60},
    erasure=None,
    candidate_sha256="a",
    inputs_sha256="b",
    metrics=RecordedMetrics(holdout=RecordedHoldout(digest="h")),
)
OTHER_HOLDOUT = RecordedMetrics(holdout=RecordedHoldout(digest="new"))


def make_record(day: int, comparison: int | None = None, *, version: str | None = None, **more: Any) -> PromotionRecord:
    fields = {
        "approved": version is not None,
        "version": version,
        "checks": () if version else (NOT_BETTER,),
        "champion_comparison": (),
        "comparison": comparison,
        "alpha_spent": None if comparison is None else comparison / 100,
        "decided_at": f"2026-11-{day:02}T00:00:00+00:00",
        "commit": "c",
        "new_holdout_reason": None,
        "guarantee": make_guarantee(),
        "requirements_sha256": "r",
        "params": {"split": {"holdout_from": None}},
    }
    return PromotionRecord(**dict(INPUTS), **fields).model_copy(update=more)


@pytest.mark.parametrize(
    ("records", "accepting", "used"),
    [
        pytest.param(
            [make_record(1, version="v1.0.0"), make_record(2, 1), make_record(3, 2, metrics=OTHER_HOLDOUT)],
            False,
            (2, 0.02),
            id="erased answers change the digest",
        ),
        pytest.param(
            [make_record(2, 2), make_record(5, version="v1.1.0", new_holdout_reason="new"), make_record(6, 1)],
            False,
            (1, 0.01),
            id="an accepted hold-out starts anew",
        ),
        pytest.param([make_record(1, 1), make_record(2, 2, alpha_spent=0.015)], False, (2, 0.015), id="sums of alpha"),
        pytest.param([make_record(1, 7), make_record(2, 1, metrics=OTHER_HOLDOUT)], True, (1, 0.01), id="accepting"),
        pytest.param([make_record(1, 7)], True, (0, 0.0), id="accepting an unused one"),
    ],
)
def test_read_comparison_budget_since_acceptance(records: list, accepting: bool, used: tuple[int, float]) -> None:
    assert module.read_comparison_budget(records, "new", accepting) == ComparisonBudget(*used)


@pytest.mark.parametrize(
    ("value", "passed", "erasure", "loss"),
    [
        (-0.15, True, None, 0.15),
        (0.05, True, None, 0.0),
        (nan, None, None, 0.0),
        (-0.5, None, None, 0.0),  # may be chance
        (-0.5, True, Erasure(since="2026-11-20", accepted="asked for"), 0.0),
        (-0.5, True, Erasure(since="2026-11-20"), 0.5),
    ],
)
def test_get_prior_coverage_loss(value: float, passed: bool | None, erasure: Erasure | None, loss: float) -> None:
    coverage = PromotionCheck(Code.TARGET_MISSED, "coverage", passed, value, 0.0, "")
    records = [
        make_record(1, version="v1.0.0", checks=(coverage,), erasure=erasure),
        make_record(2, version="v1.1.0", checks=()),
    ]
    assert module.get_prior_coverage_loss(records, "v1.0.0") == loss
    assert [module.get_prior_coverage_loss(records, other) for other in ("v1.1.0", "v9.0.0", None)] == [0.0] * 3


def test_find_holdout_refill_since_promotion() -> None:
    split = load_params(ROOT / "params.yaml").split
    refilled = split.model_copy(update={"holdout_from": datetime(2026, 9, 1, tzinfo=UTC)})
    before, since = (
        [make_record(1, version="v1.0.0", params={"split": promoted.model_dump(mode="json")})]
        for promoted in (split, refilled)
    )
    reason = "refilled with the answers asked since 2026-09-01T00:00:00Z"
    assert module.find_holdout_refill(before, "v1.0.0", refilled) == reason
    assert module.find_holdout_refill(before, "v1.0.0", split) is None
    assert module.find_holdout_refill([], "v1.0.0", refilled) is None
    assert module.find_holdout_refill(since, "v1.0.0", refilled) is None


def test_read_records_returns_what_was_written_by_time(tmp_path: Path) -> None:
    undefined = PromotionCheck(Code.TARGET_MISSED, "precision", False, nan, 0.8, "nothing is shown")
    comparison = MetricComparison("AUROC", 0.8, nan, nan, nan, nan)
    later = make_record(3, 2, checks=(undefined,), champion_comparison=(comparison,))
    write_record(tmp_path / "rejected-b.json", later)
    write_record(tmp_path / "v1.0.0.json", make_record(1, version="v1.0.0"))
    first, second = read_records(tmp_path)
    assert first == make_record(1, version="v1.0.0")
    assert repr(second) == repr(later), "nan is not equal to itself"
    text = (tmp_path / "rejected-b.json").read_text()
    reason = {"code": "A402", "check": "precision", "message": "nothing is shown"}
    assert "NaN" not in text and json.loads(text)["reasons"] == [reason]


def list_edits(record: dict[str, Any]) -> Iterator[object]:
    for name, value in record.items():
        others = {other: record[other] for other in record if other != name}
        yield {**others, name: [value]}
        yield others
        yield {other: others[other] for other in others if other != "seal"}
    yield {**record, "comparison": 1}
    yield {**record, "approved": False}
    yield {name: record[name] for name in record if name not in ("comparison", "alpha_spent", "seal")}
    yield {**record, "comment": "fine"}
    yield from ([], None, [record], "", {})


def test_read_records_edited_record_is_named(tmp_path: Path) -> None:
    file = tmp_path / "v1.0.0.json"
    write_record(file, make_record(1, version="v1.0.0", checks=(NOT_BETTER,)))
    text = file.read_text()
    record = json.loads(text)
    assert {"comparison", "alpha_spent", "seal", "checks", "metrics", "params", "approved"} < record.keys()
    for content in [*map(json.dumps, list_edits(record)), text[:-9]]:
        file.write_text(content)
        with pytest.raises(AbstainError, match=r"v1\.0\.0\.json was edited .*git log -- .*/v1\.0\.0\.json") as error:
            read_records(tmp_path)
        assert error.value.code is Code.BAD_ARTIFACT


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, True),
        ({"candidate_sha256": "of another processor", "metrics": OTHER_HOLDOUT}, True),
        ({"candidate_sha256": "of another processor", "inputs_sha256": "more reviews"}, False),
        ({"metrics": OTHER_HOLDOUT, "inputs_sha256": "more reviews"}, False),
        ({"champion": "v1.1.0"}, False),
        ({"limits": {"max_comparisons": 30}}, False),
        ({"erasure": Erasure(since="2026-11-20")}, False),
    ],
)
def test_find_earlier_rejection_same_inputs(changes: dict[str, Any], found: bool) -> None:
    inputs = INPUTS.model_copy(update=changes)
    assert module.find_earlier_rejection([make_record(2)], inputs) == ([NOT_BETTER.to_reason()] if found else [])


def test_find_earlier_rejection_ignores_latency_and_approval() -> None:
    slow = PromotionCheck(Code.LIMIT_EXCEEDED, "latency", False, 30.0, 20.0, "")
    assert module.find_earlier_rejection([make_record(2, checks=(NOT_BETTER, slow))], INPUTS) == []
    assert module.find_earlier_rejection([make_record(2, version="v1.0.0")], INPUTS) == []


def test_hash_stage_inputs_ignores_outputs(tmp_path: Path) -> None:
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

    def hash_changed(old: str = "", new: str = "") -> str | None:
        text = json.dumps(lock)
        assert old in text
        file.write_text(yaml.safe_dump(json.loads(text.replace(old, new) if old else text)))
        return module.hash_stage_inputs(file)

    assert module.hash_stage_inputs(file) is None
    first = hash_changed()
    assert first == hash_changed('"md5": "2"', '"md5": "other bits of another processor"')
    inputs = (('"md5": "1"', '"md5": "9"'), ('"md5": "4"', '"md5": "9"'), ('seed": 3', 'seed": 4'))
    assert len({first, *(hash_changed(*change) for change in inputs)}) == 4
