from __future__ import annotations

import inspect

import pytest

from abstain.core.errors import AbstainError
from abstain.ingest.privacy.entities import NAMES, PATTERNS, RARE, pieces_of, require_known
from abstain.ingest.privacy.pieces import windows
from abstain.ingest.privacy.recognizers import pattern_finder, require_names, require_regions
from tests.ingest.privacy.builders import SHIPPED


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("EMAIL", "did you mean 'EMAIL_ADDRESS'\\?$"),
        ("credit_card", "did you mean 'CREDIT_CARD'\\?$"),
        ("PERSONS", "did you mean 'PERSON'\\?$"),
        ("IBAN", "did you mean 'IBAN_CODE'\\?$"),
        ("???", "valid entities: ABA_ROUTING_NUMBER, .*, US_SSN$"),
    ],
)
def test_an_unknown_entity_names_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(
        AbstainError, match=f"^privacy.redact: unknown entity '{name}': {hint}".replace("???", r"\?\?\?")
    ):
        require_known(["URL", name], 0.4)


def test_what_can_never_be_found_is_refused() -> None:
    require_known(PATTERNS, 0)
    with pytest.raises(AbstainError, match=r"US_PASSPORT is never surer than 0.1, so privacy.min_score = 0.4 would"):
        require_known(["EMAIL_ADDRESS", "US_PASSPORT"], 0.4)
    with pytest.raises(AbstainError, match="PERSON is never surer than 0.85"):
        require_known(["PERSON"], 0.9)


def test_what_is_shipped_is_right_and_looked_for_only_where_it_can_be() -> None:
    require_known(SHIPPED.redact, SHIPPED.min_score)
    assert set(SHIPPED.redact) <= RARE
    assert all(pieces_of(name, national_phones=False) is not windows for name in RARE)


def test_phone_regions_are_codes_of_countries() -> None:
    require_regions([])
    require_regions(["DE", "GB", "NO"])
    for region in ("UK", "de", "Germany", ""):
        with pytest.raises(AbstainError, match=f"^privacy.phone_regions: '{region}' is no region"):
            require_regions(["US", region])


@pytest.mark.parametrize("pipeline", ["de_core_news_of_nobody", "no/such/folder", "", "a.b"])
def test_a_missing_pipeline_says_how_to_get_it(pipeline: str) -> None:
    with pytest.raises(AbstainError, match=rf"need the spaCy pipeline '{pipeline}'.*pip install 'abstain\[names\]'"):
        require_names(pipeline)


@pytest.mark.slow
def test_the_table_says_what_presidio_has() -> None:
    pattern_finder("URL")  # which imports Presidio without what it does not need
    from presidio_analyzer import PatternRecognizer, predefined_recognizers

    made = {}
    for name in predefined_recognizers.__all__:
        kind = getattr(predefined_recognizers, name)
        if inspect.isclass(kind) and (issubclass(kind, PatternRecognizer) or name == "PhoneRecognizer"):
            recognizer = kind()
            checked = getattr(kind, "validate_result", None) is not PatternRecognizer.validate_result
            scores = [1.0] if checked else [pattern.score for pattern in recognizer.patterns]
            best = recognizer.SCORE if name == "PhoneRecognizer" else max(scores)
            made[recognizer.supported_entities[0]] = (name, best)
    assert made == PATTERNS
    assert set(NAMES) <= set(predefined_recognizers.SpacyRecognizer.ENTITIES)
