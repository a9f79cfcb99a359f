"""Drift of the newest batch against earlier ones, by their profiles.

Notes:

* Lengths and languages use one measure, the population stability index. Drift is a warning: it indicates that the
  newest split needs attention, not that a row is invalid.
* A batch that is too small is joined with the ones before it, on both sides: `select_newest_and_previous`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from abstain.config.params import QualityParams
from abstain.core.codes import Code
from abstain.core.reasons import Reason
from abstain.data.store.profile import MEASURES, Profile
from abstain.data.validation.checks import expect_between
from abstain.data.validation.results import DriftStatistics
from abstain.data.validation.runner import ValidationResult, run_suites

RARE_CLASS_SHARE = 0.01
"""Classes with a smaller share on both sides are counted as one, because a handful of rows is no drift."""


def validate_drift(profiles: Sequence[Profile], params: QualityParams) -> ValidationResult:
    """Compare the newest profile with earlier ones.

    Args:
        profiles: Profiles of the accepted batches, in order of arrival.
        params: `quality` of params.yaml.

    Returns:
        The result for the table "drift"; without checks if there are too few rows.
    """
    sides = select_newest_and_previous(profiles, params.min_drift_rows)
    if sides is None:
        note = f"drift: not judged before there are two batches of {params.min_drift_rows:,} interactions each"
        return ValidationResult({"drift": 0}, notes=(note,))
    newest, previous = sides
    shifts = {name: compute_stability_index(*(side.get_counts(name) for side in sides)) for name in MEASURES}
    message = f"{{row}}: {{value}} from the batches before, {params.max_drift:g} allowed (quality.max_drift)"
    result = run_suites(
        {"drift": [{"row": f"drift/{name}", "shift": shift} for name, shift in shifts.items()]},
        {"drift": (expect_between("shift", Reason(Code.DRIFT, "", message), "warning", max_value=params.max_drift),)},
    )
    statistics = DriftStatistics(
        limit=params.max_drift,
        rows={"newest": newest.rows, "previous": previous.rows},
        shift={name: round(shift, 4) for name, shift in shifts.items()},
        newest=newest.counts,
        previous=previous.counts,
    )
    return replace(result, drift=statistics)


def select_newest_and_previous(profiles: Sequence[Profile], min_rows: int) -> tuple[Profile, Profile] | None:
    """Merge the newest batches into one profile, and the ones before them into another.

    Args:
        profiles: Profiles of the batches, in order of arrival.
        min_rows: Number of interactions that each side needs.

    Returns:
        The newest and the previous profile, each of the fewest batches with `min_rows` interactions; None if there are
        too few.
    """
    remaining = list(profiles)

    def merge_newest() -> Profile:
        merged = Profile()
        while remaining and merged.rows < min_rows:
            merged = remaining.pop() + merged
        return merged

    newest, previous = merge_newest(), merge_newest()
    return (newest, previous) if min(newest.rows, previous.rows) >= min_rows else None


def compute_stability_index(newest: Mapping[str, int], previous: Mapping[str, int]) -> float:
    """Compute the population stability index: the sum of (p - q) ln(p / q) over classes, less that of chance.

    By convention, above 0.1 is a moderate shift, above 0.25 a large one. Half a row is added to every class, so that a
    class on only one side counts for as much as its rows warrant. Chance gives about (classes - 1)(1/n + 1/m) for n and
    m rows, which would turn every small batch into a shift; it is subtracted.

    Args:
        newest: Class -> number of rows.
        previous: Class -> number of rows.

    Returns:
        The index, >= 0; 0 if a side has no rows.
    """
    sides = (newest, previous)
    totals = [sum(side.values()) for side in sides]
    if not all(totals):
        return 0.0
    counts = Counter[tuple[str, int]]()
    for name in {**newest, **previous}:
        rare = all(side.get(name, 0) < RARE_CLASS_SHARE * total for side, total in zip(sides, totals, strict=True))
        for i, side in enumerate(sides):
            counts["other" if rare else name, i] += side.get(name, 0)
    names = sorted({name for name, _ in counts})
    p, q = ([(counts[name, i] + 0.5) / (totals[i] + 0.5 * len(names)) for name in names] for i in (0, 1))
    index = sum((a - b) * math.log(a / b) for a, b in zip(p, q, strict=True))
    return max(index - (len(names) - 1) * sum(1 / total for total in totals), 0.0)
