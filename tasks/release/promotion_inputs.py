"""The gate's inputs: the candidate's and the champion's confidences of the same answers, and what changed in between.

torch and ONNX Runtime are imported by the functions that score: most runs do not reach the gate.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from abstain.config.params import Params, load_params
from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.scorer_names import BASE_RATE, LENGTH_ONLY
from abstain.data.store.dataset import DataStore
from abstain.data.store.splits import holdout_digest, select_reviewed, split_by_sampling
from abstain.ingest.erasure import count_erased_answers
from abstain.learning.metrics.weighted_metrics import row_weights
from abstain.release.champion_comparison import ComparisonBudget
from abstain.release.evaluation_set import CANDIDATE, EvaluationSet
from abstain.release.holdout_guarantee import MissingGuarantee, explain_unchecked_guarantee
from abstain.release.promotion_check import CandidateMeasurements, ComparisonRule, PromotionDecision, check_candidate
from abstain.release.registry import Registry, RegistryEvent, make_version_tag
from tasks.release.bundles import fetch_bundle
from tasks.runs.shell import run
from tasks.runs.workspace import Workspace


def check_candidate_in_workspace(
    workspace: Workspace,
    registry: Registry,
    metrics: dict[str, Any],
    new_holdout: str | None,
    rule: ComparisonRule,
    looks: ComparisonBudget,
    prior_coverage_loss: float = 0.0,
    holdout_accepted: bool = False,
) -> PromotionDecision:
    """Measure the candidate in `artifacts/` beside the champion and apply the gate.

    Args:
        metrics: the candidate's `artifacts/metrics.json`.
        new_holdout: the recorded reason for another hold-out or base model; then a champion that cannot be compared is
            left out.
        rule: what the gate requires of the candidate.
        looks: the comparisons on this hold-out so far.
        lost: the share of all answers that the champion shows less than those before it.
        accepted: whether the hold-out was accepted before; other than a reason given now, it leaves no champion out.

    Raises:
        AbstainError: the champion cannot be scored, and no reason for that is given.
    """
    from abstain.learning.estimators.onnx_probe import OnnxProbe

    params = load_params(workspace.path / paths.PARAMS)
    scores = pd.read_parquet(workspace.path / paths.SCORES)
    scores[CANDIDATE] = scores["confidence"]
    names = [CANDIDATE, LENGTH_ONLY, BASE_RATE]
    # A champion without a checked guarantee is no rival: the first version with one replaces it.
    rival = registry.production if registry.guaranteed else None
    champion, champion_threshold = None, None
    if rival:
        champion = rival.version
        try:
            found = champion_scores(workspace, rival, scores["interaction_id"])
            scores[champion], scores["champion_probability"] = found.confidences, found.probabilities
            champion_threshold = found.threshold
            names.append(champion)
        except AbstainError as error:
            if new_holdout is None:
                raise AbstainError(
                    Code.NEW_HOLDOUT,
                    f"{champion} cannot be compared with: {error}; if that is expected, record why the candidate "
                    "is to be judged as a first version: abstain promote --accept-new-holdout REASON",
                ) from None
            champion = None
    candidate = OnnxProbe(workspace.path / paths.ONNX).metadata
    tuned = json.loads((workspace.path / paths.THRESHOLD).read_text())
    printed = run(["python", "-m", "abstain.serving.scorer_latency", str(paths.ONNX)], workspace.path)
    took = json.loads(printed.splitlines()[-1])  # warnings of libraries may precede it
    of_errors = params.threshold.metric == "error_rate"
    threshold = float(candidate["threshold"])
    holdout, newest = (
        _make_evaluation_set(split_by_sampling(scores[scores["split"] == split], sampled_only=tuned["drawn"])[0], names)
        for split in ("holdout", "newest")
    )
    may_lack = params.threshold.on_infeasible == "heuristic"
    unguaranteed = None
    if not tuned["guaranteed"]:
        unguaranteed = MissingGuarantee(tuned["message"], tuned["more_reviews"])
    elif may_lack and rival is None:  # beside a checked guarantee, one that cannot be checked is rejected as such
        reviews = len(select_reviewed(pd.read_parquet(workspace.path / paths.DATASET, columns=["source"])))
        frozen = params.split.holdout_frozen_at is not None
        unguaranteed = explain_unchecked_guarantee(holdout, threshold, params.gate, reviews, frozen)
    measured = CandidateMeasurements(
        threshold=threshold,
        target_precision=tuned["precision"] if of_errors else params.threshold.target,
        target_error_rate=params.threshold.target if of_errors else None,
        parity=json.loads((workspace.path / paths.PARITY).read_text())["max_abs_difference"],
        latency_p99_ms=took["p99_ms"],
        champion_threshold=champion_threshold,
        same_target=champion is None or _has_same_target(workspace, champion, params),
        missing_guarantee=unguaranteed,
        allow_missing_guarantee=may_lack and (rival is None or rule == "accepted"),
        forward_tokens=json.loads(candidate["scorer"])["forward_tokens"],
        base_model_ms=took["base_model_ms"],
    )
    erased: int | None = 0
    if rival and rival.holdout != metrics["holdout"]["digest"] and new_holdout is None and not holdout_accepted:
        erased = _erased_from_holdout(workspace, rival, scores)
    return check_candidate(
        holdout,
        newest,
        measured,
        params.gate,
        champion,
        erased is not None,
        erased or 0,
        rule,
        looks,
        prior_coverage_loss,
    )


def _has_same_target(workspace: Workspace, champion: str, params: Params) -> bool:
    """Whether the champion's threshold was tuned for what is asked for now."""
    record = json.loads((workspace.path / paths.APPROVALS / f"{champion}.json").read_text())
    before, now = record["gate"]["threshold"], params.threshold.model_dump(mode="json")
    return all(before[key] == now[key] for key in ("metric", "target", "confidence"))


