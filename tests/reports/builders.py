"""What the stage `evaluate` leaves of made-up answers, with texts that nobody wishes for: the input of a report."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from abstain.learning.evaluation import audits, curves
from abstain.learning.evaluation.evaluation_result import EvaluationResult
from abstain.learning.evaluation.examples import select_examples
from abstain.learning.evaluation.leaderboard import build_leaderboard
from abstain.learning.evaluation.selective_prediction import build_threshold_table, evaluate_at_threshold
from abstain.learning.evaluation.slices import SliceInput, build_slice_table, make_strata
from abstain.learning.metrics.bootstrap import BootstrapConfig
from abstain.learning.metrics.weighted_metrics import brier, ece, effective_sample_size, weighted_mean
from abstain.reports.plots import plot_tables
from tests.learning.evaluation.builders import grouped

ROWS, GROUPS = 240, 40
GUARANTEED, HEURISTIC = 0.640625, 0.5
SHARPNESS = {
    "probe": 1.0,
    "fusion": 1.1,
    "lstm": 0.9,
    "lstm_no_huber": 0.85,
    "attention": 0.7,
    "pca": 0.75,
    "min_log_prob": 0.6,
    "sequence_log_prob": 0.45,
    "mean_log_prob": 0.4,
    "entropy": 0.35,
    "context_gain": -0.05,
    "yes_score": 0.3,
    "yes_score_tokens": 0.28,
    "yes_score_fused": 0.2,
    "length_only": 0.15,
}

REGRESSORS = {
    "regressors": {
        "random_forest_label": {
            "dropped": {
                "N.instruction.nll_mean": 2.9,
                "B.context.nll_mean": None,
            },
            "parity": 1e-6,
            "bytes": 35_000_000,
            "holdout": {"threshold": 0.55, "labelled": 240, "positive": 0.6}
            | {
                f"{name}{end}": 0.5 + at / 50
                for at, name in enumerate(("mse", "auroc", "accuracy", "f1"))
                for end in ("", "_low", "_high")
            },
        },
        "linear_cosine": {
            "dropped": {},
            "parity": 0.0,
            "bytes": 900,
            "holdout": None,
            "note": "no candidate for t leaves both classes",
        },
    },
    "skipped": {},
    "perturbed": {
        "rows": 800,
        "perturbation_model": "tiny<b>",
        "perturbed": {"empty": 1, "too_long": 0, "fewer": 23, "not_reproduced": 0, "other_chunks": 0},
        "forward_tokens": 600.0,
    },
}

TAG = '<img src="http://elsewhere.invalid/x.png" onerror="document.title=1"><script>document.title=2</script>'
LINK = (
    "](javascript:alert(1)) [a link](http://elsewhere.invalid) ![x](http://elsewhere.invalid/y.png) <http://a.invalid>"
)
TABLE = "a | b\n| --- | --- |\n| `c` | **d** _e_ ~~f~~ &amp; $x^2$ and $5"
CONTROL = "nul \x00, escape \x1b[31m, backwards \u202etxt.exe\u202c, noncharacter \ufffe, end"
LONG = "Donaudampfschifffahrtsgesellschaft" * 12
NASTY = (TAG, LINK, TABLE, CONTROL, LONG)
ARABIC = "هل يمكنني إلغاء البطاقة؟"


class Evaluated(NamedTuple):
    """The arguments of `render_evaluation`."""

    result: EvaluationResult
    dataset: dict[str, Any]
    tables: dict[str, pd.DataFrame]


def evaluated(
    *,
    metric: str = "precision",
    target: float = 0.8,
    guaranteed: bool = True,
    heuristic: bool = True,
    changed: Mapping[str, Any] | None = None,
) -> Evaluated:
    """A report's input. With `changed`, figures are other ones: `{"metrics.holdout.base_rate": 0.5}`."""
    served = GUARANTEED if guaranteed else HEURISTIC
    metrics, evaluation, tables = json.loads(_measured(served, GUARANTEED if guaranteed else None))
    evaluation["threshold"] = _threshold(metric, target, guaranteed, heuristic)
    if not heuristic:
        metrics["holdout"]["at_heuristic"] = None
    parts = {"metrics": metrics, "evaluation": evaluation, "dataset": dataset()}
    for path, value in (changed or {}).items():
        part: Any = parts
        *folders, last = path.split(".")
        for name in folders:
            part = part[int(name)] if isinstance(part, list) else part[name]
        part[last] = value
    curves_read = {name: pd.DataFrame(rows) for name, rows in tables.items()}
    result = EvaluationResult.from_files(metrics, evaluation)
    return Evaluated(result, parts["dataset"], plot_tables(curves_read, result))


