"""Figures as text. What is not defined for these rows (null in JSON, nan in a table) says so, never a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from abstain.core.markdown import NOT_DEFINED, is_defined

NO_INTERVAL = "no interval"
DASH = "–"
"""What stands in a table where there is nothing to be said."""


def format_number(value: float | None, form: str = ".3f") -> str:
    """`value` in the format `form`, with a minus that is as wide as a plus."""
    return format(value, form).replace("-", "−") if is_defined(value) else NOT_DEFINED


def format_percent(value: float | None, digits: int = 1) -> str:
    """A share of 1 as percent: 0.785 is `78.5 %`."""
    return f"{100 * value:.{digits}f} %" if value is not None and is_defined(value) else NOT_DEFINED


def format_configured_share(value: float) -> str:
    """A configured share, with as many digits as it has: 0.85 is `85 %`."""
    return f"{100 * value:g} %"


def format_percent_near(value: float | None, target: float) -> str:
    """`format_percent`, with as many digits as it takes to be told from `target`."""
    if value is None or not is_defined(value) or abs(value - target) < 1e-9:
        return format_percent(value)
    digits = next((d for d in range(1, 6) if f"{100 * value:.{d}f}" != f"{100 * target:.{d}f}"), 6)
    return format_percent(value, digits)


def format_interval(row: Mapping[str, Any], name: str, form: str = ".3f") -> str:
    """The 95 % interval of the figure `name` of a row: `0.768 to 0.861`."""
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    if not is_defined(low) or not is_defined(high):
        return NO_INTERVAL
    return f"{format_number(low, form)} to {format_number(high, form)}"


def format_with_interval(row: Mapping[str, Any], name: str, form: str = ".3f") -> str:
    """The figure `name` of a row with its interval: `0.810 (0.768 to 0.861)`."""
    value = row.get(name)
    return f"{format_number(value, form)} ({format_interval(row, name, form)})" if is_defined(value) else NOT_DEFINED


def format_count(number: int, noun: str) -> str:
    """`1 answer`, `1,200 answers`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def join_words(items: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)
