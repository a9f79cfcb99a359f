"""What of a refused row may be kept: its JSON object, redacted as an accepted row is.

Notes:

* Text that is not a JSON object is not kept at all: without its fields, nothing tells a user's id from other words.
  The same holds for an object that is ambiguous (a repeated key), or that has such text, or JSON under an unknown
  name, in a cell.
* The search for a person's rows (`named_in`) is this walk, too: where it replaces a user, it finds one.
* In doubt, text is redacted. Only ids, moments, scores and (unless configured) contexts stay, each in its place; a
  misspelt field is redacted as text, and a field that is nearly `user` is treated as it, with all of its content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic_core import from_json

from abstain.core.contracts import Context, Feedback, ImportedInteraction, Review
from abstain.core.json_lines import repeated_keys
from abstain.core.text import nearest
from abstain.ingest.privacy.pseudonyms import bare_name

Change = Callable[[str], str]

_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.,Z+-]*")
_MOMENTS = frozenset({"asked_at", "given_at", "reviewed_at"})
_IDS = {"interaction_id", "chunk_id", "model", "product", "line_of_business", "group", "user", "reviewer"}
_KEPT = frozenset(_IDS | {"inclusion_probability", "propensity", "decision"})
_OBJECTS = ("contexts", "thumb", "review", "writer", "token_log_probs")
_SCORES = "writer"
_ITEM = "*"
_CONTEXT_TEXT = ("contexts", _ITEM, "text")
_OF_PEOPLE = frozenset({"id", "name", "type"})
"""Keys that an object about a person has of itself."""
_KNOWN = frozenset(
    name for contract in (ImportedInteraction, Context, Feedback, Review) for name in contract.model_fields
)


@dataclass(frozen=True)
class Rules:
    """Replacements for typed text, users and reviewers (None: they stay); `contexts`: redact those, too."""

    text: Change
    user: Change | None
    reviewer: Change | None
    contexts: bool


def redact_json(raw: bytes, rules: Rules) -> str | None:
    """The JSON object `raw` by `rules`, as JSON; None where `raw` is none, or where it is ambiguous."""
    fields = _fields_of(raw)
    return None if fields is None else json.dumps(_redact(fields, rules), ensure_ascii=False)


def is_kept(raw: bytes) -> bool:
    """Whether `redact_json` gives anything of `raw`."""
    return _fields_of(raw) is not None


class Named(NamedTuple):
    """Whom and what a row is about: its users, as `bare_name` writes them, and its interaction, if it names one."""

    users: frozenset[str]
    interactions: frozenset[str]


def named_in(raw: bytes) -> Named:
    """Whom the JSON object `raw` names; no one where `redact_json` would not keep it."""
    fields, users = _fields_of(raw) or {}, set[str]()

    def note(text: str) -> str:
        users.add(bare_name(text))
        return text

    _redact(fields, Rules(text=str, user=note, reviewer=None, contexts=True))
    about = fields.get("interaction_id")
    return Named(frozenset(users), frozenset(() if about is None else (str(about).strip(),)))


def _fields_of(raw: bytes) -> dict[str, Any] | None:
    """The fields of the JSON object `raw`; None where a user in it could not be told from other text."""
    try:
        text = raw.decode("utf-8")
        fields = from_json(text)
    except ValueError:
        return None
    if not isinstance(fields, dict) or repeated_keys(text):
        return None
    hides = any(_is_json(cell) for name, cell in fields.items() if name in _OBJECTS or name not in _KNOWN)
    return None if hides else fields


def _is_json(cell: Any) -> bool:
    """Whether a cell of a table was meant to be JSON; it is still text because it cannot be parsed."""
    return isinstance(cell, str) and cell.lstrip().startswith(("[", "{"))


def _redact(value: Any, rules: Rules, under: tuple[str, ...] = (), whose: Change | None = None) -> Any:
    """The replacement for `value`, which stands under these keys; `whose`: the one for a person's name, within one."""
    if isinstance(value, dict):
        return {
            _renamed(key, rules, under, whose): _redact(inner, rules, (*under, key), whose or _person(key, rules))
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_redact(inner, rules, (*under, _ITEM), whose) for inner in value]
    if value is None or isinstance(value, bool) or _is_score(value, under):
        return value
    text = value if isinstance(value, str) else json.dumps(value)
    if whose:
        return whose(text)
    if _stays(text, under, rules):
        return value
    redacted = rules.text(text)
    return value if redacted == text else redacted


def _renamed(key: str, rules: Rules, under: tuple[str, ...], whose: Change | None) -> str:
    """The replacement for a key: `{"user": {"ann": true}}` names a person, too."""
    if key in _KNOWN or under == (_SCORES,):
        return key
    return whose(key) if whose and key not in _OF_PEOPLE else rules.text(key)


def _is_score(value: Any, under: tuple[str, ...]) -> bool:
    place = under[:-1] == (_SCORES,) or under == ("token_log_probs", _ITEM)
    return place and isinstance(value, int | float)


def _stays(text: str, under: tuple[str, ...], rules: Rules) -> bool:
    is_context = under == _CONTEXT_TEXT and not rules.contexts
    return is_context or under[-1] in _KEPT or (under[-1] in _MOMENTS and _MOMENT.fullmatch(text) is not None)


def _person(key: str, rules: Rules) -> Change | None:
    """The replacement for everything under `key`, where it names a person."""
    if key == "reviewer":
        return rules.reviewer
    return rules.user if _means_user(key) else None


def _means_user(key: str) -> bool:
    if key in _KNOWN:
        return key == "user"
    bare = key.casefold().replace("_", "").replace("-", "")
    return nearest(bare, ("user", "userid", "username", "uid"), cutoff=0.75) is not None
