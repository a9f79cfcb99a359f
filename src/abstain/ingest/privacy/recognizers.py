"""Presidio's recognizers, one function per entity; the only module that imports Presidio and spaCy, and only on use.

Notes:

* Recognizers of patterns are called directly. Presidio's `AnalyzerEngine` would run an NLP pipeline over every text, a
  hundred times as slow, to raise scores by the words around; without it a score is the pattern's own.
* Nothing goes to the network. Presidio's e-mail recognizer lets tldextract fetch a list of domains when first used;
  here the list is the one that the package ships, kept in memory. Names of private networks count as domains, too.
* Presidio's patterns miss two common kinds of card, which are added: Mastercards that begin with 2, and 19 digits.
* Presidio imports torch and transformers if they are installed. Patterns need neither, so they are hidden from it for
  that moment: 1.2 s and 110 MB instead of 7 s and 430 MB.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from abstain.core.codes import Code
from abstain.core.errors import AbstainError

NAME_ENTITIES: dict[str, float] = {"LOCATION": 0.85, "NRP": 0.85, "ORGANIZATION": 0.85, "PERSON": 0.85}
"""Entities that a spaCy pipeline finds, without scores; the values are the score that Presidio gives all of them."""

PRIVATE_NETWORKS = ("corp", "home", "internal", "intranet", "lan", "local", "localdomain", "private")
_MORE_CARDS = {
    "Mastercard, 2-series": r"\b2(?:22[1-9]|2[3-9]\d|[3-6]\d{2}|7[01]\d|720)[- ]?\d{4}[- ]?\d{4}[- ]?\d{4}\b",
    "19 digits": r"\b[46]\d{3}[- ]?\d{4}[- ]?\d{4}[- ]?\d{4}[- ]?\d{3}\b",
}


class EntityHit(NamedTuple):
    """A recognizer's hit.

    Attributes:
        entity: Name of the entity.
        start: First character in the recognizer's input.
        end: Character after the last one.
        score: Score from 0 to 1.
    """

    entity: str
    start: int
    end: int
    score: float


FindEntities = Callable[[str], Sequence[EntityHit]]


@cache
def load_pattern_recognizers(*, with_torch: bool = False) -> dict[str, tuple[Any, float]]:
    """Import Presidio's recognizers of patterns.

    Args:
        with_torch: Whether a spaCy pipeline is to be loaded later, which may be made with torch.

    Returns:
        Entity -> the recognizer's class, and the best score that it can give.
    """
    with _hide_modules("transformers", *(() if with_torch else ("torch",))):
        from presidio_analyzer import PatternRecognizer, predefined_recognizers

    logging.getLogger("presidio-analyzer").setLevel(logging.CRITICAL)  # its log messages quote the text
    recognizers: dict[str, tuple[Any, float]] = {}
    for kind in (getattr(predefined_recognizers, name) for name in predefined_recognizers.__all__):
        if kind is predefined_recognizers.PhoneRecognizer:
            recognizers["PHONE_NUMBER"] = kind, kind.SCORE
        elif isinstance(kind, type) and issubclass(kind, PatternRecognizer):
            recognizer: Any = kind()  # type: ignore[call-arg]  # each subclass knows its own entity
            # A checksum that is right makes a hit sure, whatever its pattern's score.
            is_checked = kind.validate_result is not PatternRecognizer.validate_result
            best_score = 1.0 if is_checked else max(pattern.score for pattern in recognizer.patterns)
            recognizers[recognizer.supported_entities[0]] = kind, best_score
    return recognizers


def make_pattern_finder(entity: str, phone_regions: Sequence[str] = ()) -> FindEntities:
    """Make the function that finds one entity of `load_pattern_recognizers`.

    Args:
        entity: Name of the entity.
        phone_regions: ISO 3166 codes of regions. Without any, only phone numbers with `+` and a country code are found.

    Returns:
        The function.
    """
    kind, _ = load_pattern_recognizers()[entity]
    match entity:
        case "CREDIT_CARD":
            recognizer = _make_card_recognizer()
        case "EMAIL_ADDRESS":
            recognizer = _make_email_recognizer()
        case "IBAN_CODE":
            recognizer = kind(exact_match=True)
        case "PHONE_NUMBER":
            # To phonenumbers, ZZ is no region: a number has to bring its country along.
            recognizer = kind(supported_regions=tuple(phone_regions) or ("ZZ",))
        case _:
            recognizer = kind()

    def find(text: str) -> list[EntityHit]:
        if entity == "IBAN_CODE":  # Presidio finds no IBAN in lower case
            text = text.upper()
        elif entity == "EMAIL_ADDRESS":  # nor a domain with two hyphens together, as in xn--mnchen-3ya.de
            text = text.replace("--", "-0")
        results = recognizer.analyze(text, [entity])
        return [EntityHit(entity, hit.start, hit.end, hit.score) for hit in results]

    return find


def require_phone_regions(regions: Sequence[str]) -> None:
    """Check phone regions.

    Args:
        regions: ISO 3166 codes.

    Raises:
        AbstainError: A region is unknown.
    """
    if not regions:
        return
    import phonenumbers

    for region in regions:
        if region not in phonenumbers.SUPPORTED_REGIONS:
            raise AbstainError(
                Code.BAD_SETTING,
                f"privacy.phone_regions: '{region}' is no region: write ISO 3166 codes in capitals, as in DE, GB, US",
            )


def require_spacy_pipeline(pipeline: str) -> None:
    """Check that a spaCy pipeline is installed.

    Args:
        pipeline: Name or folder of the pipeline.

    Raises:
        AbstainError: It is not installed.
    """
    is_package = pipeline.isidentifier() and importlib.util.find_spec(pipeline) is not None
    if not is_package and not (pipeline and Path(pipeline).is_dir()):
        raise AbstainError(
            Code.NO_PACKAGE,
            f"privacy.redact: {', '.join(NAME_ENTITIES)} need the spaCy pipeline '{pipeline}', which is not installed: "
            "pip install 'abstain[names]', or take them out, or set privacy.names_pipeline",
        )


def make_name_finder(entities: Sequence[str], pipeline: str) -> FindEntities:
    """Make the function that finds several entities by one run of a spaCy pipeline.

    Args:
        entities: Names of `NAME_ENTITIES`.
        pipeline: Name or folder of the pipeline.

    Returns:
        The function, which several threads may call.

    Raises:
        AbstainError: The pipeline cannot be loaded.
    """
    with _hide_modules("transformers"):  # but not torch: the pipeline may be made with it
        import spacy
        from presidio_analyzer.nlp_engine import SpacyNlpEngine
        from presidio_analyzer.predefined_recognizers import SpacyRecognizer

    logging.getLogger("presidio-analyzer").setLevel(logging.CRITICAL)
    try:
        loaded = spacy.load(pipeline, exclude=["tagger", "parser", "attribute_ruler", "lemmatizer"])
    except (OSError, ValueError) as error:
        problem = " ".join(str(error).split())
        raise AbstainError(Code.NO_MODEL, f"privacy.names_pipeline: '{pipeline}' cannot be loaded: {problem}") from None
    engine: Any = SpacyNlpEngine(models=[{"lang_code": "en", "model_name": pipeline}])
    engine.nlp = {"en": loaded}  # its own load() would download a pipeline that is missing
    recognizer = SpacyRecognizer(supported_entities=list(entities))
    lock = threading.Lock()  # spaCy does not promise that a pipeline may be run by several threads

    def find(text: str) -> list[EntityHit]:
        with lock:
            results = recognizer.analyze(text, list(entities), engine.process_text(text, "en"))
        return [EntityHit(hit.entity_type, hit.start, hit.end, hit.score) for hit in results]

    return find


@contextmanager
def _hide_modules(*modules: str) -> Iterator[None]:
    """Let imports of these modules fail, unless they are imported already."""
    hidden_modules = [name for name in modules if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden_modules))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden_modules:
            del sys.modules[name]


def _make_card_recognizer() -> Any:
    from presidio_analyzer import Pattern
    from presidio_analyzer.predefined_recognizers import CreditCardRecognizer

    patterns = [Pattern(name, regex, 0.3) for name, regex in _MORE_CARDS.items()]
    return CreditCardRecognizer(patterns=[*CreditCardRecognizer.PATTERNS, *patterns])


def _make_email_recognizer() -> Any:
    import tldextract
    from presidio_analyzer.predefined_recognizers import EmailRecognizer

    domains = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None, extra_suffixes=PRIVATE_NETWORKS)

    class OfflineEmailRecognizer(EmailRecognizer):
        def validate_result(self, pattern_text: str) -> bool:
            return domains(pattern_text).fqdn != ""

    return OfflineEmailRecognizer()
