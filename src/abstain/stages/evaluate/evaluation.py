"""The evaluation of a candidate from scores and labels: metrics, the content of the report, plots. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from abstain.config.params import Params
from abstain.core.contracts import Interaction
from abstain.core.scorer_names import FUSION, LENGTH_ONLY, PROBE
from abstain.data.store.splits import compute_holdout_digest
from abstain.learning.evaluation import audits, curves
from abstain.learning.evaluation.evaluation_result import EvaluationResult
from abstain.learning.evaluation.examples import select_examples
from abstain.learning.evaluation.leaderboard import build_leaderboard
from abstain.learning.evaluation.reviewed_split import ReviewedSplit, compare_calibrators
from abstain.learning.evaluation.score_table import ScoreTable
from abstain.learning.evaluation.selective_prediction import (
    build_threshold_table,
    evaluate_at_threshold,
    evaluate_at_tuned_threshold,
)
from abstain.learning.evaluation.slices import KIND, SliceInput, build_slice_table, compute_auroc_by_slice, make_strata
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import RESAMPLING
from abstain.llm.engine.requests import get_chosen_layer

YES_SCORES = ("yes_score", "yes_score_tokens", "yes_score_fused")
UNCALIBRATED = ("lstm", "lstm_no_huber")
"""Listed with the calibrators: the effect of Huang et al.'s Huber term on an otherwise uncalibrated probe."""


