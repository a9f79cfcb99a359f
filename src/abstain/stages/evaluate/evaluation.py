"""From scores and labels to all that is said of a candidate: metrics, the report's content, plots. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from abstain.config.params import Params
from abstain.core.contracts import Interaction
from abstain.core.scorer_names import FUSION, LENGTH_ONLY, PROBE
from abstain.data.store.splits import holdout_digest
from abstain.learning.evaluation import audits, curves
from abstain.learning.evaluation.examples import select_examples
from abstain.learning.evaluation.leaderboard import build_leaderboard
from abstain.learning.evaluation.reviewed_split import ReviewedSplit, compare_calibrators
from abstain.learning.evaluation.score_table import ScoreTable
from abstain.learning.evaluation.selective_prediction import (
    build_threshold_table,
    evaluate_at_threshold,
    evaluate_at_tuned_threshold,
)
from abstain.learning.evaluation.slices import KIND, SliceInput, auroc_by_slice, build_slice_table, make_strata
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import RESAMPLES
from abstain.llm.engine.requests import get_chosen_layer

YES_SCORES = ("yes_score", "yes_score_tokens", "yes_score_fused")
UNCALIBRATED = ("lstm", "lstm_no_huber")
"""Shown beside the calibrators: the effect of the paper's Huber term on an otherwise uncalibrated probe."""


@dataclass(frozen=True)
class CandidateArtifacts:
    """What the stages before have left of a candidate.

    `validation`, `holdout` and `newest` are scored by all `scorers`; `volunteered` are the hold-out's answers that are
    apart from `holdout`, because their reviews chose themselves. `interactions`, `ideal_answers` (None where there is
    none) and `rouge` are of the rows of `holdout`, in this order. `changed` has, by audit, the scores of the changed
    answers: a part of these rows. `calibration` is the method that was fitted. `threshold`, `choice` of a
    probe, `served`, `ablations`, `features`, `conditions` and `regressors` are the parsed summaries of their stages.
    """

    scorers: ScoreTable
    validation: ReviewedSplit
    holdout: ReviewedSplit
    self_selected: ReviewedSplit
    newest: ReviewedSplit
    interactions: list[Interaction]
    ideal_answers: list[str | None]
    rouge: np.ndarray
    counterfactual_scores: Mapping[str, pd.DataFrame]
    base_model: str
    calibration: str
    threshold: Mapping[str, Any]
    choice: Mapping[str, Any]
    served: Mapping[str, Any]
    ablations: Mapping[str, Any]
    features: Mapping[str, Any]
    conditions: Mapping[str, Any]
    regressors: Mapping[str, Any]


@dataclass(frozen=True)
class Evaluation:
    """`metrics`, for the gate; `content`, the rest of the report; `plots`, the table behind each plot by name."""

    metrics: dict[str, Any]
    content: dict[str, Any]
    plots: dict[str, pd.DataFrame]


def evaluate(params: Params, candidate: CandidateArtifacts) -> Evaluation:
    """Measure every scorer on the frozen hold-out, and the served one on the newest window too."""
    holdout, newest, rouge = candidate.holdout, candidate.newest, candidate.rouge
    served = candidate.scorers.served
    marked, own = _select_marked_thresholds(candidate.threshold), holdout.get_raw_scores(served)
    board = build_leaderboard(
        holdout.correct,
        holdout.scores,
        holdout.calibrated,
        holdout.groups,
        holdout.weight,
        RESAMPLES,
        champion=served,
    )
    drawn = _select_plotted_scorers(board.set_index("scorer")["auroc"], candidate.scorers)
    at = {
        name: evaluate_at_threshold(holdout.correct, own, value, holdout.weight, rouge)
        for name, value in marked.items()
    }
    used = next(iter(marked))
    figures = {
        **holdout.counts,
        "base_rate": metrics.weighted_mean(holdout.correct, holdout.weight),
        "label_source": "/".join(sorted(holdout.rows["source"].unique())),
        "digest": _digest(holdout, candidate.self_selected),
        "served": {key: candidate.served[key] for key in ("name", "kind", "forward_tokens")},
        "scorers": {row.pop("scorer"): row for row in board.to_dict("records")},
        "at_threshold": {**at[used], **holdout.summarize_shown(served, marked[used], RESAMPLES)},
        "at_heuristic": at.get("heuristic"),
        "target": {
            "metric": params.threshold.metric,
            "value": params.threshold.target,
            "min_rows": params.gate.min_slice,
        },
        "without_twins": _without_twins(holdout, served, marked[used]),
        "volunteered": _evaluate_self_selected(candidate.self_selected, served, marked[used]),
    }
    auroc = metrics.auroc(newest.correct, newest.get_raw_scores(served), newest.weight)
    tables = curves.build_plot_tables(holdout, served, drawn, params.gate.min_slice)
    tables["threshold"] = build_threshold_table(holdout.correct, own, marked, holdout.weight, rouge)
    measured = {"holdout": figures, "newest": {**newest.counts, "auroc": auroc}}
    return Evaluation(measured, _content(params, candidate), tables)


