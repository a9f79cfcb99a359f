"""Redaction of a refused row's raw text, as for an accepted row.

Notes:

* The text is changed where it stands: string by string, in a walk over the JSON's tokens that needs no valid JSON.
  Line breaks, order, repeated keys and numbers stay as they came, so valid JSON stays valid, and a line that was cut
  short or has a field too many is redacted as far as it goes.
* In doubt, text is redacted. Only ids, moments and (unless configured) contexts stay, each in its place; a misspelt
  field is redacted as text, and a field that is nearly `user` is treated as it, with all of its content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from abstain.core.contracts import Context, Feedback, ImportedInteraction, Review
from abstain.core.suggest import nearest

Change = Callable[[str], str]

_TOKEN = re.compile(r'"(?P<string>(?:[^"\\]++|\\.)*+)(?P<closing>"?)|(?P<mark>[{}\[\],:])', re.DOTALL)
_NUMBER = re.compile(r"-?\d[\d.eE+-]*")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.,Z+-]*")
_MOMENTS = frozenset({"asked_at", "given_at", "reviewed_at"})
_IDS = {"interaction_id", "chunk_id", "model", "product", "line_of_business", "group", "user", "reviewer"}
_KEPT = frozenset(_IDS | {"inclusion_probability"})
_KNOWN = frozenset(
    name for contract in (ImportedInteraction, Context, Feedback, Review) for name in contract.model_fields
)
_DEEPEST = 100
"""Of nested objects and arrays: beyond that it is no row, and only text is looked at."""


@dataclass(frozen=True)
class Rules:
    """Replacements for typed text, users and reviewers (None: they stay); `contexts`: redact those, too."""

    text: Change
    user: Change | None
    reviewer: Change | None
    contexts: bool


def redact_raw(raw: bytes, rules: Rules) -> bytes:
    """`raw` by `rules`; bytes that are no UTF-8 stay as they are."""
    if b"\0" in raw:  # no JSON in UTF-8 has one: it is UTF-16 or worse, and nothing would be found in it
        bare = raw.replace(b"\0", b"")
        redacted = redact_raw(bare, rules)
        return raw if redacted == bare else redacted
    text = raw.decode("utf-8", "surrogateescape")
    return "".join(_parts(text, rules)).encode("utf-8", "surrogateescape")


@dataclass(slots=True)
class _Open:
    """An object or an array that is open: under which keys (the first ones), and whose it is (`user`'s, say)."""

    is_object: bool
    under: tuple[str, ...] = ()
    name: str = ""
    whose: Change | None = None
    expects_key: bool = False


class _Walk:
    """The position of a walk over tokens, as far as it is known."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._open = [_Open(is_object=False)]
        self._deeper = 0

    @property
    def expects_key(self) -> bool:
        return self._open[-1].expects_key

    def step(self, mark: str) -> None:
        inner = self._open[-1]
        if mark in "{[":
            if len(self._open) > _DEEPEST:
                self._deeper += 1
            else:
                self._open.append(_Open(mark == "{", inner.under[:3], inner.name, inner.whose, mark == "{"))
        elif mark in "}]":
            if self._deeper:
                self._deeper -= 1
            elif len(self._open) > 1:
                self._open.pop()
        elif inner.is_object:
            inner.expects_key = mark == ","

    def name(self, key: str) -> None:
        """The value that follows stands under `key`."""
        inner, outer = self._open[-1], self._open[-2]
        inner.name, inner.under = key, (*outer.under, key)
        inner.whose = outer.whose or _whose(key, self._rules)

    def change(self, value: str) -> str:
        """The replacement for a value at this position."""
        here = self._open[-1]
        if here.whose:
            return here.whose(value)
        is_context = here.under == ("contexts", "text") and here.is_object and not self._rules.contexts
        is_moment = here.name in _MOMENTS and _MOMENT.fullmatch(value)
        is_kept = is_context or is_moment or here.name in _KEPT
        return value if is_kept else self._rules.text(value)


def _whose(key: str, rules: Rules) -> Change | None:
    """The replacement for everything under `key`, where it names a person."""
    if key == "reviewer":
        return rules.reviewer
    return rules.user if _means_user(key) else None


@cache
def _means_user(key: str) -> bool:
    if key in _KNOWN:
        return key == "user"
    bare = key.casefold().replace("_", "").replace("-", "")
    return nearest(bare, ("user", "userid", "username"), cutoff=0.75) is not None


def _parts(text: str, rules: Rules) -> Iterator[str]:
    walk, done = _Walk(rules), 0
    for token in _TOKEN.finditer(text):
        if token.start() > done:
            yield _between(text[done : token.start()], walk)
        done = token.end()
        if token["mark"]:
            walk.step(token["mark"])
            yield token[0]
        elif walk.expects_key:
            key = _decoded(token["string"])
            walk.name(token["string"] if key is None else key)
            yield _in_string(token, lambda key: key if key in _KNOWN else rules.text(key))
        else:
            yield _in_string(token, walk.change)
    yield _between(text[done:], walk)


def _in_string(token: re.Match[str], change: Change) -> str:
    """A string of JSON with its value changed, without its last quote where it had none."""
    literal = token["string"]
    value = _decoded(literal)
    if value is None:
        return f'"{change(literal)}{token["closing"]}'
    changed = change(value)
    if changed == value:
        return token[0]
    escaped = "\\u" in literal  # a surrogate that was written as an escape has to stay one
    return f'"{json.dumps(changed, ensure_ascii=escaped)[1:-1]}{token["closing"]}'


def _decoded(literal: str) -> str | None:
    """The value of a string of JSON; None where it is cut short within an escape, or has an invalid one."""
    if "\\" not in literal:
        return literal
    try:
        return str(json.loads(f'"{literal}"', strict=False))
    except ValueError:
        return None


def _between(text: str, walk: _Walk) -> str:
    """What is neither string nor mark: white space, numbers and the three words of JSON, or what is no JSON."""
    bare = text.strip()
    if bare in ("", "null", "true", "false"):
        return text
    changed = walk.change(bare)
    if changed == bare:
        return text
    return text.replace(bare, json.dumps(changed) if _NUMBER.fullmatch(bare) else changed)
