from typing import Any

import numpy as np
import pytest

from abstain.config.params import ServeParams
from abstain.core.errors import AbstainError
from abstain.core.scorer_names import NOT_SERVED
from abstain.learning.metrics.bootstrap import Estimate
from abstain.stages.choose_scorer.__main__ import choose_served_scorer

COSTS = {"writer": 0.0, "probe": 50.0, "fusion_free": 50.0, "min_log_prob": 80.0, "fusion_one_pass": 80.0}
WHY = {"entailment": "no model", "cross_encoder": NOT_SERVED["cross_encoder"]}


def make_serve(**changes: Any) -> ServeParams:
    return ServeParams(**{"scorer": "best", "max_forward_tokens": 1000, "current_scorer": None} | changes)


def make_aurocs(**values: float) -> dict[str, Estimate]:
    """Every AUROC; the standard error of a difference is at least 0.01."""
    noise = np.array([0.01, -0.01])
    aurocs = dict.fromkeys(COSTS, 0.6) | values
    return {name: Estimate(value, value + at * noise) for at, (name, value) in enumerate(aurocs.items())}


@pytest.mark.parametrize(
    ("params", "aurocs", "name"),
    [
        (make_serve(), {"fusion_one_pass": 0.9}, "fusion_one_pass"),
        (make_serve(max_forward_tokens=79), {"fusion_one_pass": 0.9, "probe": 0.8}, "probe"),
        (make_serve(max_forward_tokens=80), {"fusion_one_pass": 0.9, "probe": 0.8}, "fusion_one_pass"),
        (make_serve(current_scorer="probe"), {"fusion_one_pass": 0.8, "probe": 0.795}, "probe"),
        (make_serve(max_forward_tokens=None), {"fusion_one_pass": 0.9}, "fusion_one_pass"),
        (make_serve(current_scorer="fusion_one_pass"), dict.fromkeys(COSTS, float("nan")), "fusion_one_pass"),
        (make_serve(scorer="min_log_prob", max_forward_tokens=1), {"probe": 0.9}, "min_log_prob"),
        (make_serve(), dict.fromkeys(COSTS, float("nan")), "probe"),
        (make_serve(max_forward_tokens=1), dict.fromkeys(COSTS, float("nan")), "writer"),
    ],
)
def test_choose_served_scorer_follows_serve_params(params: ServeParams, aurocs: dict[str, float], name: str) -> None:
    assert choose_served_scorer(params, COSTS, make_aurocs(**aurocs), WHY) == name


@pytest.mark.parametrize(("scorer", "reason"), [*WHY.items(), ("nothing", "no such scorer")])
def test_choose_served_scorer_that_cannot_decide_raises(scorer: str, reason: str) -> None:
    with pytest.raises(AbstainError, match=f"serve.scorer: {scorer} .*{reason}.*{', '.join(COSTS)}$"):
        choose_served_scorer(make_serve(scorer=scorer), COSTS, make_aurocs(), WHY)


def test_choose_served_scorer_small_budget_names_cheapest() -> None:
    costs = COSTS | {"writer": 90.5}
    with pytest.raises(AbstainError, match="raise it to 50, for probe$"):
        choose_served_scorer(make_serve(max_forward_tokens=49), costs, make_aurocs(), WHY)
