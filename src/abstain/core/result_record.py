"""Frozen records of metrics, which stages write as JSON and reports read.

A value that is not defined for the answers is None (null in JSON).
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict


def _to_finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


Value = Annotated[float | None, BeforeValidator(_to_finite)]
"""A number; None if it is undefined, because JSON has neither nan nor infinity."""


class ResultRecord(BaseModel):
    """Frozen record; keys that are not declared are kept as they are."""

    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())

    def get(self, name: str) -> Any:
        """Return a value by its key, such as `auroc_low`; None if there is none."""
        return getattr(self, name, None)

    def to_dict(self) -> dict[str, Any]:
        """Return the keys and values that were given, and no others."""
        return self.model_dump(exclude_unset=True)


class Auroc(ResultRecord):
    """AUROC with its 95 % interval."""

    auroc: Value
    auroc_low: Value
    auroc_high: Value


class Rates(ResultRecord):
    """Coverage of a threshold, and the precision of what it shows."""

    coverage: Value
    precision: Value