AUROC = {"auroc": 0.7654, "auroc_low": 0.7012, "auroc_high": 0.8123}


def dataset() -> dict[str, Any]:
    return {
        "splits": [
            {"split": "train", "answers": 1234, "groups": 56, "correct": 0.6, "reviewed": 78},
            {"split": "newest", "answers": 0, "groups": 0, "correct": None, "reviewed": 0},
        ],
        "kinds": [
            {"kind": "answers", "answers": 1200, "groups": 56, "correct": 0.62, "reviewed": 70},
            {"kind": "refusals", "answers": 34, "groups": 9, "correct": 0.25, "reviewed": 8},
        ],
        "labels": {"reviewed": 9, "thumb": 8, "tied_thumbs": 0},
        "near_duplicates": {"joined_groups": 14, "left_out": 1, "holdout_in_training": 13, "validation_in_training": 9},
        "thumbs": {
            "weights": "estimated, agreement",
            "reason": "40 answers have both",
            "agreement": [
                {
                    "thumb": "up",
                    "correct": 31,
                    "incorrect": 7,
                    "reviewers_agree": {"value": 0.8154, "low": 0.7, "high": 0.9, "n_eff": 38.0},
                }
            ],
            "largest_share": {"users": 120, "limit": 0.05, "before": 0.31, "after": 0.05},
        },
        "conflicts": {
            "rule": "latest",
            "answers": [{"interaction_id": "i"}],
            "more": 2,
            "thumbs_against_reviewers": 11,
        },
        "contradicting": {"tested": 3, "named": []},
    }


def _threshold(metric: str, target: float, guaranteed: bool, heuristic: bool) -> dict[str, Any]:
    """As `decide.guarantee` and `decide.threshold` say it."""
    own = {
        "metric": metric,
        "target": target,
        "confidence": 0.9,
        "rows": 206,
        "groups": 31,
        "sampled": True,
        "void_if": ["documents_change", "model_changes", "questions_change"],
        "icc": 0.04,
        "n_eff": 90,
        "largest_reviewer": {"reviewer": "r-0123456789abcdef0123", "share": 0.34, "reviewers": 4},
        "guaranteed": guaranteed,
    }
    tuned = {
        "threshold": HEURISTIC,
        "precision": 0.8511,
        "coverage": 0.5649,
        "recall": 0.8,
        "shown": 116,
        "n_eff_shown": 104.5,
        "rows": 206,
    }
    own |= {"heuristic": tuned if heuristic else None, "self_selected": None}
    if guaranteed:
        return own | {
            "threshold": GUARANTEED,
            "precision": 0.9111,
            "coverage": 0.4321,
            "shown": 89,
            "p_value": 0.0678,
        }
    says = f"no threshold reaches precision {target:g} at confidence 0.9 with 206 reviewed answers"
    return own | {
        "threshold": HEURISTIC,
        "precision": 0.8511,
        "coverage": 0.5649,
        "message": says,
        "reviews_needed": 4812,
    }


