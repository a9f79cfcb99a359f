"""Drift of the newest batch against earlier ones, by their profiles.

Notes:

* Lengths and languages use one measure, the population stability index. Drift is a warning: it indicates that the
  newest window needs attention, not that a row is invalid.
* A batch that is too small is joined with the ones before it, on both sides: `select_newest_and_previous`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from abstain.config.params import QualityParams
from abstain.core.codes import Code
from abstain.core.reasons import Reason
from abstain.data.store.profile import MEASURES, Profile
from abstain.data.validation.checks import expect_between
from abstain.data.validation.runner import ValidationResult, run_suites

RARE = 0.01
"""Classes with less than this share on both sides are counted as one: a handful of rows is no drift."""


def validate_drift(profiles: Sequence[Profile], params: QualityParams) -> ValidationResult:
    """Judge the newest of `profiles`, one an accepted batch in order of arrival, by those before."""
    compared = select_newest_and_previous(profiles, params.min_drift_rows)
    if compared is None:
        note = f"drift: not judged before there are two batches of {params.min_drift_rows:,} interactions each"
        return ValidationResult({"drift": 0}, notes=(note,))
    shifts = {name: stability_index(*(side.get_counts(name) for side in compared)) for name in MEASURES}
    message = f"{{row}}: {{value}} from the batches before, {params.max_drift:g} allowed (quality.max_drift)"
    return run_suites(
        {"drift": [{"row": f"drift/{name}", "shift": shift} for name, shift in shifts.items()]},
        {"drift": (expect_between("shift", Reason(Code.DRIFT, "", message), "warning", max_value=params.max_drift),)},
        figures={"drift": _figures(shifts, *compared, limit=params.max_drift)},
    )


def select_newest_and_previous(profiles: Sequence[Profile], min_rows: int) -> tuple[Profile, Profile] | None:
    """The newest batches that together have `min_rows` interactions, and those before that do; None for too few."""
    left = list(profiles)

    def take() -> Profile:
        taken = Profile()
        while left and taken.rows < min_rows:
            taken = left.pop() + taken
        return taken

    newest, previous = take(), take()
    return (newest, previous) if min(newest.rows, previous.rows) >= min_rows else None


def stability_index(newest: Mapping[str, int], previous: Mapping[str, int]) -> float:
    """Population stability index: the sum of (p - q) ln(p / q) over classes, less what chance alone would give.

    By convention, above 0.1 is a moderate shift, above 0.25 a large one. Half a row is added to every class, so that a
    class on one side only counts for as much as its rows warrant. Chance gives about (classes - 1)(1/n + 1/m) to n and
    m rows, which would make every small batch a shift. 0 where a side has no rows.
    """
    sides = (newest, previous)
    totals = [sum(side.values()) for side in sides]
    if not all(totals):
        return 0.0
    counts = Counter[tuple[str, int]]()
    for name in {**newest, **previous}:
        rare = all(side.get(name, 0) < RARE * total for side, total in zip(sides, totals, strict=True))
        for at, side in enumerate(sides):
            counts["other" if rare else name, at] += side.get(name, 0)
    names = sorted({name for name, _ in counts})
    p, q = ([(counts[name, at] + 0.5) / (totals[at] + 0.5 * len(names)) for name in names] for at in (0, 1))
    index = sum((a - b) * math.log(a / b) for a, b in zip(p, q, strict=True))
    return max(index - (len(names) - 1) * sum(1 / total for total in totals), 0.0)


def _figures(shifts: Mapping[str, float], newest: Profile, previous: Profile, limit: float) -> dict[str, Any]:
    return {
        "limit": limit,
        "rows": {"newest": newest.rows, "previous": previous.rows},
        "shift": {name: round(shift, 4) for name, shift in shifts.items()},
        "newest": newest.counts,
        "previous": previous.counts,
    }
