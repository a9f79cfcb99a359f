"""The served threshold with its guarantee, as the stage `tune_threshold` writes it."""

from __future__ import annotations

from abstain.core.result_record import Rates, ResultRecord, Value
from abstain.learning.thresholds.guarantee import Guarantee


class CountedRates(Rates):
    """Rates on a number of answers."""

    rows: int


class TunedThreshold(CountedRates):
    """A threshold and its rates on the validation split (`selection.OperatingPoint`)."""

    threshold: float
    recall: Value
    shown: int
    n_eff_shown: float


class ThresholdResult(ResultRecord):
    """Content of threshold.json.

    Attributes:
        threshold: The served threshold.
        guarantee: Its guarantee; with status "none", the heuristic threshold is served.
        heuristic: The threshold that just reaches the target on the validation split; None if there is none.
        self_selected: Rates on reviews that reviewers selected themselves; None if there are none.
    """

    threshold: float
    guarantee: Guarantee
    heuristic: TunedThreshold | None
    self_selected: TunedThreshold | None
