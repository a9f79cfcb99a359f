"""The evaluation of a candidate from scores and labels: metrics, the content of the report, plots. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from abstain.config.params import Params
from abstain.core.contracts import Interaction
from abstain.core.scorer_names import FUSIONS, LENGTH_ONLY, PROBE, YES_SCORES
from abstain.data.store.splits import compute_holdout_digest
from abstain.learning.estimators.regressors.summary import RegressorSummary
from abstain.learning.estimators.summaries import ProbeChoice, ScorerChoice
from abstain.learning.evaluation import audits, curves
from abstain.learning.evaluation.evaluation_result import (
    Audits,
    Calibration,
    DistinctRates,
    EvaluationContent,
    EvaluationMetrics,
    EvaluationResult,
    FeatureSummary,
    FusionWeights,
    HoldoutMetrics,
    NewestMetrics,
    Perturbation,
    Regressors,
    ServedScorer,
    ServedSummary,
    Target,
)
from abstain.learning.evaluation.examples import select_examples
from abstain.learning.evaluation.leaderboard import build_leaderboard
from abstain.learning.evaluation.records import (
    Ablations,
    AnswersShuffled,
    ContextRemoved,
    Examples,
    ProductLeftOut,
    ScorerMetrics,
)
from abstain.learning.evaluation.reviewed_split import ReviewedSplit, compare_calibrators
from abstain.learning.evaluation.score_table import ScoreTable
from abstain.learning.evaluation.selective_prediction import (
    build_threshold_table,
    evaluate_at_threshold,
    evaluate_at_tuned_threshold,
)
from abstain.learning.evaluation.slices import KIND, compute_auroc_by_slice, evaluate_slices, make_strata
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import RESAMPLING
from abstain.learning.thresholds.threshold_result import CountedRates, ThresholdResult
from abstain.llm.engine.requests import get_chosen_layer

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
        threshold: The served threshold.
        choice: The exported probe.
        served: The served scorer.
        ablations: What the stage `ablate` found.
        features: Summary of the stage `features`.
        perturbation: Summary of the stage `nll_features`.
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
    threshold: ThresholdResult
    choice: ProbeChoice
    served: ScorerChoice
    ablations: Ablations
    features: FeatureSummary
    perturbation: Perturbation
    regressors: RegressorSummary


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
    answers, thresholds = holdout.get_scored_answers(served), _select_marked_thresholds(candidate.threshold)
    applied, heuristic = next(iter(thresholds.values())), thresholds.get("heuristic")
    board = build_leaderboard(holdout, RESAMPLING, champion=served)
    holdout_metrics = HoldoutMetrics(
        **holdout.counts.to_dict(),
        base_rate=metrics.weighted_mean(holdout.correct, holdout.weight),
        label_source="/".join(sorted(holdout.rows["source"].unique())),
        digest=_compute_digest(holdout, candidate.self_selected),
        served=ServedSummary(name=candidate.served.name, forward_tokens=candidate.served.forward_tokens),
        scorers=board,
        at_threshold=holdout.evaluate_served(served, applied, RESAMPLING, rouge),
        at_heuristic=None if heuristic is None else evaluate_at_threshold(answers, heuristic, rouge),
        target=Target(
            metric=params.threshold.metric, value=params.threshold.target, min_n_eff=params.evaluation.min_n_eff
        ),
        without_near_duplicates=_evaluate_without_near_duplicates(holdout, served, applied),
        self_selected=_evaluate_self_selected(candidate.self_selected, served, applied),
    )
    auroc = metrics.auroc(newest.correct, newest.get_raw_scores(served), newest.weight)
    plotted = _select_plotted_scorers(board, candidate.scorers)
    tables = curves.build_plot_tables(holdout, served, plotted, params.evaluation.min_n_eff)
    tables["threshold"] = build_threshold_table(answers, holdout.groups, thresholds, RESAMPLING, rouge)
    measured = EvaluationMetrics(holdout=holdout_metrics, newest=NewestMetrics(**newest.counts.to_dict(), auroc=auroc))
    return Evaluation(EvaluationResult(metrics=measured, evaluation=_build_content(params, candidate)), tables)


def _evaluate_without_near_duplicates(holdout: ReviewedSplit, served: str, threshold: float) -> DistinctRates:
    """Evaluate the served scorer on the rows without a near-duplicate in the training data, and count the others."""
    is_duplicate = holdout.rows["duplicate_in_training"].to_numpy(bool)
    distinct = holdout.subset(~is_duplicate).get_scored_answers(served)
    rates, shown = evaluate_at_threshold(distinct, threshold), distinct.confidence >= threshold
    return DistinctRates(
        rows=len(distinct.correct),
        near_duplicates=int(is_duplicate.sum()),
        auroc=metrics.auroc(distinct.correct, distinct.confidence, distinct.weight),
        precision=rates.precision,
        coverage=rates.coverage,
        error_rate=metrics.weighted_mean(shown * (1 - distinct.correct), distinct.weight),
    )


def _compute_digest(*parts: ReviewedSplit) -> str:
    """Compute the digest of the hold-out, including the reviews that are not evaluated."""
    rows = pd.concat([part.rows for part in parts])
    return compute_holdout_digest(list(rows["interaction_id"]), rows["correct"].astype(bool).tolist())


def _evaluate_self_selected(self_selected: ReviewedSplit, served: str, threshold: float) -> CountedRates | None:
    """Evaluate the served scorer on the self-selected reviews; None if there are none."""
    if self_selected.rows.empty:
        return None
    rates = evaluate_at_threshold(self_selected.get_scored_answers(served), threshold)
    return CountedRates(rows=len(self_selected.rows), precision=rates.precision, coverage=rates.coverage)


def _select_marked_thresholds(threshold: ThresholdResult) -> dict[str, float]:
    """Return the thresholds in the report by name; the served one comes first."""
    if threshold.guarantee.status == "none":
        return {"heuristic": threshold.threshold}
    heuristic = {"heuristic": threshold.heuristic.threshold} if threshold.heuristic else {}
    return {"guaranteed": threshold.threshold, **heuristic}


def _select_plotted_scorers(board: Mapping[str, ScorerMetrics], scorers: ScoreTable) -> list[str]:
    """Select the scorers in the plots: the served one, the probe, the widest fusion, the best signal, the length."""
    aurocs = {
        name: auroc
        for name, kind in scorers.describe_kinds(list(board)).items()
        if "signal" in kind and (auroc := board[name].auroc) is not None
    }
    best = [max(aurocs, key=lambda name: aurocs[name])] if aurocs else []
    selected = (scorers.served, PROBE, *_list_fusions(scorers)[:1], *best, LENGTH_ONLY)
    return [name for name in dict.fromkeys(selected) if name in board]


def _list_fusions(scorers: ScoreTable) -> list[str]:
    """Return the names of the fusions, that of the most scorers first."""
    return [name for name in reversed(FUSIONS) if name in scorers.fusions]


def _build_content(params: Params, candidate: CandidateArtifacts) -> EvaluationContent:
    """Build the report's content besides the metrics."""
    scorers, holdout, validation = candidate.scorers, candidate.holdout, candidate.validation
    names = [str(name) for name in holdout.scores]
    yes_scores = [name for name in YES_SCORES if name in names]
    costs = _compute_forward_tokens(candidate)
    uncalibrated = [name for name in UNCALIBRATED if name in names]
    by_method = compare_calibrators(validation, holdout, scorers.served, uncalibrated, RESAMPLING)
    fusions = [scorers.fusions[name] for name in (scorers.served, *_list_fusions(scorers)) if name in scorers.fusions]
    fusion = fusions[0] if fusions else None
    strata, min_n_eff = _make_strata(candidate), params.evaluation.min_n_eff
    threshold = candidate.threshold.threshold
    return EvaluationContent(
        served=ServedScorer(
            **candidate.served.to_dict(),
            model=candidate.base_model,
            layout=params.llm.layout,
            layer=get_chosen_layer(params.llm),
            site=params.llm.site,
        ),
        probe=candidate.choice,
        kinds=scorers.describe_kinds(names),
        forward_tokens={name: costs.get(name, 0.0) for name in names},
        skipped=candidate.features.skipped_scorers | candidate.regressors.skipped,
        regressors=Regressors(**candidate.regressors.to_dict(), perturbed=candidate.perturbation),
        neither=candidate.features.neither,
        ranked_apart=candidate.features.ranked_apart,
        improbable={name: int((holdout.scores[name] == 0.5).sum()) for name in yes_scores},
        threshold=candidate.threshold,
        min_n_eff=min_n_eff,
        calibration=Calibration(method=candidate.calibration, by_method=by_method),
        at_own_threshold={
            name: evaluate_at_tuned_threshold(
                validation.get_scored_answers(name), holdout.get_scored_answers(name), params.threshold, candidate.rouge
            )
            for name in names
        },
        slices=evaluate_slices(holdout, scorers.served, threshold, strata, RESAMPLING, min_n_eff),
        by_kind=compute_auroc_by_slice(holdout, strata[KIND], RESAMPLING, min_n_eff) if KIND in strata else [],
        audits=_run_audits(params, candidate),
        rank_correlation=curves.compute_rank_correlations(holdout.scores, yes_scores),
        ablations=candidate.ablations.sites,
        fusion=fusion
        and FusionWeights(
            strength=fusion.strength, coefficients=fusion.coefficients, missing=fusion.coefficients_if_missing
        ),
        examples=_select_examples(candidate),
    )


