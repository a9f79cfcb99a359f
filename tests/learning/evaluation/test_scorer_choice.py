"""The cheapest of the best, and what is in use unless another is clearly better."""

from __future__ import annotations

import numpy as np
import pytest

from abstain.learning.evaluation.scorer_choice import choose_cheapest_of_best
from abstain.learning.metrics.bootstrap import Estimate


def estimate(value: float, *noise: float) -> Estimate:
    return Estimate(value, value + np.array(noise))


@pytest.mark.parametrize(
    ("aurocs", "chosen"),
    [
        ({10: estimate(0.80, 0, 0), 20: estimate(0.81, -0.02, 0.02)}, 10),  # 0.01 lost, standard error 0.02
        ({10: estimate(0.78, 0, 0), 20: estimate(0.81, -0.02, 0.02)}, 20),  # 0.03 lost
        ({10: estimate(0.80, -0.1, 0.1), 20: estimate(0.81, -0.1, 0.1)}, 20),  # both vary, but together: paired
        ({10: estimate(0.82, 0, 0), 20: estimate(0.81, 0, 0)}, 10),
        ({10: estimate(0.8, np.nan), 20: estimate(0.9, np.nan)}, 20),  # one group: the error is unknown
    ],
)
def test_the_shallower_layer_wins_within_a_standard_error(aurocs: dict[int, Estimate], chosen: int) -> None:
    assert choose_cheapest_of_best(aurocs, {layer: layer for layer in aurocs}) == chosen


def test_of_two_sites_of_one_layer_the_better_one_wins() -> None:
    aurocs = {"mlp": estimate(0.80, 0.05, -0.05), "residual": estimate(0.81, 0, 0)}
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
def test_what_is_in_use_stays_unless_another_gains_more_than_the_error(in_use: list[str], chosen: str) -> None:
    found = {
        "writer": estimate(0.75, -0.02, 0.02),
        "probe": estimate(0.83, -0.02, 0.02),
        "log_prob": estimate(0.835, -0.02, 0.02),
        "fusion": estimate(0.85, 0, 0),
    }
    assert choose_cheapest_of_best(found, COSTS, in_use) == chosen


def test_with_an_error_that_is_not_known_what_is_in_use_stays() -> None:
    found = {"probe": estimate(0.8, np.nan), "fusion": estimate(0.9, np.nan)}
    assert choose_cheapest_of_best(found, COSTS, ["probe"]) == "probe"
    assert choose_cheapest_of_best(found, COSTS) == "fusion"
