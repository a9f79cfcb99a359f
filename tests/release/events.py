"""Events of the registry as a promotion writes them."""

from datetime import UTC, datetime
from typing import Any

from abstain.release.registry import RegistryEvent
from tests.learning.thresholds.builders import make_guarantee


def promotion(version: str = "v1.0.0", **changes: Any) -> RegistryEvent:
    fields: dict[str, Any] = {
        "action": "promote",
        "sha256": "0" * 64,
        "candidate_sha256": "0" * 64,
        "occurred_at": datetime(2026, 11, 1, tzinfo=UTC),
        "holdout_sha256": "0" * 64,
        "reason": "approved by the promotion checks",
        "guarantee": make_guarantee(),
        "scorer": "probe",
        "bundle_sha256": "0" * 64,
    }
    return RegistryEvent(**{**fields, "version": version, **changes})