def _compute_forward_tokens(candidate: CandidateArtifacts) -> dict[str, float]:
    """Return the forward tokens per answer of each scorer."""
    tokens = {row.scorer: row.forward_tokens for row in candidate.served.candidates}
    return dict.fromkeys(candidate.scorers.probes, tokens[PROBE]) | tokens


def _make_strata(candidate: CandidateArtifacts) -> pd.DataFrame:
    rows, interactions = candidate.holdout.rows, candidate.interactions
    return make_strata(
        rows["product"],
        rows["line_of_business"],
        np.array([len(interaction.contexts) for interaction in interactions]),
        np.array([len(interaction.answer) for interaction in interactions]),
        rows["refusal"].to_numpy(bool),
    )


def _run_audits(params: Params, candidate: CandidateArtifacts) -> Audits:
    """Run the enabled audits: scores of changed answers against the original ones, and left-out products."""
    results: dict[str, list[ContextRemoved] | list[AnswersShuffled] | list[ProductLeftOut]] = {}
    for name, changed in candidate.counterfactual_scores.items():
        audited = candidate.holdout.subset(candidate.holdout.rows.index.isin(changed.index))
        if name == "context_removed":
            results[name] = audits.audit_context_removed(audited, changed, RESAMPLING)
        else:
            thresholds = {candidate.scorers.served: candidate.threshold.threshold}
            results[name] = audits.audit_answers_shuffled(audited, changed, thresholds)
    if "product_left_out" in params.audits.enabled:
        results["product_left_out"] = candidate.ablations.left_out
    return Audits.model_validate(results)


def _select_examples(candidate: CandidateArtifacts) -> Examples:
    holdout, interactions = candidate.holdout, candidate.interactions
    rows = holdout.rows.assign(
        question=[interaction.question for interaction in interactions],
        answer=[interaction.answer for interaction in interactions],
        ideal_answer=pd.Series(candidate.ideal_answers, holdout.rows.index, object),
        confidence=holdout.get_raw_scores(candidate.scorers.served),
        probability=holdout.get_probabilities(candidate.scorers.served),
    )
    return select_examples(rows, candidate.threshold.threshold)