@dataclass(frozen=True)
class CandidateArtifacts:
    """The results of the earlier stages for a candidate.

    Attributes:
        scorers: All scorers.
        validation: The validation split, scored by all scorers.
        holdout: The hold-out, scored by all scorers.
        self_selected: The reviews of the hold-out that reviewers selected themselves, and that are not in `holdout`.
        newest: The newest split, scored by all scorers.
        interactions: The interactions of `holdout`, in its order.
        ideal_answers: Their ideal answers; None without one.
        rouge: (hold-out rows,) ROUGE-L against the ideal answer; nan without one.
        counterfactual_scores: Audit -> scores of the changed answers, a part of the rows of `holdout`.
        base_model: `name@revision` of the base model.
        calibration: The fitted calibration method.
        threshold: Content of threshold.json.
        choice: Summary of the chosen probe.
        served: Summary of the served scorer.
        ablations: Summary of the stage `ablate`.
        features: Summary of the stage `features`.
        conditions: Summary of the stage `nll_features`.
        regressors: Summary of the stage `train_regressors`.
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
    """The evaluation of a candidate.

    Attributes:
        result: Metrics for the promotion checks, and the rest of the report.
        plots: Plot name -> table.
    """

    result: EvaluationResult
    plots: dict[str, pd.DataFrame]


def evaluate(params: Params, candidate: CandidateArtifacts) -> Evaluation:
    """Evaluate every scorer on the frozen hold-out, and the served one on the newest split as well.

    Args:
        params: All parameters.
        candidate: The results of the earlier stages.

    Returns:
        The evaluation.
    """
    holdout, newest, rouge = candidate.holdout, candidate.newest, candidate.rouge
    served = candidate.scorers.served
    thresholds, confidence = _select_marked_thresholds(candidate.threshold), holdout.get_raw_scores(served)
    board = build_leaderboard(
        holdout.correct,
        holdout.scores,
        holdout.calibrated,
        holdout.groups,
        holdout.weight,
        RESAMPLING,
        champion=served,
    )
    plotted = _select_plotted_scorers(board.set_index("scorer")["auroc"], candidate.scorers)
    by_threshold = {
        name: evaluate_at_threshold(holdout.correct, confidence, value, holdout.weight, rouge)
        for name, value in thresholds.items()
    }
    applied = next(iter(thresholds))
    holdout_metrics = {
        **holdout.counts,
        "base_rate": metrics.weighted_mean(holdout.correct, holdout.weight),
        "label_source": "/".join(sorted(holdout.rows["source"].unique())),
        "digest": _compute_digest(holdout, candidate.self_selected),
        "served": {key: candidate.served[key] for key in ("name", "kind", "forward_tokens")},
        "scorers": {row.pop("scorer"): row for row in board.to_dict("records")},
        "at_threshold": {**by_threshold[applied], **holdout.summarize_shown(served, thresholds[applied], RESAMPLING)},
        "at_heuristic": by_threshold.get("heuristic"),
        "target": {
            "metric": params.threshold.metric,
            "value": params.threshold.target,
            "min_n_eff": params.evaluation.min_n_eff,
        },
        "without_near_duplicates": _evaluate_without_near_duplicates(holdout, served, thresholds[applied]),
        "self_selected": _evaluate_self_selected(candidate.self_selected, served, thresholds[applied]),
    }
    auroc = metrics.auroc(newest.correct, newest.get_raw_scores(served), newest.weight)
    tables = curves.build_plot_tables(holdout, served, plotted, params.evaluation.min_n_eff)
    tables["threshold"] = build_threshold_table(holdout.correct, confidence, thresholds, holdout.weight, rouge)
    measured = {"holdout": holdout_metrics, "newest": {**newest.counts, "auroc": auroc}}
    return Evaluation(EvaluationResult.from_files(measured, _build_content(params, candidate)), tables)


def _evaluate_without_near_duplicates(holdout: ReviewedSplit, served: str, threshold: float) -> dict[str, float]:
    """Evaluate the served scorer on the rows without a near-duplicate in the training data, and count the others."""
    is_distinct = ~holdout.rows["duplicate_in_training"].to_numpy(bool)
    correct, confidence, weight = (
        holdout.correct[is_distinct],
        holdout.get_raw_scores(served)[is_distinct],
        holdout.weight[is_distinct],
    )
    result = evaluate_at_threshold(correct, confidence, threshold, weight)
    values = {
        "auroc": metrics.auroc(correct, confidence, weight),
        **{name: result[name] for name in ("precision", "coverage")},
        "error_rate": metrics.weighted_mean((confidence >= threshold) * (1 - correct), weight),
    }
    return {"rows": int(is_distinct.sum()), "near_duplicates": int((~is_distinct).sum()), **values}


def _compute_digest(*parts: ReviewedSplit) -> str:
    """Compute the digest of the hold-out, including the reviews that are not evaluated."""
    rows = pd.concat([part.rows for part in parts])
    return compute_holdout_digest(list(rows["interaction_id"]), rows["correct"].astype(bool).tolist())


def _evaluate_self_selected(self_selected: ReviewedSplit, served: str, threshold: float) -> dict[str, Any] | None:
    """Evaluate the served scorer on the self-selected reviews; None if there are none."""
    if self_selected.rows.empty:
        return None
    result = evaluate_at_threshold(
        self_selected.correct, self_selected.get_raw_scores(served), threshold, self_selected.weight
    )
    return {"rows": len(self_selected.rows), **{name: result[name] for name in ("precision", "coverage")}}


def _select_marked_thresholds(threshold: Mapping[str, Any]) -> dict[str, float]:
    """Return the thresholds in the report by name; the served one comes first."""
    if threshold["guarantee"]["status"] == "none":
        return {"heuristic": threshold["threshold"]}
    heuristic = {"heuristic": threshold["heuristic"]["threshold"]} if threshold["heuristic"] else {}
    return {"guaranteed": threshold["threshold"], **heuristic}


def _select_plotted_scorers(auroc: pd.Series, scorers: ScoreTable) -> list[str]:
    """Select the scorers in the plots: the served one, the probe, the fusion, the best signal, the answer's length."""
    signals = [name for name, kind in scorers.describe_kinds(list(map(str, auroc.index))).items() if "signal" in kind]
    best = auroc[signals].dropna().nlargest(1).index
    names = dict.fromkeys((scorers.served, PROBE, FUSION, *best, LENGTH_ONLY))
    return [name for name in names if name in auroc.index]


def _build_content(params: Params, candidate: CandidateArtifacts) -> dict[str, Any]:
    """Build the report's content besides the metrics."""
    scorers, holdout, threshold = candidate.scorers, candidate.holdout, candidate.threshold
    names = [str(name) for name in holdout.scores]
    yes_scores = [name for name in YES_SCORES if name in names]
    costs = _compute_forward_tokens(candidate)
    calibration = compare_calibrators(
        candidate.validation,
        holdout,
        scorers.served,
        [name for name in UNCALIBRATED if name in names],
        RESAMPLING,
    )
    inputs: dict[str, Any] = {"model": candidate.base_model, "layout": params.llm.layout}
    inputs |= {"layer": get_chosen_layer(params.llm), "site": params.llm.site}
    fusion = scorers.fusions[scorers.served if scorers.served in scorers.fusions else FUSION]
    return {
        "served": {**candidate.served, **inputs},
        "probe": candidate.choice,
        "kinds": scorers.describe_kinds(names),
        "forward_tokens": {name: costs.get(name, 0.0) for name in names},
        "skipped": candidate.features["skipped_scorers"] | candidate.regressors["skipped"],
        "regressors": {**candidate.regressors, "perturbed": candidate.conditions},
        "neither": candidate.features["neither"],
        "unranked": candidate.features["unranked"],
        "improbable": {name: int((holdout.scores[name] == 0.5).sum()) for name in yes_scores},
        "threshold": threshold,
        "min_n_eff": params.evaluation.min_n_eff,
        "calibration": {"method": candidate.calibration, "by_method": calibration},
        "at_own_threshold": {
            name: evaluate_at_tuned_threshold(
                candidate.validation.get_scored_answers(name),
                holdout.get_scored_answers(name),
                params.threshold,
                candidate.rouge,
            )
            for name in names
        },
        "slices": _evaluate_slices(params, candidate),
        "by_kind": _evaluate_by_kind(params, candidate),
        "audits": _run_audits(params, candidate),
        "rank_correlation": curves.compute_rank_correlations(holdout.scores, yes_scores),
        "ablations": candidate.ablations["sites"],
        "fusion": {
            "strength": fusion.strength,
            "coefficients": fusion.coefficients,
            "missing": fusion.coefficients_if_missing,
        },
        "examples": _select_examples(candidate),
    }


