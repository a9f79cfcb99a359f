from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pytest import approx

from abstain.config.settings import Settings
from studies.activation_probe import load_study, markdown
from studies.activation_probe.huber import compare_terms, list_terms
from studies.activation_probe.thresholds import make_threshold_rows
from studies.study import FOLDER, Outcome, StudySource

FILE = FOLDER / "activation_probe.yaml"


def make_rows(count: int = 60) -> pd.DataFrame:
    numbers = np.arange(count)
    return pd.DataFrame(
        {"correct": (numbers % 3 > 0).astype(int), "group": numbers // 2, "inclusion_probability": np.nan}
    )


def make_fit(rows: pd.DataFrame, *confidences: np.ndarray) -> dict[str, Any]:
    return {
        "confidence": [confidence.tolist() for confidence in confidences],
        "correct": rows["correct"].tolist(),
        "group": rows["group"].tolist(),
        "weight": [1.0] * len(rows),
    }


def test_thresholds_without_ideal_answers_have_no_rouge() -> None:
    rows, confidence = make_rows(), np.linspace(0, 1, 60)
    rouge = np.full(60, np.nan)
    table = make_threshold_rows(rows, confidence, rouge, {"tuned": 0.55})
    assert [row["threshold"] for row in table][:2] == approx([0.0, 0.1])
    assert [row["mark"] for row in table if row["mark"]] == ["tuned"]
    first, *_ = cells = list(markdown.format_thresholds({"lstm": table}, ["lstm", "absent"]))
    assert len(cells) == 11 and first["% mask"] == "0.0" and first["R"].startswith("1.00")
    assert {cell["ROUGE-L shown"] for cell in cells} == {""}
    rouge[:30] = 0.4
    table = make_threshold_rows(rows, confidence, rouge, {})
    assert next(markdown.format_thresholds({"lstm": table}, ["lstm"]))["ROUGE-L shown"] == "0.40 (0.40 to 0.40), 30"


def test_huber_terms_are_paired_with_the_probe_without() -> None:
    rows, noise = make_rows(), np.random.default_rng(0).uniform(size=(2, 60))
    right = 0.2 + 0.6 * rows["correct"].to_numpy()
    terms = list_terms({"huber_lambda": (1.0, 10.0)})
    assert terms == [{"huber_lambda": 0.0}, {"huber_lambda": 1.0}, {"huber_lambda": 10.0}]
    fits = [make_fit(rows, *noise), make_fit(rows, *noise), make_fit(rows, right, right)]
    without, same, better = compare_terms(list(zip(terms, fits, strict=True)))
    assert "auroc_difference" not in without and without["seeds"] == 2
    assert same["auroc_difference"] == approx(0.0) and same["auroc_difference_high"] == approx(0.0)
    assert better["auroc"] == approx(1.0) and better["auroc_difference_low"] > 0
    assert better["auroc_difference"] == approx(1.0 - without["auroc"])
    cells = list(markdown.format_terms([without, same, better]))
    assert [cell["huber_lambda"] for cell in cells] == ["0", "1", "10"] and cells[0]["AUROC − without"] == "–"


def test_latency_row_shows_the_range_of_runs() -> None:
    (row,) = markdown.format_latencies([{"layer": 8, "chunks": None, "mean": [10, 20, 30], "p99": [40, 40, 70]}])
    assert row == {"layer": "8", "k": "all", "mean, ms": "20 (10 to 30)", "P99, ms": "50 (40 to 70)"}


def test_report_says_why_a_table_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = load_study(FILE, StudySource(data=tmp_path), {}, Settings(home=tmp_path / "home"))
    monkeypatch.setattr(type(study.workspace), "inputs", {"answers": {"file": "user_feedback.jsonl.gz"}})
    parts = study.list_parts(("5", "huber"))
    assert [part.title for part in parts][:3] == ["latency", "huber_lambda = 0", "huber_lambda = 1, huber_delta = 0.02"]
    outcomes = {part.title: Outcome(None, "it was stopped") for part in parts}
    report = study.make_report(("5", "huber"), outcomes)
    assert report.markdown.count("Missing: it was stopped") == 2 and "| 32 | Full | 221 | 387 |" in report.markdown
    assert report.document["missing"].keys() == outcomes.keys() and report.document["tables"].keys() == {"5", "huber"}
    assert len({part.title for part in study.list_parts(())}) == len(study.list_parts(()))
