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
    ("name", "hint"), [("credit_card", "'CREDIT_CARD'"), ("PERSONS", "'PERSON'"), ("UKNHS", "'UK_NHS'"), ("###", "URL")]
)
def test_redactor_unknown_entity_names_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(AbstainError, match=f"^privacy.redact: unknown entity '{name}': .*{hint}"):
        Redactor(params(redact=("URL", name)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"redact": ("PERSON",), "min_score": 0.9}, "PERSON is .* 0.85, .* privacy.min_score = 0.9"),
        ({"phone_regions": ("US", "UK")}, "^privacy.phone_regions: 'UK'"),
        ({"phone_regions": ("de",)}, "^privacy.phone_regions: 'de'"),
        *(
            ({"redact": ("PERSON",), "names_pipeline": name}, rf"spaCy pipeline '{name}'.*'abstain\[names\]'")
            for name in ("de_core_news_of_nobody", "no/such/folder", "", "a.b")
        ),
    ],
)
def test_redactor_unusable_parameter_raises_at_once(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(AbstainError, match=message):
        Redactor(params(**changes))


def test_shipped_entities_have_span_finders() -> None:
    require_valid_entities(SHIPPED.redact, SHIPPED.min_score)
    require_phone_regions(["DE", "GB", "NO"])
    assert set(SHIPPED.redact) <= set(SPAN_ENTITIES)
    assert all(get_span_finder(name, national_phones=False) is not iter_windows for name in SPAN_ENTITIES)


@pytest.mark.slow
def test_entity_scores_are_the_best_of_presidio() -> None:
    scores = {name: best for name, (_, best) in load_pattern_recognizers().items()}
    assert scores.items() >= {**SPAN_ENTITIES, "URL": 0.6, "IP_ADDRESS": 0.6, "US_PASSPORT": 0.1, "UK_NHS": 1.0}.items()
    assert len(scores) > 50
    require_valid_entities(scores, 0)
    with pytest.raises(AbstainError, match=r"US_PASSPORT is never surer than 0.1, so privacy.min_score = 0.4 would"):
        require_valid_entities(["EMAIL_ADDRESS", "US_PASSPORT"], 0.4)
    from presidio_analyzer.predefined_recognizers import SpacyRecognizer

    assert set(NAME_ENTITIES) <= set(SpacyRecognizer.ENTITIES)