def _compute_forward_tokens(candidate: CandidateArtifacts) -> dict[str, float]:
    """Return the forward tokens per answer of each scorer."""
    features, conditions = candidate.features["forward_tokens"], candidate.conditions
    regressor_tokens = dict.fromkeys(candidate.scorers.regressors, conditions["forward_tokens"])
    fusion = features[FUSION] + (conditions["forward_tokens_of_copies"] if regressor_tokens else 0)
    costs: dict[str, float] = (
        dict.fromkeys(candidate.scorers.probes, features[PROBE]) | features | regressor_tokens | {FUSION: fusion}
    )
    return costs


def _make_strata(candidate: CandidateArtifacts) -> pd.DataFrame:
    rows, interactions = candidate.holdout.rows, candidate.interactions
    return make_strata(
        rows["product"],
        rows["line_of_business"],
        np.array([len(interaction.contexts) for interaction in interactions]),
        np.array([len(interaction.answer) for interaction in interactions]),
        rows["refusal"].to_numpy(bool),
    )


def _evaluate_by_kind(params: Params, candidate: CandidateArtifacts) -> list[dict[str, Any]]:
    """Evaluate all scorers on answers and on refusals; empty without refusals."""
    holdout, strata = candidate.holdout, _make_strata(candidate)
    if KIND not in strata:
        return []
    arguments = holdout.correct, holdout.scores, holdout.groups, holdout.weight
    return compute_auroc_by_slice(*arguments, strata[KIND], RESAMPLING, params.evaluation.min_n_eff)


def _evaluate_slices(params: Params, candidate: CandidateArtifacts) -> list[dict[Any, Any]]:
    holdout, strata = candidate.holdout, _make_strata(candidate)
    served = candidate.scorers.served
    raw, probability = holdout.get_raw_scores(served), holdout.get_probabilities(served)
    shown = raw >= candidate.threshold["threshold"]
    scored = SliceInput(holdout.correct, raw, probability, shown, holdout.groups, holdout.weight)
    table = build_slice_table(scored, strata, RESAMPLING, params.evaluation.min_n_eff)
    return table.rename(columns={"stratum": "by"}).to_dict("records")


def _run_audits(params: Params, candidate: CandidateArtifacts) -> dict[str, Any]:
    """Run the enabled audits: scores of changed answers against the original ones, and left-out products."""
    holdout, results = candidate.holdout, {}
    for name, changed in candidate.counterfactual_scores.items():
        is_audited = holdout.rows.index.isin(changed.index)
        arguments = holdout.correct[is_audited], holdout.scores[is_audited], changed, holdout.weight[is_audited]
        if name == "context_removed":
            results[name] = audits.audit_context_removed(*arguments, holdout.groups[is_audited], RESAMPLING)
        else:
            thresholds = {candidate.scorers.served: float(candidate.threshold["threshold"])}
            results[name] = audits.audit_answers_shuffled(*arguments, thresholds)
    if "product_left_out" in params.audits.enabled:
        results["product_left_out"] = candidate.ablations["left_out"]
    return results


def _select_examples(candidate: CandidateArtifacts) -> Any:
    holdout, interactions = candidate.holdout, candidate.interactions
    rows = holdout.rows.assign(
        question=[interaction.question for interaction in interactions],
        answer=[interaction.answer for interaction in interactions],
        ideal_answer=pd.Series(candidate.ideal_answers, holdout.rows.index, object),
        confidence=holdout.get_raw_scores(candidate.scorers.served),
        probability=holdout.get_probabilities(candidate.scorers.served),
    )
    return select_examples(rows, candidate.threshold["threshold"])
