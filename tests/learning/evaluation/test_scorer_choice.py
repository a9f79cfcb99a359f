import numpy as np
import pytest

from abstain.learning.evaluation.scorer_choice import choose_cheapest_of_best
from abstain.learning.metrics.bootstrap import Estimate


def make_estimate(value: float, *noise: float) -> Estimate:
    return Estimate(value, value + np.array(noise))


@pytest.mark.parametrize(
    ("aurocs", "chosen"),
    [
        ({10: make_estimate(0.80, 0, 0), 20: make_estimate(0.81, -0.02, 0.02)}, 10),  # 0.01 lost, standard error 0.02
        ({10: make_estimate(0.78, 0, 0), 20: make_estimate(0.81, -0.02, 0.02)}, 20),  # 0.03 lost
        (
            {10: make_estimate(0.80, -0.1, 0.1), 20: make_estimate(0.81, -0.1, 0.1)},
            20,
        ),  # both vary, but together: paired
        ({10: make_estimate(0.82, 0, 0), 20: make_estimate(0.81, 0, 0)}, 10),
        ({10: make_estimate(0.8, np.nan), 20: make_estimate(0.9, np.nan)}, 20),  # one group: the error is unknown
    ],
)
def test_choose_cheapest_within_standard_error(aurocs: dict[int, Estimate], chosen: int) -> None:
    assert choose_cheapest_of_best(aurocs, {layer: layer for layer in aurocs}) == chosen


def test_choose_cheapest_equal_costs_takes_better() -> None:
    aurocs = {"mlp": make_estimate(0.80, 0.05, -0.05), "residual": make_estimate(0.81, 0, 0)}
    assert choose_cheapest_of_best(aurocs, {"mlp": 3, "residual": 3}) == "residual"


COSTS = {"writer": 0.0, "probe": 50.0, "log_prob": 80.0, "fusion": 200.0}


@pytest.mark.parametrize(
    ("in_use", "chosen"),
    [
        ([], "probe"),  # 0.02 lost, standard error 0.02
        (["probe"], "probe"),
        (["fusion"], "fusion"),  # dearer, but nothing gains over it
        (["log_prob"], "log_prob"),  # 0.015 lost is within the error
        (["writer"], "probe"),  # 0.1 lost is not
        (["gone"], "probe"),  # cannot be served any more
        (["writer", "fusion"], "fusion"),
        (["log_prob", "fusion"], "log_prob"),  # the cheaper one of the kind, of those within the error
    ],
)
def test_choose_cheapest_keeps_candidate_in_use(in_use: list[str], chosen: str) -> None:
    aurocs = {
        "writer": make_estimate(0.75, -0.02, 0.02),
        "probe": make_estimate(0.83, -0.02, 0.02),
        "log_prob": make_estimate(0.835, -0.02, 0.02),
        "fusion": make_estimate(0.85, 0, 0),
    }
    assert choose_cheapest_of_best(aurocs, COSTS, in_use) == chosen


def test_choose_cheapest_unknown_error_keeps_candidate_in_use() -> None:
    aurocs = {"probe": make_estimate(0.8, np.nan), "fusion": make_estimate(0.9, np.nan)}
    assert choose_cheapest_of_best(aurocs, COSTS, ["probe"]) == "probe"
