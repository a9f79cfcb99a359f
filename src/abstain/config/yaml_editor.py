"""Edits of YAML files that keep comments, quotes and layout."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap


def parse_yaml(text: str) -> Any:
    """The content of `text`, with its comments and quotes, for the functions below."""
    return _editor().load(text)


def update_yaml(text: str, values: Mapping[Any, Any]) -> str:
    """`text` with `values` in place of its own; a section in `values` takes over only the keys that it gives.

    A number as key is a position in a list.
    """
    content = parse_yaml(text)
    _replace_keys(content, values)
    return _dump(content)


def add_missing(text: str, template: str) -> tuple[str, list[str]]:
    """`text` with the sections and keys that only `template` has, at its places, with its values and comments.

    Returns the new text and the names of what was added, as `section` or `section.key`.
    """
    content, wanted = parse_yaml(text), parse_yaml(template)
    added = _insert(content, wanted)
    for name in wanted:
        if isinstance(content[name], CommentedMap) and isinstance(wanted[name], CommentedMap) and name not in added:
            added += [f"{name}.{key}" for key in _insert(content[name], wanted[name])]
    return (_dump(content) if added else text), added


def _replace_keys(section: Any, differing: Mapping[Any, Any]) -> None:
    for key, value in differing.items():
        inside = section[key] if isinstance(section, list) or key in section else None
        is_entry = isinstance(inside, list) and isinstance(value, Mapping) and all(isinstance(at, int) for at in value)
        if is_entry or (isinstance(value, Mapping) and isinstance(inside, Mapping)):
            _replace_keys(inside, value)
        else:
            section[key] = value


def _insert(section: CommentedMap, wanted: CommentedMap) -> list[str]:
    """Insert the missing keys of `wanted` into `section`, each after the key that it follows there."""
    added = []
    for at, key in enumerate(wanted):
        if key in section:
            continue
        before = [other for other in list(wanted)[:at] if other in section]
        place = list(section).index(before[-1]) + 1 if before else 0
        was_last = place == len(section)
        section.insert(place, key, wanted[key])
        if key in wanted.ca.items:
            section.ca.items[key] = wanted.ca.items[key]
        if was_last and before and before[-1] in section.ca.items:
            _end_with_one_line_break(section.ca.items[before[-1]])
        added.append(key)
    return added


def _end_with_one_line_break(comment: list[Any]) -> None:
    """The blank line after a section belongs to the comment of its last key, which this key no longer is."""
    for token in filter(None, comment):
        if not isinstance(token, list):
            token.value = token.value.rstrip("\n") + "\n"


def _dump(content: Any) -> str:
    text = io.StringIO()
    _editor().dump(content, text)
    return text.getvalue()


def _editor() -> YAML:
    editor = YAML()
    editor.preserve_quotes = True
    editor.width = 4096
    editor.indent(mapping=2, sequence=4, offset=2)
    editor.representer.add_representer(type(None), _null)
    return editor


def _null(representer: Any, _value: None) -> Any:
    return representer.represent_scalar("tag:yaml.org,2002:null", "null")
