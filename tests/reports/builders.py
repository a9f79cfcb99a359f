"""Results of the stage `evaluate` for made-up answers, with hostile texts: the input of a report, by state."""

import copy
import json
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from abstain.data.labels.data_card import DataCard
from abstain.learning.evaluation.evaluation_result import EvaluationResult, HoldoutMetrics
from abstain.reports.plots import plot_tables

GOLDEN = Path(__file__).parent / "golden"
ROWS, GUARANTEED, HEURISTIC = 240, 0.640625, 0.5

TAG = '<img src="http://elsewhere.invalid/x.png" onerror="document.title=1"><script>document.title=2</script>'
LINK = (
    "](javascript:alert(1)) [a link](http://elsewhere.invalid) ![x](http://elsewhere.invalid/y.png) <http://a.invalid>"
)
TABLE = "a | b\n| --- | --- |\n| `c` | **d** _e_ ~~f~~ &amp; $x^2$ and $5"
CONTROL = "nul \x00, escape \x1b[31m, backwards \u202etxt.exe\u202c, noncharacter \ufffe, end"
NASTY = (TAG, LINK, TABLE, CONTROL, "Donaudampfschifffahrtsgesellschaft" * 12)
"""Texts of people; the file with the made-up results has each of them."""


def make_contradiction(message: str) -> dict[str, Any]:
    numbers = {"answers": 45, "contradicted": 41.0, "expected": 3.0, "p_value": 1e-9}
    return {"person": "reviewer r-01234567", "batch": None, **numbers, "message": message}


AT_THRESHOLD, THRESHOLD = "metrics.holdout.at_threshold", "evaluation.threshold"
GUARANTEE = f"{THRESHOLD}.guarantee"
INFEASIBLE = {
    f"{THRESHOLD}.threshold": HEURISTIC,
    f"{GUARANTEE}.status": "none",
    f"{GUARANTEE}.estimates": {"coverage": 0.5649, "precision": 0.8511, "error_rate": 0.0841},
    f"{GUARANTEE}.evidence.p_value": None,
    f"{GUARANTEE}.additional_reviews": 4812,
    f"{AT_THRESHOLD}.threshold": HEURISTIC,
    f"{AT_THRESHOLD}.coverage": 0.515,
    f"{AT_THRESHOLD}.precision": 0.7214,
    f"{AT_THRESHOLD}.precision_low": 0.652,
    f"{AT_THRESHOLD}.precision_high": 0.791,
}
UNDEFINED = {
    "metrics.newest": {"rows": 0, "auroc": None},
    "metrics.holdout.base_rate": 1.0,
    f"{AT_THRESHOLD}.precision": None,
    f"{AT_THRESHOLD}.recall": None,
    f"{AT_THRESHOLD}.coverage": 0.0,
    f"{AT_THRESHOLD}.shown": 0,
    f"{AT_THRESHOLD}.shown_n_eff": 0.0,
    f"{AT_THRESHOLD}.shown_groups": 0,
    "metrics.holdout.at_heuristic": None,
    "metrics.holdout.self_selected": {"rows": 31, "coverage": 0.4, "precision": 0.9},
    f"{THRESHOLD}.heuristic": None,
    f"{GUARANTEE}.population": "answers_like_reviewed",
    f"{GUARANTEE}.evidence.sampled": False,
    f"{GUARANTEE}.evidence.reviewers": None,
    f"{GUARANTEE}.evidence.largest_reviewer_share": None,
    "evaluation.skipped": {},
    "evaluation.neither": None,
    "evaluation.ranked_apart": "",
    "evaluation.improbable": {},
    "evaluation.at_own_threshold": {"probe": {"note": "no threshold reaches precision 0.8"}},
    "evaluation.by_kind": [],
    "evaluation.audits": {},
    "evaluation.rank_correlation": {"names": [], "matrix": []},
    "evaluation.ablations": [],
    "evaluation.fusion": {"strength": 1e-4, "coefficients": {"linear": 0.0}, "missing": {"linear": 0.0}},
    "evaluation.examples": {"caught": [], "missed": [], "withheld": []},
    "evaluation.regressors.regressors": {},
    "dataset.thumbs.weights": "fixed",
    "dataset.thumbs.reason": "2 answers have both",
    "dataset.thumbs.largest_share": {"users": 0, "limit": 1.0, "before": 0.0, "after": 0.0},
    "dataset.kinds.1.answers": 0,
    "dataset.contradicting.named": [make_contradiction(f"reviewer r-01234567 in batch {TAG}: 41 of 45")],
}
"""A hold-out of one class that shows nothing: metrics are undefined and optional parts are absent."""


class Evaluated(NamedTuple):
    """The arguments of `render_evaluation`."""

    result: EvaluationResult
    dataset: DataCard
    tables: dict[str, pd.DataFrame]


def evaluated(*, guaranteed: bool = True, few: bool = False, changed: Mapping[str, Any] | None = None) -> Evaluated:
    """Build a report's input; `changed` sets values by path, as in `{"metrics.holdout.base_rate": 0.5}`."""
    parts = json.loads(read_results())
    tables = {name: pd.DataFrame(**split) for name, split in parts["tables"].items()}
    if not guaranteed:
        tables["threshold"] = tables["threshold"].query("mark != 'guaranteed'")
    if few:
        _leave_undefined(parts, tables)
    values = ({} if guaranteed else INFEASIBLE) | (UNDEFINED if few else {}) | dict(changed or {})
    for path, value in values.items():
        part: Any = parts
        *folders, last = path.split(".")
        for name in folders:
            part = part[int(name)] if isinstance(part, list) else part[name]
        part[last] = copy.deepcopy(value)
    result = EvaluationResult.from_files(parts["metrics"], parts["evaluation"])
    return Evaluated(result, DataCard.from_dict(parts["dataset"]), plot_tables(tables, result))


def assert_golden(name: str, text: str) -> None:
    """Fail if the text differs from the file `golden/NAME`; `REGENERATE_GOLDEN=1 pytest tests/reports` writes it."""
    file = GOLDEN / name
    if os.environ.get("REGENERATE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text.splitlines() == file.read_text(encoding="utf-8").splitlines(), "REGENERATE_GOLDEN=1 rewrites the file"


def make_holdout_metrics(at_threshold: Mapping[str, Any] = {}, **values: Any) -> HoldoutMetrics:
    holdout = json.loads(read_results())["metrics"]["holdout"]
    return HoldoutMetrics(**(holdout | values | {"at_threshold": holdout["at_threshold"] | at_threshold}))


@lru_cache(maxsize=1)
def read_results() -> str:
    return (GOLDEN / "evaluation.json").read_text(encoding="utf-8")


def _leave_undefined(parts: dict[str, Any], tables: dict[str, pd.DataFrame]) -> None:
    """Remove every metric of a scorer, a slice and a calibrator, and the curves."""
    scorers = parts["metrics"]["holdout"]["scorers"]
    rows = [*scorers.values(), *parts["evaluation"]["slices"], *parts["evaluation"]["calibration"]["by_method"]]
    for row in rows:
        row |= {key: None for key, value in row.items() if isinstance(value, float) and key != "n_eff"}
        if "note" in row:
            row["note"] = "fewer than 20 answers: not judged"
    tables["threshold"] = tables["threshold"].assign(precision=None, recall=None, rouge_shown=None, rouge_withheld=None)
    for name in ("roc", "risk_coverage", "reliability", "reliability_by_product"):
        tables[name] = tables[name].iloc[:0]