@lru_cache(maxsize=2)
def _measured(served: float, guaranteed: float | None) -> str:
    """metrics, evaluation and the plots' tables of generated answers, as JSON."""
    correct, _, group = grouped(ROWS, GROUPS, seed=5)
    generator = np.random.default_rng(6)
    weight = np.where(generator.random(ROWS) < 0.3, 0.4, 1.0)
    noise = generator.normal(size=ROWS)
    scores = pd.DataFrame(
        {
            name: 1
            / (1 + np.exp(-0.6 * sharpness * (2 * correct - 1) - 0.5 * noise - 0.7 * generator.normal(size=ROWS)))
            for name, sharpness in SHARPNESS.items()
        }
    )
    scores.loc[3:9, "yes_score"] = np.nan
    scores["verbalised"] = np.nan
    scores["base_rate"] = 0.61
    scores[f"mine | {TAG}"] = scores["entropy"]
    calibrated = scores.clip(0.02, 0.98) ** 1.2
    own, probability = scores["probe"].to_numpy(), calibrated["probe"].to_numpy()
    rouge = np.where(generator.random(ROWS) < 0.8, np.clip(0.3 + 0.4 * correct + 0.1 * noise, 0, 1), np.nan)
    marked = {"guaranteed": guaranteed, "heuristic": HEURISTIC} if guaranteed else {"heuristic": HEURISTIC}
    board = build_leaderboard(correct, scores, calibrated, group, weight, BootstrapConfig(200, 1), champion="probe")
    at = {name: evaluate_at_threshold(correct, own, value, weight, rouge) for name, value in marked.items()}
    metrics = {
        "holdout": {
            "rows": ROWS,
            "base_rate": weighted_mean(correct, weight),
            "sampled_unevenly": int((weight < 1).sum()),
            "effective_sample_size": effective_sample_size(weight),
            "label_source": "review",
            "digest": "0" * 64,
            "scorers": {row.pop("scorer"): row for row in board.to_dict("records")},
            "at_threshold": at[next(iter(marked))] | {"shown": 96, "shown_n_eff": 90.0},
            "at_heuristic": at["heuristic"],
            "self_selected": None,
            "without_near_duplicates": {
                "rows": 228,
                "near_duplicates": 12,
                "auroc": 0.7123,
                "precision": 0.8321,
                "coverage": 0.4567,
                "error_rate": 0.0767,
            },
        },
        "newest": {"rows": 17, "sampled_unevenly": 0, "effective_sample_size": 17.0, "auroc": 0.7654},
    }
    products = np.array(["Silver | Card", "Gold Card", TAG, None], dtype=object)[generator.integers(4, size=ROWS)]
    chunks, characters = generator.integers(1, 4, size=ROWS), generator.integers(5, 90, size=ROWS)
    sliced = make_strata(products, [None] * ROWS, chunks, characters, np.zeros(ROWS, bool))
    slices = build_slice_table(
        SliceInput(correct, own, probability, own >= served, group, weight), sliced, BootstrapConfig(100, 1), 20
    )
    changed = scores * 0.7 + 0.1 * generator.random(scores.shape)
    texts = pd.DataFrame(
        {
            "interaction_id": [f"i-{number}" for number in range(ROWS)],
            "product": products,
            "question": [[ARABIC, *NASTY][number % 6] for number in range(ROWS)],
            "answer": [NASTY[number % 5] for number in range(ROWS)],
            "ideal_answer": [None if number % 2 else NASTY[number % 5] for number in range(ROWS)],
            "correct": correct,
            "confidence": own,
            "probability": probability,
        }
    )
    few = ["probe", "fusion", "min_log_prob", "length_only"]
    evaluation = {
        "served": {
            "name": "probe",
            "kind": "probe",
            "requested": "best",
            "max_forward_tokens": 1000,
            "forward_tokens": 312.4,
            "components": ["probe"],
            "candidates": [
                {"scorer": "writer", "kind": "writer", "forward_tokens": 0.0, "auroc": None}
                | dict.fromkeys(("auroc_low", "auroc_high")),
                {"scorer": "probe", "kind": "probe", "forward_tokens": 312.4, "auroc": 0.7912}
                | {"auroc_low": 0.7012, "auroc_high": 0.8765},
            ],
            "not_servable": {"yes_score": f"it reads a prompt of its own | {TAG}", "not_in_this_run": "no"},
            "layer": 16,
            "site": "residual",
            "model": "smollm2-135m-instruct@f00d",
            "layout": "rag-chatml-v1",
        },
        "probe": {
            "exported": "linear",
            "description": "logistic regression on the mean and the last state",
            "requested": "best",
            "out_of_fold": {"linear": 0.7912, "lstm": 0.7777, "pca": None},
        },
        "kinds": {name: _kind(name) for name in scores},
        "forward_tokens": {name: 0.0 if name in ("length_only", "base_rate") else 312.4 for name in scores},
        "skipped": {"entailment": "no model is set: scorers.entailment_model | is null", "extractive_qa": "no model"},
        "by_kind": [
            {"slice": "answers", "rows": 200, "n_eff": 190.0, "scorers": dict.fromkeys(scores, AUROC)},
            {"slice": "refusals", "rows": 12, "n_eff": 11.5, "scorers": {}},
        ],
        "unranked": "12 answers have no rank: version 2, answers (12)",
        "neither": {"neither": 321, "replies": 1200},
        "improbable": {"yes_score": 12, "yes_score_fused": 0},
        "min_n_eff": 20,
        "at_own_threshold": {
            "probe": {**at["heuristic"], "note": ""},
            "fusion": {**evaluate_at_threshold(correct, scores["fusion"].to_numpy(), 0.6, weight, rouge), "note": ""},
            "verbalised": {"note": "no threshold reaches precision 0.8 on 206 reviewed answers | none"},
        },
        "regressors": REGRESSORS,
        "calibration": {
            "method": "isotonic",
            "by_method": [
                {"method": method, **_calibrated(correct, values, weight)}
                for method, values in (
                    ("none", own),
                    ("isotonic", probability),
                    ("none, lstm", scores["lstm"].to_numpy()),
                )
            ],
        },
        "slices": slices.rename(columns={"stratum": "by"}).to_dict("records"),
        "audits": {
            "context_removed": audits.audit_context_removed(
                correct, scores[few], changed[few], weight, group, BootstrapConfig(200, 1)
            ),
            "answers_shuffled": audits.audit_answers_shuffled(
                correct, scores[few], changed[few], weight, {"probe": served}
            ),
            "product_left_out": [
                {
                    "product": "Gold Card",
                    "rows": 61,
                    "auroc": 0.7012,
                    "auroc_low": 0.6123,
                    "auroc_high": 0.7999,
                    "auroc_trained_on_all": 0.8123,
                    "lost": 0.1111,
                    "lost_low": 0.0222,
                    "lost_high": 0.2,
                    "note": "",
                },
                {"product": TAG, "rows": 3, "note": "fewer than 20 answers: not judged"},
            ],
        },
        "rank_correlation": {
            "names": ["yes_score", "yes_score_tokens", "yes_score_fused"],
            "matrix": [[1.0, 0.9876, 0.3456], [0.9876, 1.0, None], [0.3456, None, 1.0]],
        },
        "ablations": [
            _site(16, "residual", None, 0.79),
            _site(24, "mlp", None, 0.81),
            _site(16, "mlp", 2, None),
        ],
        "fusion": {
            "strength": 0.01,
            "coefficients": {"linear": 0.8123, "entropy": 0.0456, TAG: 0.0},
            "missing": {"linear": 0.0, "entropy": 0.0, TAG: -0.4321},
        },
        "examples": select_examples(texts, served),
    }
    reliability = [
        {
            "kind": kind,
            "confidence": low + 0.05,
            "accuracy": shift + 0.7 * low,
            "rows": 10 + round(40 * low),
            "share": (10 + round(40 * low)) / 280,
        }
        for kind, shift in (("raw", 0.2), ("calibrated", 0.05))
        for low in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    ]
    tables = {
        "threshold": build_threshold_table(correct, own, marked, weight, rouge),
        "roc": curves.make_roc_table(correct, scores[few], weight),
        "risk_coverage": curves.make_risk_coverage_table(correct, scores[few], weight),
        "reliability": pd.DataFrame(reliability),
        "reliability_by_product": curves.make_slice_reliability_table(
            pd.Series(products), correct, probability, weight, 20
        ),
        "confidence": curves.make_confidence_histogram(correct, own, weight),
    }
    rows = {name: table.to_dict("records") for name, table in tables.items()}
    return json.dumps(_null([metrics, evaluation, rows]))