def _without_twins(holdout: ReviewedSplit, served: str, threshold: float) -> dict[str, float]:
    """The served scorer on the `rows` without a near-duplicate in the training data, and the number of other ones."""
    apart = ~holdout.rows["twin_in_training"].to_numpy(bool)
    correct, confidence, weight = holdout.correct[apart], holdout.get_raw_scores(served)[apart], holdout.weight[apart]
    at = evaluate_at_threshold(correct, confidence, threshold, weight)
    figures = {
        "auroc": metrics.auroc(correct, confidence, weight),
        **{name: at[name] for name in ("precision", "coverage")},
        "error_rate": metrics.weighted_mean((confidence >= threshold) * (1 - correct), weight),
    }
    return {"rows": int(apart.sum()), "twins": int((~apart).sum()), **figures}


def _digest(*parts: ReviewedSplit) -> str:
    """The hold-out's, which the reviews that do not count are of, too."""
    rows = pd.concat([part.rows for part in parts])
    return holdout_digest(list(rows["interaction_id"]), rows["correct"].astype(bool).tolist())


def _evaluate_self_selected(apart: ReviewedSplit, served: str, threshold: float) -> dict[str, Any] | None:
    """The served scorer on the `rows` that chose themselves; None where none are apart."""
    if apart.rows.empty:
        return None
    at = evaluate_at_threshold(apart.correct, apart.get_raw_scores(served), threshold, apart.weight)
    return {"rows": len(apart.rows), **{name: at[name] for name in ("precision", "coverage")}}


def _select_marked_thresholds(threshold: Mapping[str, Any]) -> dict[str, float]:
    """The thresholds in the report, by name; the served one comes first."""
    if not threshold["guaranteed"]:
        return {"heuristic": threshold["threshold"]}
    heuristic = {"heuristic": threshold["heuristic"]["threshold"]} if threshold["heuristic"] else {}
    return {"guaranteed": threshold["threshold"], **heuristic}


def _select_plotted_scorers(auroc: pd.Series, scorers: ScoreTable) -> list[str]:
    """The scorers in the plots: the served one, the probe, the fusion, the best signal, the answer's length."""
    signals = [name for name, kind in scorers.kinds(list(map(str, auroc.index))).items() if "signal" in kind]
    best = auroc[signals].dropna().nlargest(1).index
    wanted = dict.fromkeys((scorers.served, PROBE, FUSION, *best, LENGTH_ONLY))
    return [name for name in wanted if name in auroc.index]


def _content(params: Params, candidate: CandidateArtifacts) -> dict[str, Any]:
    """The report's content beside the metrics."""
    scorers, holdout, threshold = candidate.scorers, candidate.holdout, candidate.threshold
    names = [str(name) for name in holdout.scores]
    yes_scores = [name for name in YES_SCORES if name in names]
    costs = _forward_tokens(candidate)
    calibration = compare_calibrators(
        candidate.validation,
        holdout,
        scorers.served,
        [name for name in UNCALIBRATED if name in names],
        RESAMPLES,
    )
    reads: dict[str, Any] = {"model": candidate.base_model, "layout": params.llm.layout}
    reads |= {"layer": get_chosen_layer(params.llm), "site": params.llm.site}
    fusion = scorers.fusions[scorers.served if scorers.served in scorers.fusions else FUSION]
    return {
        "served": {**candidate.served, **reads},
        "probe": candidate.choice,
        "kinds": scorers.kinds(names),
        "forward_tokens": {name: costs.get(name, 0.0) for name in names},
        "skipped": candidate.features["skipped_scorers"] | candidate.regressors["skipped"],
        "regressors": {**candidate.regressors, "perturbed": candidate.conditions},
        "neither": candidate.features["neither"],
        "unranked": candidate.features["unranked"],
        "improbable": {name: int((holdout.scores[name] == 0.5).sum()) for name in yes_scores},
        "threshold": threshold,
        "min_rows": params.gate.min_slice,
        "calibration": {"method": candidate.calibration, "by_method": calibration},
        "at_own_threshold": {
            name: evaluate_at_tuned_threshold(
                candidate.validation.get_confidences(name),
                holdout.get_confidences(name),
                params.threshold,
                candidate.rouge,
            )
            for name in names
        },
        "slices": _slices(params, candidate),
        "by_kind": _by_kind(params, candidate),
        "audits": _audits(params, candidate),
        "rank_correlation": curves.spearman(holdout.scores, yes_scores),
        "ablations": candidate.ablations["sites"],
        "fusion": {
            "strength": fusion.strength,
            "coefficients": fusion.coefficients,
            "missing": fusion.coefficients_if_missing,
        },
        "examples": _examples(candidate),
    }


