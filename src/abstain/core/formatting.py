"""Numbers as text. A value that is undefined for these rows (null in JSON, nan in a table) is shown as such."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from abstain.core.markdown import NOT_DEFINED, is_defined


class HasValues(Protocol):
    """Values by name, such as a mapping; a missing one is None."""

    def get(self, name: str, /) -> Any: ...


NO_INTERVAL = "no interval"
DASH = "–"
"""Content of a table cell without a value."""


def format_number(value: float | None, form: str = ".3f") -> str:
    """Format a number, with a minus sign as wide as a plus sign.

    Args:
        value: The number; None and nan give `NOT_DEFINED`.
        form: Format specification.

    Returns:
        The text.
    """
    return format(value, form).replace("-", "−").replace("%", " %") if is_defined(value) else NOT_DEFINED


def format_percent(value: float | None, digits: int = 1) -> str:
    """Format a share in [0, 1] as percent: 0.785 gives `78.5 %`.

    Args:
        value: The share; None and nan give `NOT_DEFINED`.
        digits: Digits after the point.

    Returns:
        The text.
    """
    return f"{100 * value:.{digits}f} %" if value is not None and is_defined(value) else NOT_DEFINED


def format_configured_share(value: float) -> str:
    """Format a configured share with all its digits: 0.85 gives `85 %`."""
    return f"{100 * value:g} %"


def format_percent_near(value: float | None, target: float) -> str:
    """Format a share as percent, with as many digits as are needed to distinguish it from a target.

    Args:
        value: The share in [0, 1]; None and nan give `NOT_DEFINED`.
        target: The share that it is compared with.

    Returns:
        The text.
    """
    if value is None or not is_defined(value) or abs(value - target) < 1e-9:
        return format_percent(value)
    digits = next((d for d in range(1, 6) if f"{100 * value:.{d}f}" != f"{100 * target:.{d}f}"), 6)
    return format_percent(value, digits)


def format_interval(row: HasValues, name: str, form: str = ".3f") -> str:
    """Format the 95 % interval of a metric: `0.768 to 0.861`.

    Args:
        row: Has `{name}_low` and `{name}_high`.
        name: Name of the metric.
        form: Format specification of both ends.

    Returns:
        The text; `NO_INTERVAL` if an end is undefined.
    """
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    if not is_defined(low) or not is_defined(high):
        return NO_INTERVAL
    return f"{format_number(low, form)} to {format_number(high, form)}"


def format_with_interval(row: HasValues, name: str, form: str = ".3f") -> str:
    """Format a metric with its 95 % interval: `0.810 (0.768 to 0.861)`.

    Args:
        row: Has `{name}`, `{name}_low` and `{name}_high`.
        name: Name of the metric.
        form: Format specification of all three numbers.

    Returns:
        The text; `NOT_DEFINED` if the metric is undefined.
    """
    value = row.get(name)
    return f"{format_number(value, form)} ({format_interval(row, name, form)})" if is_defined(value) else NOT_DEFINED


def format_count(number: int, noun: str) -> str:
    """Format a number with its noun: `1 answer`, `1,200 answers`.

    Args:
        number: The number.
        noun: The noun in the singular; its plural ends in "s".

    Returns:
        The text.
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def join_words(items: Sequence[str]) -> str:
    """Join items as in a sentence: `a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)
