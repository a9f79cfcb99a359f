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
from abstain.ingest.privacy.entities import RARE, pieces_of, require_known
from abstain.ingest.privacy.recognizers import (
    NAME_ENTITIES,
    EntityHit,
    FindEntities,
    name_finder,
    pattern_finder,
    require_regions,
    require_spacy_pipeline,
)
from abstain.ingest.privacy.search_spans import iter_windows, normalize_identifier
from abstain.ingest.privacy.view import view_of, views_of

_ANY_NAME = "names"


class Redactor:
    """Removes the entities of `params.redact`, for any thread. Recognizers are made when the first text needs them.

    Raises `AbstainError` for an unknown entity or phone region, and for a spaCy pipeline that is missing.
    """

    def __init__(self, params: PrivacyParams) -> None:
        require_known(params.redact, params.min_score)
        require_regions(params.phone_regions)
        wanted = tuple(dict.fromkeys(params.redact))
        self._params = params
        self._placeholder = re.compile(f"<(?:{'|'.join(sorted({*RARE, *NAME_ENTITIES, *wanted}))})>")
        self._names = tuple(name for name in wanted if name in NAME_ENTITIES)
        if self._names:
            require_spacy_pipeline(params.names_pipeline)
        national = bool(params.phone_regions)
        self._patterns = [
            (name, pieces_of(name, national_phones=national)) for name in wanted if name not in NAME_ENTITIES
        ]
        self._keep = {view_of(kept).text.strip().casefold() for kept in params.keep}
        self._finders: dict[str, FindEntities] = {}
        self._making = threading.Lock()

    def redact(self, text: str) -> tuple[str, Counter[str]]:
        """`text` without the entities, and how many of each were in it; the same object where there was none."""
        removed: Counter[str] = Counter()
        while spans := merge_hits(self._hits(text)):  # each turn leaves less outside of placeholders, so it ends
            parts, done = [], 0
            for entity, start, end, _ in spans:
                parts += [text[done:start], f"<{entity}>"]
                done = end
                removed[entity] += 1
            text = "".join((*parts, text[done:]))
        return text, removed

    def _hits(self, text: str) -> Iterator[EntityHit]:
        seen = self._placeholder.sub(lambda match: "\n" * len(match[0]), text) if "<" in text else text
        if self._names:  # first, since without them Presidio is imported without torch, which a pipeline may need
            for start, ends in iter_windows(seen):
                yield from self._first(_ANY_NAME, seen, start, ends)
        for view in views_of(seen):
            for entity, pieces in self._patterns:
                for start, ends in pieces(view.text):
                    for hit in self._first(entity, view.text, start, ends):
                        begin, end = view.place(hit.start, hit.end)
                        yield hit._replace(start=begin, end=end)

    def _first(self, entity: str, text: str, start: int, ends: Iterable[int]) -> Iterator[EntityHit]:
        """The hits from `start` to the first of `ends` that gives any."""
        find = self._finder(entity)
        for end in ends:
            piece = text[start:end]
            shown = normalize_identifier(entity, piece)
            hits = [hit for hit in find(shown) if hit.score >= self._params.min_score]
            if shown != piece:
                hits = [hit._replace(end=len(piece)) for hit in hits if hit.end - hit.start == len(shown)]
            for hit in hits:
                found = text[start + hit.start : start + hit.end]
                bare = found.strip()
                if any(map(str.isalnum, bare)) and bare.casefold() not in self._keep:
                    begin = start + hit.start + found.index(bare)
                    yield hit._replace(start=begin, end=begin + len(bare))
            if hits:
                return

    def _finder(self, entity: str) -> FindEntities:
        if entity in self._finders:
            return self._finders[entity]
        with self._making:
            if entity not in self._finders:
                self._finders[entity] = (
                    name_finder(self._names, self._params.names_pipeline)
                    if entity == _ANY_NAME
                    else pattern_finder(entity, self._params.phone_regions)
                )
        return self._finders[entity]


def merge_hits(hits: Iterable[EntityHit]) -> list[EntityHit]:
    """Hits in order, none overlapping another: what overlaps is one, with the name of the longest, then the surest."""
    merged: list[list[EntityHit]] = []
    reach = 0
    for hit in sorted(set(hits), key=lambda hit: (hit.start, hit.end, hit.entity)):
        if merged and hit.start < reach:
            merged[-1].append(hit)
        else:
            merged.append([hit])
        reach = max(reach, hit.end)
    return [_join(cluster) for cluster in merged]


def _join(cluster: list[EntityHit]) -> EntityHit:
    best = max(cluster, key=lambda hit: (hit.end - hit.start, hit.score, hit.entity))
    return best._replace(start=cluster[0].start, end=max(hit.end for hit in cluster))
