from __future__ import annotations

from typing import Any

import pytest

from abstain.core.errors import AbstainError
from abstain.ingest.privacy.entities import SPAN_ENTITIES, get_span_finder, require_valid_entities
from abstain.ingest.privacy.recognizers import NAME_ENTITIES, load_pattern_recognizers, require_phone_regions
from abstain.ingest.privacy.redaction import Redactor
from abstain.ingest.privacy.search_spans import iter_windows
from tests.ingest.privacy.builders import SHIPPED, params


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("credit_card", "did you mean 'CREDIT_CARD'\\?$"),
        ("PERSONS", "did you mean 'PERSON'\\?$"),
        ("UKNHS", "did you mean 'UK_NHS'\\?$"),
        ("###", "valid entities: .*, URL, .*, US_SSN$"),
    ],
)
def test_redactor_unknown_entity_names_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(AbstainError, match=f"^privacy.redact: unknown entity '{name}': {hint}"):
        Redactor(params(redact=("URL", name)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"redact": ("PERSON",), "min_score": 0.9},
            "PERSON is never surer than 0.85, so privacy.min_score = 0.9 would",
        ),
        ({"phone_regions": ("US", "UK")}, "^privacy.phone_regions: 'UK' is no region"),
        ({"phone_regions": ("de",)}, "^privacy.phone_regions: 'de' is no region"),
        *(
            (
                {"redact": ("PERSON",), "names_pipeline": pipeline},
                rf"need the spaCy pipeline '{pipeline}'.*pip install 'abstain\[names\]'",
            )
            for pipeline in ("de_core_news_of_nobody", "no/such/folder", "", "a.b")
        ),
    ],
)
def test_redactor_unusable_parameter_is_an_error_at_once(changes: dict[str, Any], message: str) -> None:
    require_phone_regions(["DE", "GB", "NO"])
    with pytest.raises(AbstainError, match=message):
        Redactor(params(**changes))


def test_shipped_entities_are_looked_for_only_where_they_can_be() -> None:
    require_valid_entities(SHIPPED.redact, SHIPPED.min_score)
    assert set(SHIPPED.redact) <= set(SPAN_ENTITIES)
    assert all(get_span_finder(name, national_phones=False) is not iter_windows for name in SPAN_ENTITIES)


@pytest.mark.slow
def test_entities_have_the_best_score_that_presidio_can_give() -> None:
    scores = {name: best for name, (_, best) in load_pattern_recognizers().items()}
    assert scores.items() >= {**SPAN_ENTITIES, "URL": 0.6, "IP_ADDRESS": 0.6, "US_PASSPORT": 0.1, "UK_NHS": 1.0}.items()
    assert len(scores) > 50
    require_valid_entities(scores, 0)
    with pytest.raises(AbstainError, match=r"US_PASSPORT is never surer than 0.1, so privacy.min_score = 0.4 would"):
        require_valid_entities(["EMAIL_ADDRESS", "US_PASSPORT"], 0.4)
    from presidio_analyzer.predefined_recognizers import SpacyRecognizer

    assert set(NAME_ENTITIES) <= set(SpacyRecognizer.ENTITIES)