def _forward_tokens(candidate: CandidateArtifacts) -> dict[str, float]:
    """What one answer costs each scorer."""
    features, conditions = candidate.features["forward_tokens"], candidate.conditions
    of_regressors = dict.fromkeys(candidate.scorers.regressors, conditions["forward_tokens"])
    fusion = features[FUSION] + (conditions["forward_tokens_of_copies"] if of_regressors else 0)
    costs: dict[str, float] = (
        dict.fromkeys(candidate.scorers.zoo, features[PROBE]) | features | of_regressors | {FUSION: fusion}
    )
    return costs


def _strata(candidate: CandidateArtifacts) -> pd.DataFrame:
    rows, interactions = candidate.holdout.rows, candidate.interactions
    return make_strata(
        rows["product"],
        rows["line_of_business"],
        np.array([len(one.contexts) for one in interactions]),
        np.array([len(one.answer) for one in interactions]),
        rows["refusal"].to_numpy(bool),
    )


def _by_kind(params: Params, candidate: CandidateArtifacts) -> list[dict[str, Any]]:
    """All scorers on answers and on refusals; empty where nothing was refused."""
    holdout, sliced = candidate.holdout, _strata(candidate)
    if KIND not in sliced:
        return []
    arguments = holdout.correct, holdout.scores, holdout.groups, holdout.weight
    return auroc_by_slice(*arguments, sliced[KIND], RESAMPLES, params.gate.min_slice)


def _slices(params: Params, candidate: CandidateArtifacts) -> list[dict[Any, Any]]:
    holdout, sliced = candidate.holdout, _strata(candidate)
    served = candidate.scorers.served
    raw, probability = holdout.get_raw_scores(served), holdout.get_probabilities(served)
    shown = raw >= candidate.threshold["threshold"]
    scored = SliceInput(holdout.correct, raw, probability, shown, holdout.groups, holdout.weight)
    table = build_slice_table(scored, sliced, RESAMPLES, params.gate.min_slice)
    return table.rename(columns={"stratum": "by"}).to_dict("records")


def _audits(params: Params, candidate: CandidateArtifacts) -> dict[str, Any]:
    """The audits of `audits.run`: all scores of changed answers against the original ones; a product left out."""
    holdout, found = candidate.holdout, {}
    for name, changed in candidate.counterfactual_scores.items():
        kept = holdout.rows.index.isin(changed.index)
        arguments = holdout.correct[kept], holdout.scores[kept], changed, holdout.weight[kept]
        if name == "context_removed":
            found[name] = audits.context_removed(*arguments, holdout.groups[kept], RESAMPLES)
        else:
            thresholds = {candidate.scorers.served: float(candidate.threshold["threshold"])}
            found[name] = audits.answers_shuffled(*arguments, thresholds)
    if "product_left_out" in params.audits.run:
        found["product_left_out"] = candidate.ablations["left_out"]
    return found


def _examples(candidate: CandidateArtifacts) -> Any:
    holdout, interactions = candidate.holdout, candidate.interactions
    rows = holdout.rows.assign(
        question=[one.question for one in interactions],
        answer=[one.answer for one in interactions],
        ideal_answer=pd.Series(candidate.ideal_answers, holdout.rows.index, object),
        confidence=holdout.get_raw_scores(candidate.scorers.served),
        probability=holdout.get_probabilities(candidate.scorers.served),
    )
    return select_examples(rows, candidate.threshold["threshold"])
