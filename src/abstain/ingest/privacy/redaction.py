"""Redaction of personal data in a text: `mail ann@example.org` becomes `mail <EMAIL_ADDRESS>`.

Notes:

* Overlapping spans are merged into one, named after the longest: no part of any of them stays.
* A text is searched until nothing more is found, and placeholders are skipped. So redaction is deterministic and
  idempotent: data can be ingested again.
* Detection is only as exact as Presidio; `privacy.keep` lists texts that are not secret, such as the own hotline.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator

from abstain.config.params import PrivacyParams
from abstain.ingest.privacy.entities import SPAN_ENTITIES, get_span_finder, require_valid_entities
from abstain.ingest.privacy.recognizers import (
    NAME_ENTITIES,
    EntityHit,
    FindEntities,
    make_name_finder,
    make_pattern_finder,
    require_phone_regions,
    require_spacy_pipeline,
)
from abstain.ingest.privacy.search_spans import iter_windows, normalize_identifier
from abstain.ingest.privacy.view import make_view, make_views

_ANY_NAME = "names"


class Redactor:
    """Removes entities from texts, for any thread. Recognizers are made when the first text needs them.

    Args:
        params: Privacy parameters; `redact` names the entities.

    Raises:
        AbstainError: An entity or phone region is unknown, or a spaCy pipeline is missing.
    """

    def __init__(self, params: PrivacyParams) -> None:
        require_valid_entities(params.redact, params.min_score)
        require_phone_regions(params.phone_regions)
        entities = tuple(dict.fromkeys(params.redact))
        self._params = params
        self._placeholder = re.compile(f"<(?:{'|'.join(sorted({*SPAN_ENTITIES, *NAME_ENTITIES, *entities}))})>")
        self._names = tuple(name for name in entities if name in NAME_ENTITIES)
        if self._names:
            require_spacy_pipeline(params.names_pipeline)
        has_regions = bool(params.phone_regions)
        self._span_finders = [
            (name, get_span_finder(name, national_phones=has_regions)) for name in entities if name not in NAME_ENTITIES
        ]
        self._kept_texts = {make_view(text).text.strip().casefold() for text in params.keep}
        self._finders: dict[str, FindEntities] = {}
        self._lock = threading.Lock()

    def redact(self, text: str) -> tuple[str, Counter[str]]:
        """Replace the entities in a text by placeholders.

        Args:
            text: The text.

        Returns:
            The text, the same object if there was no entity, and how many of each entity were in it.
        """
        removed: Counter[str] = Counter()
        while spans := merge_hits(self._iter_hits(text)):  # each turn leaves less outside of placeholders, so it ends
            parts, position = [], 0
            for entity, start, end, _ in spans:
                parts += [text[position:start], f"<{entity}>"]
                position = end
                removed[entity] += 1
            text = "".join((*parts, text[position:]))
        return text, removed

    def _iter_hits(self, text: str) -> Iterator[EntityHit]:
        masked = self._placeholder.sub(lambda match: "\n" * len(match[0]), text) if "<" in text else text
        if self._names:  # first, since without them Presidio is imported without torch, which a pipeline may need
            for start, ends in iter_windows(masked):
                yield from self._iter_first_hits(_ANY_NAME, masked, start, ends)
        for view in make_views(masked):
            for entity, find_spans in self._span_finders:
                for start, ends in find_spans(view.text):
                    for hit in self._iter_first_hits(entity, view.text, start, ends):
                        begin, end = view.map_span(hit.start, hit.end)
                        yield hit._replace(start=begin, end=end)

    def _iter_first_hits(self, entity: str, text: str, start: int, ends: Iterable[int]) -> Iterator[EntityHit]:
        """Yield the hits from `start` to the first of `ends` that gives any."""
        find = self._get_finder(entity)
        for end in ends:
            piece = text[start:end]
            normalized = normalize_identifier(entity, piece)
            hits = [hit for hit in find(normalized) if hit.score >= self._params.min_score]
            if normalized != piece:
                hits = [hit._replace(end=len(piece)) for hit in hits if hit.end - hit.start == len(normalized)]
            for hit in hits:
                matched = text[start + hit.start : start + hit.end]
                stripped = matched.strip()
                if any(map(str.isalnum, stripped)) and stripped.casefold() not in self._kept_texts:
                    begin = start + hit.start + matched.index(stripped)
                    yield hit._replace(start=begin, end=begin + len(stripped))
            if hits:
                return

    def _get_finder(self, entity: str) -> FindEntities:
        if entity in self._finders:
            return self._finders[entity]
        with self._lock:
            if entity not in self._finders:
                self._finders[entity] = (
                    make_name_finder(self._names, self._params.names_pipeline)
                    if entity == _ANY_NAME
                    else make_pattern_finder(entity, self._params.phone_regions)
                )
        return self._finders[entity]


def merge_hits(hits: Iterable[EntityHit]) -> list[EntityHit]:
    """Merge overlapping hits.

    Args:
        hits: Hits in any order.

    Returns:
        Hits in order without overlaps. A merged hit has the name of the longest of its hits, then of the one with the
        best score.
    """
    merged: list[list[EntityHit]] = []
    reach = 0
    for hit in sorted(set(hits), key=lambda hit: (hit.start, hit.end, hit.entity)):
        if merged and hit.start < reach:
            merged[-1].append(hit)
        else:
            merged.append([hit])
        reach = max(reach, hit.end)
    return [_merge_cluster(cluster) for cluster in merged]


def _merge_cluster(cluster: list[EntityHit]) -> EntityHit:
    best = max(cluster, key=lambda hit: (hit.end - hit.start, hit.score, hit.entity))
    return best._replace(start=cluster[0].start, end=max(hit.end for hit in cluster))
