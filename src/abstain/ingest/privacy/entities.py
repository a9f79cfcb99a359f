"""The kinds of personal data that can be removed, by Presidio's names, and where in a text each may occur.

Notes:

* A requested entity that can never reach `privacy.min_score` would silently stay, so it is an error.
* Presidio takes seconds to import. It is asked for names and scores only if an entity is requested that is not among
  those that are seldom found, and those that are names.
"""

from __future__ import annotations

from collections.abc import Collection

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.text import did_you_mean
from abstain.ingest.privacy.recognizers import NAME_ENTITIES, pattern_recognizers
from abstain.ingest.privacy.search_spans import (
    FindSpans,
    find_card_spans,
    find_email_spans,
    find_iban_spans,
    iter_windows,
    make_hinted_search,
    matching,
    phones,
)

RARE: dict[str, float] = {
    "CREDIT_CARD": 1.0,
    "EMAIL_ADDRESS": 1.0,
    "IBAN_CODE": 1.0,
    "PHONE_NUMBER": 0.4,
    "US_SSN": 0.5,
}
"""Entities that have pieces of their own, with the best score of each."""

_PIECES: dict[str, FindSpans] = {
    "CREDIT_CARD": find_card_spans,
    "EMAIL_ADDRESS": find_email_spans,
    "IBAN_CODE": find_iban_spans,
    "PHONE_NUMBER": phones,
    "US_SSN": matching(r"\d{3}(?<!\w...)[- .]?\d{2}[- .]?\d{4}\b"),
}
_NATIONAL_PHONES = make_hinted_search(r"\d(?:\W{0,4}\d){6}")


def require_known(names: Collection[str], min_score: float) -> None:
    """Raise `AbstainError` for a name that is unknown, or that could never be found with `min_score`."""
    valid = RARE | NAME_ENTITIES
    if not valid.keys() >= set(names):
        found = pattern_recognizers(with_torch=not NAME_ENTITIES.keys().isdisjoint(names))
        valid |= {name: best for name, (_, best) in found.items()}
    for name in names:
        if name not in valid:
            hint = did_you_mean(name.upper(), sorted(valid), "valid entities", cutoff=0.5)
            raise AbstainError(Code.BAD_SETTING, f"privacy.redact: unknown entity '{name}': {hint}")
        if valid[name] < min_score:
            raise AbstainError(
                Code.BAD_SETTING,
                f"privacy.redact: {name} is never surer than {valid[name]:g}, so privacy.min_score = {min_score:g} "
                f"would leave every one in the text: lower the score or take {name} out",
            )


def pieces_of(name: str, *, national_phones: bool) -> FindSpans:
    """The pieces of a view that the recognizer of `name` has to search."""
    if name == "PHONE_NUMBER" and national_phones:
        return _NATIONAL_PHONES
    return _PIECES.get(name, iter_windows)
