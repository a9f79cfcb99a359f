"""The shipped parameters with one thing changed, and what redactors hand to recognizers."""

from collections.abc import Callable
from typing import Any

import pytest

from abstain.config.params import PrivacyParams
from abstain.ingest.privacy import redaction
from abstain.ingest.privacy.recognizers import FindEntities
from tests.checkout import shipped_params

SHIPPED = shipped_params().privacy


def params(**changes: Any) -> PrivacyParams:
    return SHIPPED.model_copy(update=changes)


def record_handed_texts(monkeypatch: pytest.MonkeyPatch, finder: str) -> list[str]:
    """Every text that redactors made from now on hand to a recognizer of `finder`, as they do."""
    handed: list[str] = []
    make: Callable[..., FindEntities] = getattr(redaction, finder)

    def watched(*arguments: object) -> FindEntities:
        find = make(*arguments)
        return lambda text: handed.append(text) or find(text)

    monkeypatch.setattr(redaction, finder, watched)
    return handed