def _kind(name: str) -> str:
    if name == "probe":
        return "served probe"
    if name in ("fusion", "length_only", "base_rate"):
        return "fusion" if name == "fusion" else "baseline"
    return "probe" if name in ("lstm", "lstm_no_huber", "attention", "pca") else "signal"


def _calibrated(correct: np.ndarray, values: np.ndarray, weight: np.ndarray) -> dict[str, Any]:
    figures = {"ece": ece(correct, values, weight), "brier": brier(correct, values, weight)}
    bounded = {
        f"{name}_{end}": value + by for name, value in figures.items() for end, by in (("low", -0.02), ("high", 0.03))
    }
    return figures | bounded


def _site(layer: int, site: str, chunks: int | None, out_of_fold: float | None) -> dict[str, Any]:
    row: dict[str, Any] = {"layer": layer, "site": site, "chunks": chunks, "served": (layer, site) == (16, "residual")}
    row |= {"out_of_fold": out_of_fold, "auroc": 0.8 - layer / 1000, "auroc_low": 0.71, "auroc_high": 0.86}
    if out_of_fold is None:
        return {**row, "note": "no threshold reaches precision 0.85 on 197 reviewed answers"}
    figures = {"threshold": 0.7, "precision": 0.84, "recall": 0.6, "coverage": 0.4, "abstention_rate": 0.6}
    return {**row, **figures, "rouge_shown": 0.61, "rouge_withheld": None, "note": ""}


def _null(value: Any) -> Any:
    """nan as null, which JSON has."""
    if isinstance(value, Mapping):
        return {str(key): _null(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_null(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value
