"""Edits of YAML files that keep comments, quotes and layout."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap


def parse_yaml(text: str) -> Any:
    """Parse `text` and keep its comments and quotes, for the functions below."""
    return _make_editor().load(text)


def update_yaml(text: str, values: Mapping[Any, Any]) -> str:
    """Replace values in a YAML text; a section in `values` replaces only the keys that it has.

    Args:
        text: The YAML text.
        values: Key -> new value; a number as key is a position in a list.

    Returns:
        The new text.
    """
    content = parse_yaml(text)
    _replace_keys(content, values)
    return _dump(content)


def add_missing_keys(text: str, template: str) -> tuple[str, list[str]]:
    """Add the sections and keys that only a template has, at its places, with its values and comments.

    Args:
        text: The YAML text.
        template: The template.

    Returns:
        The new text, and the names of the added entries, as `section` or `section.key`.
    """
    content, template_content = parse_yaml(text), parse_yaml(template)
    added = _insert_missing_keys(content, template_content)
    for name in template_content:
        if (
            isinstance(content[name], CommentedMap)
            and isinstance(template_content[name], CommentedMap)
            and name not in added
        ):
            added += [f"{name}.{key}" for key in _insert_missing_keys(content[name], template_content[name])]
    return (_dump(content) if added else text), added


def _replace_keys(section: Any, values: Mapping[Any, Any]) -> None:
    for key, value in values.items():
        current = section[key] if isinstance(section, list) or key in section else None
        is_entry = (
            isinstance(current, list) and isinstance(value, Mapping) and all(isinstance(index, int) for index in value)
        )
        if is_entry or (isinstance(value, Mapping) and isinstance(current, Mapping)):
            _replace_keys(current, value)
        else:
            section[key] = value


def _insert_missing_keys(section: CommentedMap, template: CommentedMap) -> list[str]:
    """Insert the missing keys of `template` into `section`, each after the key that it follows there."""
    added = []
    for index, key in enumerate(template):
        if key in section:
            continue
        preceding = [previous_key for previous_key in list(template)[:index] if previous_key in section]
        position = list(section).index(preceding[-1]) + 1 if preceding else 0
        was_last = position == len(section)
        section.insert(position, key, template[key])
        if key in template.ca.items:
            section.ca.items[key] = template.ca.items[key]
        if was_last and preceding and preceding[-1] in section.ca.items:
            _end_with_one_line_break(section.ca.items[preceding[-1]])
        added.append(key)
    return added


def _end_with_one_line_break(comment: list[Any]) -> None:
    """Remove the blank line after a section.

    It belongs to the comment of the last key, and this key is no longer the last.
    """
    for token in filter(None, comment):
        if not isinstance(token, list):
            token.value = token.value.rstrip("\n") + "\n"


def _dump(content: Any) -> str:
    text = io.StringIO()
    _make_editor().dump(content, text)
    return text.getvalue()


def _make_editor() -> YAML:
    editor = YAML()
    editor.preserve_quotes = True
    editor.width = 4096
    editor.indent(mapping=2, sequence=4, offset=2)
    editor.representer.add_representer(type(None), _represent_null)
    return editor


def _represent_null(representer: Any, _value: None) -> Any:
    return representer.represent_scalar("tag:yaml.org,2002:null", "null")
