"""Inputs of the promotion checks: confidences of candidate and champion for the same answers, and what changed since.

torch and ONNX Runtime are imported by the functions that score, because most runs do not reach the promotion checks.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from abstain.config.params import Params, load_params
from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.scorer_names import BASE_RATE, LENGTH_ONLY
from abstain.data.store.dataset import DataStore
from abstain.data.store.splits import compute_holdout_digest, select_reviewed, split_by_sampling
from abstain.ingest.erasure import HoldoutChanges, count_changed_answers
from abstain.learning.metrics.weighted_metrics import row_weights
from abstain.learning.thresholds.guarantee import Guarantee
from abstain.learning.thresholds.threshold_result import ThresholdResult
from abstain.release.champion_comparison import ComparisonBudget
from abstain.release.evaluation_set import CANDIDATE, EvaluationSet
from abstain.release.holdout_guarantee import MissingGuarantee, explain_unchecked_guarantee
from abstain.release.promotion_check import CandidateMeasurements, ComparisonRule, PromotionDecision, check_candidate
from abstain.release.registry import Registry, RegistryEvent, make_version_tag
from abstain_tasks.release.bundles import fetch_bundle
from abstain_tasks.runs.shell import run
from abstain_tasks.runs.workspace import Workspace


def read_guarantee(workspace: Workspace) -> Guarantee:
    """Read the candidate's guarantee by the validation split from `artifacts/threshold.json`."""
    return ThresholdResult.model_validate_json((workspace.path / paths.THRESHOLD).read_bytes()).guarantee


def check_candidate_in_workspace(
    workspace: Workspace,
    registry: Registry,
    holdout_sha256: str,
    new_holdout: str | None,
    rule: ComparisonRule,
    budget: ComparisonBudget,
    prior_coverage_loss: float = 0.0,
    holdout_accepted: bool = False,
) -> PromotionDecision:
    """Score the candidate and the champion on the same answers and run the promotion checks.

    Args:
        workspace: Workspace with the candidate's artifacts.
        registry: Current registry.
        holdout_sha256: Digest of the hold-out in the candidate's metrics.json.
        new_holdout: Recorded reason for another hold-out or base model. A champion that cannot be scored is then
            ignored.
        rule: Required result of the comparison.
        budget: Comparisons already made on this hold-out.
        prior_coverage_loss: Coverage that the champion lost against its predecessors, as a share of all answers.
        holdout_accepted: Whether this hold-out was accepted earlier. Unlike a reason given now, this ignores no
            champion.

    Returns:
        The promotion decision.

    Raises:
        AbstainError: The champion cannot be scored and no reason was given.
    """
    from abstain.learning.estimators.onnx_probe import OnnxProbe

    params = load_params(workspace.path / paths.PARAMS)
    scores = pd.read_parquet(workspace.path / paths.SCORES)
    scores[CANDIDATE] = scores["confidence"]
    names = [CANDIDATE, LENGTH_ONLY, BASE_RATE]
    # A champion without a checked guarantee is not compared with: the first version with one replaces it.
    champion_event = registry.production if registry.has_guarantee else None
    champion, champion_threshold = _add_champion(workspace, champion_event, scores, new_holdout)
    if champion:
        names.append(champion)
    candidate = OnnxProbe(workspace.path / paths.ONNX).metadata
    guarantee = read_guarantee(workspace)
    precision = math.nan if guarantee.estimates.precision is None else guarantee.estimates.precision
    printed = run(["python", "-m", "abstain.serving.scorer_latency", str(paths.ONNX)], workspace.path)
    latency = json.loads(printed.splitlines()[-1])  # warnings of libraries may precede it
    is_error_rate = params.threshold.metric == "error_rate"
    threshold = float(candidate["threshold"])
    holdout, newest = (
        _make_evaluation_set(split_by_sampling(scores[scores["split"] == split], guarantee.evidence.sampled)[0], names)
        for split in ("holdout", "newest")
    )
    allow_missing = params.threshold.on_infeasible == "heuristic"
    missing_guarantee = _find_missing_guarantee(
        workspace, params, guarantee, holdout, threshold, champion_event is not None
    )
    measurements = CandidateMeasurements(
        threshold=threshold,
        target_precision=precision if is_error_rate else params.threshold.target,
        target_error_rate=params.threshold.target if is_error_rate else None,
        parity=json.loads((workspace.path / paths.PARITY).read_text())["max_abs_difference"],
        latency_p99_ms=latency["p99_ms"],
        champion_threshold=champion_threshold,
        same_target=champion_event is None or _has_same_target(champion_event, params),
        missing_guarantee=missing_guarantee,
        allow_missing_guarantee=allow_missing and (champion_event is None or rule == "accepted"),
        forward_tokens=json.loads(candidate["scorer"])["forward_tokens"],
        decision_ms=latency["decision_ms"],
    )
    changes: HoldoutChanges | None = HoldoutChanges()
    if (
        champion_event
        and champion_event.holdout_sha256 != holdout_sha256
        and new_holdout is None
        and not holdout_accepted
    ):
        changes = _count_changes_of_holdout(workspace, champion_event, scores)
    return check_candidate(
        holdout,
        newest,
        measurements,
        params.promotion,
        params.evaluation.min_n_eff,
        champion,
        changes is not None,
        changes.erased if changes else 0,
        rule,
        budget,
        prior_coverage_loss,
        changes.corrected if changes else 0,
    )