def _erased_from_holdout(workspace: Workspace, event: RegistryEvent, scores: pd.DataFrame) -> int | None:
    """The number of answers of the hold-out that `event` was promoted on which are missing from that of `scores`.

    None where the hold-out differs in more than erased answers, or where its former state cannot be read.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / paths.SCORES.name
        try:
            revision = f"refs/tags/{make_version_tag(event.version)}"
            workspace.dvc("get", ".", str(paths.SCORES), "--rev", revision, "-o", str(file), "--quiet")
        except AbstainError:
            return None
        before, now = _labels(pd.read_parquet(file)), _labels(scores)
    if holdout_digest(list(before), list(before.values())) != event.holdout:
        return None
    return count_erased_answers(before, now, DataStore(workspace.path / paths.DATA).erased_users())


def _labels(scores: pd.DataFrame) -> dict[str, bool]:
    """Interaction id -> whether its answer is correct, of the hold-out."""
    holdout = scores[scores["split"] == "holdout"]
    return dict(zip(holdout["interaction_id"], holdout["correct"].astype(bool).tolist(), strict=True))


@dataclass(frozen=True)
class ChampionScores:
    """The champion's confidences and calibrated probabilities of the same answers, and its threshold."""

    confidences: list[float]
    probabilities: list[float]
    threshold: float


def champion_scores(workspace: Workspace, event: RegistryEvent, ids: Iterable[str]) -> ChampionScores:
    """The champion's scores, read through its own layer and base model."""
    from abstain.serving.predictor import Predictor

    bundle = fetch_bundle(workspace.path, event)
    predictor = Predictor.open(bundle / paths.RELEASED_ONNX.name, load_settings())
    interactions = DataStore(workspace.path / paths.DATA).interactions(ids)
    # Its layer or model may differ from the candidate's; the cache keeps what is computed for the next decision.
    predictor.compute_missing(interactions)
    # An answer that the champion cannot read is not shown.
    verdicts = list(predictor.decide_interactions(interactions))
    return ChampionScores(
        [verdict.confidence or 0.0 for verdict in verdicts],
        [verdict.probability or 0.0 for verdict in verdicts],
        predictor.threshold,
    )


def _make_evaluation_set(scores: pd.DataFrame, names: list[str]) -> EvaluationSet:
    return EvaluationSet(
        correct=scores["correct"].to_numpy(int),
        groups=scores["group"].to_numpy(),
        products=scores["product"].fillna("(none)").to_numpy(),
        confidences={name: scores[name].fillna(0.0).to_numpy(float) for name in names},
        probabilities=scores["probability"].to_numpy(float),
        champion_probability=scores["champion_probability"].to_numpy(float)
        if "champion_probability" in scores
        else None,
        weight=row_weights(scores["inclusion_probability"].to_numpy(float)),
    )
