"""The figures of a window, as JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from abstain.data.validation.drift import stability_index
from abstain.learning.metrics.weighted_metrics import effective_sample_size
from abstain.monitoring.expected_precision import estimate_precision
from abstain.monitoring.window_comparison import SampledAnswers, finite_or_none

NO_PRODUCT = "none"
MIN_REVIEWED = 20
"""Reviewed answers by which an expected precision is compared with what came of it."""


def summarize_decisions(own: pd.DataFrame, before: pd.DataFrame) -> dict[str, Any]:
    """Coverage, what was unavailable, and the confidences of the decisions `own`, beside those `before`."""
    unavailable = own[own["decision"] == "unavailable"]
    products = own["product"].astype("object").fillna(NO_PRODUCT)
    return {
        "decisions": len(own),
        "shown": int(own["shown"].sum()),
        "coverage": _mean(own["shown"]),
        "products": {
            str(name): {"decisions": len(part), "coverage": float(part.mean())}
            for name, part in own["shown"].groupby(products)
        },
        "unavailable": len(unavailable) / len(own) if len(own) else None,
        "unavailable_codes": {str(code): int(n) for code, n in unavailable["code"].value_counts().items() if n},
        "confidence": _confidence(own["confidence"].dropna(), before["confidence"].dropna()),
    }


def estimate_expected_precision(window: SampledAnswers) -> dict[str, float | None] | None:
    """The expected precision of the sampled answers that were decided to be shown; None where there are none."""
    is_known = ((window.decisions["decision"] == "show") & window.decisions["probability"].notna()).to_numpy(bool)
    shown = window.filter(is_known)
    if not shown.interactions:
        return None
    found = estimate_precision(shown.decisions["probability"].to_numpy(float), shown.groups)
    return {name: finite_or_none(value) for name, value in asdict(found).items()}


def compute_reviewed_precision(rows: pd.DataFrame) -> dict[str, Any] | None:
    """The inclusion-weighted precision of reviewed shown answers; None for none."""
    if rows.empty:
        return None
    weight, correct = rows["weight"].to_numpy(float), rows["correct"].to_numpy(bool)
    return {
        "reviews": len(rows),
        "documents": int(rows["document"].nunique()),
        "n_eff": round(float(effective_sample_size(weight)), 1),
        "precision": float(np.average(correct, weights=weight)),
    }


def summarize_prediction_errors(windows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How far the expected precision of earlier windows was from what their reviews said."""
    misses = [
        abs(one["expected"]["value"] - one["came_of_it"]["precision"])
        for one in windows
        if one.get("expected") and (one.get("came_of_it") or {"reviews": 0})["reviews"] >= MIN_REVIEWED
    ]
    return {"windows": len(misses), "mean_error": float(np.mean(misses)) if misses else None}


def _confidence(own: pd.Series, before: pd.Series) -> dict[str, Any]:
    """Deciles, and the stability index over the deciles of the decisions before."""
    deciles = [round(float(value), 4) for value in own.quantile(np.arange(0.1, 1, 0.1))] if len(own) else []
    index = None
    if len(own) and len(before):
        edges = np.unique(before.quantile(np.arange(0.1, 1, 0.1)))
        sides = [
            np.bincount(np.searchsorted(edges, side, side="right"), minlength=len(edges) + 1) for side in (own, before)
        ]
        counts = [{str(at): int(n) for at, n in enumerate(side)} for side in sides]
        index = round(stability_index(counts[0], counts[1]), 4)
    return {"deciles": deciles, "stability_index": index}


def _mean(values: pd.Series) -> float | None:
    return float(values.mean()) if len(values) else None
