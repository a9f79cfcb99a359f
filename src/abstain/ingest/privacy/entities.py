"""The kinds of personal data that can be removed, by Presidio's names, and the spans of a text in which each may occur.

Notes:

* A requested entity that can never reach `privacy.min_score` would silently stay, so it is an error.
* Presidio takes seconds to import. Its names and scores are looked up only if an entity is requested that is neither in
  `SPAN_ENTITIES` nor in `NAME_ENTITIES`.
"""

from __future__ import annotations

from collections.abc import Collection

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.text import suggest_name
from abstain.ingest.privacy.recognizers import NAME_ENTITIES, load_pattern_recognizers
from abstain.ingest.privacy.search_spans import (
    FindSpans,
    find_card_spans,
    find_email_spans,
    find_iban_spans,
    find_phone_spans,
    iter_windows,
    make_hinted_search,
    make_pattern_search,
)

SPAN_ENTITIES: dict[str, float] = {
    "CREDIT_CARD": 1.0,
    "EMAIL_ADDRESS": 1.0,
    "IBAN_CODE": 1.0,
    "PHONE_NUMBER": 0.4,
    "US_SSN": 0.5,
}
"""Entities that are searched only in spans of their own, with the best score of each."""

_SPAN_FINDERS: dict[str, FindSpans] = {
    "CREDIT_CARD": find_card_spans,
    "EMAIL_ADDRESS": find_email_spans,
    "IBAN_CODE": find_iban_spans,
    "PHONE_NUMBER": find_phone_spans,
    "US_SSN": make_pattern_search(r"\d{3}(?<!\w...)[- .]?\d{2}[- .]?\d{4}\b"),
}
_NATIONAL_PHONE_FINDER = make_hinted_search(r"\d(?:\W{0,4}\d){6}")


def require_valid_entities(names: Collection[str], min_score: float) -> None:
    """Check the names of entities.

    Args:
        names: Names of entities that are to be removed.
        min_score: Score from which on an entity is removed.

    Raises:
        AbstainError: A name is unknown, or its entity can never reach `min_score`.
    """
    valid = SPAN_ENTITIES | NAME_ENTITIES
    if not valid.keys() >= set(names):
        recognizers = load_pattern_recognizers(with_torch=not NAME_ENTITIES.keys().isdisjoint(names))
        valid |= {name: best_score for name, (_, best_score) in recognizers.items()}
    for name in names:
        if name not in valid:
            hint = suggest_name(name.upper(), sorted(valid), "valid entities", cutoff=0.5)
            raise AbstainError(Code.BAD_SETTING, f"privacy.redact: unknown entity '{name}': {hint}")
        if valid[name] < min_score:
            raise AbstainError(
                Code.BAD_SETTING,
                f"privacy.redact: {name} is never surer than {valid[name]:g}, so privacy.min_score = {min_score:g} "
                f"would leave every one in the text: lower the score or take {name} out",
            )


def get_span_finder(name: str, *, national_phones: bool) -> FindSpans:
    """Return the function that finds the spans of a view in which an entity may occur.

    Args:
        name: Name of the entity.
        national_phones: Whether phone numbers without a country code are entities.

    Returns:
        The function.
    """
    if name == "PHONE_NUMBER" and national_phones:
        return _NATIONAL_PHONE_FINDER
    return _SPAN_FINDERS.get(name, iter_windows)