def _add_champion(
    workspace: Workspace, event: RegistryEvent | None, scores: pd.DataFrame, new_holdout: str | None
) -> tuple[str | None, float | None]:
    """Add the champion's confidences and probabilities to `scores`.

    Returns:
        Its version and threshold; None for both if there is none, or if it cannot be scored and `new_holdout` says why.

    Raises:
        AbstainError: The champion cannot be scored and no reason was given.
    """
    if event is None:
        return None, None
    try:
        champion_scores = score_champion(workspace, event, scores["interaction_id"])
    except AbstainError as error:
        if new_holdout is None:
            raise AbstainError(
                Code.NEW_HOLDOUT,
                f"{event.version} cannot be compared with: {error}; if that is expected, record why the candidate "
                "is to be judged as a first version: abstain promote --accept-new-holdout REASON",
            ) from None
        return None, None
    scores[event.version], scores["champion_probability"] = champion_scores.confidences, champion_scores.probabilities
    return event.version, champion_scores.threshold


def _find_missing_guarantee(
    workspace: Workspace,
    params: Params,
    guarantee: Guarantee,
    holdout: EvaluationSet,
    threshold: float,
    has_champion: bool,
) -> MissingGuarantee | None:
    """Say why nothing is guaranteed, or why the guarantee cannot be checked; None if it can be."""
    if guarantee.status == "none":
        return MissingGuarantee(guarantee.message, guarantee.additional_reviews)
    if params.threshold.on_infeasible == "heuristic" and not has_champion:
        # With a champion, whose guarantee was checked, a guarantee that cannot be checked is rejected.
        reviews = len(select_reviewed(pd.read_parquet(workspace.path / paths.DATASET, columns=["source"])))
        frozen = params.split.holdout_frozen_at is not None
        return explain_unchecked_guarantee(holdout, threshold, params.evaluation.min_n_eff, reviews, frozen)
    return None


def _has_same_target(champion: RegistryEvent, params: Params) -> bool:
    """Check whether the champion's threshold was tuned for the current target."""
    return all(
        getattr(champion.guarantee, key) == getattr(params.threshold, key) for key in ("metric", "target", "confidence")
    )


def _count_changes_of_holdout(
    workspace: Workspace, event: RegistryEvent, scores: pd.DataFrame
) -> HoldoutChanges | None:
    """Count the erased and the corrected answers by which the hold-out of `scores` differs from that of `event`.

    The result is None if the hold-outs differ in anything else, or if the former one cannot be read.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / paths.SCORES.name
        try:
            revision = f"refs/tags/{make_version_tag(event.version)}"
            workspace.dvc("get", ".", str(paths.SCORES), "--rev", revision, "-o", str(file), "--quiet")
        except AbstainError:
            return None
        promoted, current = _read_labels(pd.read_parquet(file)), _read_labels(scores)
    if compute_holdout_digest(list(promoted), list(promoted.values())) != event.holdout_sha256:
        return None
    store = DataStore(workspace.path / paths.DATA)
    corrected = {identity for batch in store.read_batches() for identity in batch.replaced}
    return count_changed_answers(promoted, current, store.read_erased_users(), corrected)


def _read_labels(scores: pd.DataFrame) -> dict[str, bool]:
    """Return interaction id -> whether the answer is correct, for the hold-out."""
    holdout = scores[scores["split"] == "holdout"]
    return dict(zip(holdout["interaction_id"], holdout["correct"].astype(bool).tolist(), strict=True))


@dataclass(frozen=True)
class ChampionScores:
    """The champion's scores of the same answers.

    Attributes:
        confidences: Its confidences; 0 for answers that it cannot read.
        probabilities: Its calibrated probabilities.
        threshold: Its threshold.
    """

    confidences: list[float]
    probabilities: list[float]
    threshold: float


def score_champion(workspace: Workspace, event: RegistryEvent, ids: Iterable[str]) -> ChampionScores:
    """Score answers with the champion, through its own layer and base model.

    Args:
        workspace: The workspace.
        event: The champion.
        ids: Interaction ids.

    Returns:
        Confidences, probabilities and threshold.
    """
    from abstain.serving.predictor import Predictor

    bundle = fetch_bundle(workspace.path, event)
    predictor = Predictor.open(bundle / paths.RELEASED_ONNX.name, load_settings())
    interactions = DataStore(workspace.path / paths.DATA).read_interactions(ids)
    # Its layer or model may differ from the candidate's; the cache keeps what is computed for the next decision.
    predictor.compute_missing(interactions)
    # An answer that the champion cannot read is not shown.
    decisions = list(predictor.decide_interactions(interactions))
    return ChampionScores(
        [decision.confidence or 0.0 for decision in decisions],
        [decision.probability or 0.0 for decision in decisions],
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
