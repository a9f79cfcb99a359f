"""The shadow: a candidate that decides beside the version in production, on the same traffic, and is not obeyed.

`shadow.json` says which candidate that is, and beside which version; its bundle is `shadow/`, under a tag of its own.
What reviews say of answers that both have decided about is a comparison of the two, and counts as one of those on the
hold-out: `against_champion.Looks`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from abstain.config.params import GateParams, ShadowParams
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import Statistic
from abstain.release.champion_comparison import ComparisonBudget, check_better, have_same_confidences
from abstain.release.evaluation_set import CANDIDATE, EvaluationSet, PromotionCheck
from abstain.release.metric_comparison import MetricComparison, compare_metrics, compare_statistics
from abstain.release.registry import Version

ShadowVerdict = Literal["better", "not told apart", "worse"]
MIN_GROUPS = 10
"""Paired reviews about fewer documents are no comparison."""


class Shadow(BaseModel):
    """The parsed `shadow.json`. `candidate`: the digest of its ONNX file; `beside`: the version in production then.

    `sha256` and `bundle_sha256` are those of its bundle, as of a release (`registry.Event`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    candidate: str
    beside: Version
    at: datetime
    sha256: str
    bundle_sha256: str

    @property
    def version(self) -> str:
        """Its name in its ONNX file, in the decision log and in records."""
        return make_shadow_name(self.candidate)

    @property
    def tag(self) -> str:
        """The tag of its bundle: equal ones have equal files."""
        return f"shadow/{self.candidate[:12]}-{self.bundle_sha256[:8]}"


def make_shadow_name(candidate: str) -> str:
    """The name of the candidate with this digest as a shadow."""
    return f"shadow-{candidate[:12]}"


def parse_shadow(text: str) -> Shadow:
    """Parse `shadow.json`. Raises `AbstainError` where it is damaged."""
    try:
        return Shadow.model_validate_json(text)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise AbstainError(
            Code.DAMAGED_DATA, f"shadow.json is damaged ({where}: {problem['msg']}): set it again, `abstain shadow set`"
        ) from None


def should_shadow_rejected(params: ShadowParams, shadow: Shadow | None, beside: str) -> bool:
    """Whether a rejected candidate becomes the shadow of `beside` by itself.

    It does so only where there is none: reviews of one take their time.
    """
    return params.rejected and (shadow is None or shadow.beside != beside)


@dataclass(frozen=True)
class ShadowComparison:
    """What paired reviews say of the shadow. `check`: the test of the difference in AUROC, as on the hold-out.

    `answers`: of each of "both", "production", "shadow" and "neither", who show an answer, how many there are and how
    many of them are correct.
    """

    verdict: ShadowVerdict
    check: PromotionCheck
    metrics: tuple[MetricComparison, ...]
    answers: dict[str, dict[str, int]]

    def to_dict(self) -> dict[str, object]:
        """For a record; nan as None."""
        check = {key: None if value != value else value for key, value in asdict(self.check).items()}
        return {
            "verdict": self.verdict,
            "reasons": [self.check.message],
            "checks": [check],
            "comparison": [one.to_dict() for one in self.metrics],
            "answers": self.answers,
        }


def require_enough_reviews(window: EvaluationSet, params: GateParams) -> None:
    """Raise `AbstainError` where `window` has too few paired reviews for a comparison: that would waste one."""
    rows, documents = len(window.correct), len(np.unique(window.groups))
    if rows < params.min_slice or documents < MIN_GROUPS:
        raise AbstainError(
            Code.TOO_FEW_LABELS,
            f"{rows} answers about {documents} documents that both have decided about have a drawn review, and "
            f"{params.min_slice} about {MIN_GROUPS} are needed: `abstain ingest`, then `abstain review export`",
        )


def compare_shadow(
    window: EvaluationSet, champion: str, thresholds: dict[str, float], params: GateParams, looks: ComparisonBudget
) -> ShadowComparison:
    """The shadow, `CANDIDATE` in `window`, beside `champion`, each with its own of `thresholds`.

    It is told apart at the level of one look, in either direction. `looks`: the comparisons on the hold-out so far.

    Raises `AbstainError` where no further look may be taken, and where the two are one scorer.
    """
    if looks.spend(params) is None:
        raise AbstainError(
            Code.NOT_BETTER,
            f"this hold-out was compared on {looks.used} times, as often as gate.looks allows, and a shadow's reviews "
            "would be one more: take a new one (docs/thresholds.md, A hold-out that is used up)",
        )
    if have_same_confidences(window, champion):
        raise AbstainError(
            Code.NOT_BETTER,
            f"the shadow gives the same confidences as {champion}: there is nothing to compare, and no look was taken",
        )
    check = check_better(window, champion, params, looks, rows="paired reviews:")
    verdict: ShadowVerdict = "not told apart"
    if check.passed:
        verdict = "better"
    elif 1 - check.value <= check.limit:  # not so of nan
        verdict = "worse"
    figures = (*compare_metrics(window, champion), *_compare_at_thresholds(window, champion, thresholds))
    return ShadowComparison(verdict, check, figures, _count_shown(window, champion, thresholds))


def _compare_at_thresholds(
    window: EvaluationSet, champion: str, thresholds: dict[str, float]
) -> list[MetricComparison]:
    """What both show, and how much of it is correct, each at its own threshold."""
    figures: dict[str, dict[str, Statistic]] = {
        name: {
            who: partial(of, window.correct, window.confidences[who], threshold=thresholds[who])
            for who in (CANDIDATE, champion)
        }
        for name, of in (("shown", metrics.coverage), ("precision of what is shown", metrics.precision))
    }
    return compare_statistics(window, champion, figures)


def _count_shown(window: EvaluationSet, champion: str, thresholds: dict[str, float]) -> dict[str, dict[str, int]]:
    own, other = (window.get_shown_mask(thresholds[who], who) for who in (CANDIDATE, champion))
    correct = window.correct == 1
    who = {"both": own & other, "production": ~own & other, "shadow": own & ~other, "neither": ~own & ~other}
    return {name: {"answers": int(rows.sum()), "correct": int((rows & correct).sum())} for name, rows in who.items()}
