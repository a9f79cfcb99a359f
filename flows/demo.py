"""The whole loop on the shipped sample: ingest a week of feedback, retrain, evaluate, promote, score."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from abstain.config.settings import load_settings
from abstain.core.codes import Code
from abstain.core.contracts import ImportedInteraction
from abstain.core.errors import AbstainError
from abstain.ingest.report import IngestReport
from abstain.learning.evaluation.evaluation_result import EvaluationMetrics, HoldoutMetrics
from abstain.sample.files import INCOMING
from abstain.serving.decision import Decision
from abstain.serving.gate import DecisionInput, Gate
from abstain_flows.ingest import ingest
from abstain_flows.retrain import RetrainResult, retrain
from abstain_tasks.projects.base_model import prepare_base_model
from abstain_tasks.release.bundles import fetch_production

EXAMPLES = 40


@dataclass(frozen=True)
class DemoResult:
    """The results of the demo.

    Attributes:
        report: Report of the ingest.
        retrained: Result of the retrain.
        bundle: Folder of the bundle in production.
        holdout: Its metrics on the hold-out.
        guarantee: Its guarantee in one sentence.
        examples: One shown and one withheld answer of the new week, if there are any.
    """

    report: IngestReport
    retrained: RetrainResult
    bundle: Path
    holdout: HoldoutMetrics
    guarantee: str
    examples: list[tuple[ImportedInteraction, Decision]]


def run_demo() -> DemoResult:
    """Ingest the sample's newest week, retrain, promote, and score with the version then in production.

    Returns:
        The results.
    """
    with prepare_base_model():
        report = ingest([str(INCOMING)])
    rows = _read_valid_rows(INCOMING)
    retrained = retrain()
    if retrained.promotion and retrained.promotion.version is None:
        raise AbstainError(
            Code.NO_VERSION,
            f"the first version is rejected: {'; '.join(retrained.promotion.reasons)}; change `promotion` or "
            "`threshold` in params.yaml and run `abstain demo` again",
        )
    bundle, _ = fetch_production()
    inputs = [DecisionInput(row.interaction_id, row.to_rows()[0]) for row in rows]
    gate = Gate.open(bundle, load_settings())
    decisions = gate.decide_all(inputs)
    by_decision = {decision.decision: (row, decision) for row, decision in zip(rows, decisions, strict=True)}
    holdout = EvaluationMetrics.model_validate_json((bundle / "metrics.json").read_bytes()).holdout
    examples = [by_decision[d] for d in ("show", "abstain") if d in by_decision]
    return DemoResult(report, retrained, bundle, holdout, gate.predictor.guarantee.message, examples)


def _read_valid_rows(file: Path) -> list[ImportedInteraction]:
    """Read the first valid rows; a few of the sample's are broken on purpose."""
    rows = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(ImportedInteraction.model_validate_json(line))
        except ValueError:
            continue
    return rows[:EXAMPLES]
