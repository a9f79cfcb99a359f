"""Edits of YAML files that keep comments, quotes and layout."""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping
from itertools import pairwise
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap


def parse(text: str) -> Any:
    """The content of `text`, with its comments and quotes, for the functions below."""
    return _editor().load(text)


def edit(text: str, values: Mapping[Any, Any]) -> str:
    """`text` with `values` in place of its own; a section in `values` takes over only the keys that it gives.

    A number as key is a position in a list.
    """
    content = parse(text)
    _replace_keys(content, values)
    return _dump(content)


def add_missing(text: str, template: str) -> tuple[str, list[str]]:
    """`text` with the sections and keys that only `template` has, at its places, with its values and comments.

    Returns the new text and the names of what was added, as `section` or `section.key`.
    """
    content, wanted = parse(text), parse(template)
    added = _insert(content, wanted)
    for name in wanted:
        if isinstance(content[name], CommentedMap) and isinstance(wanted[name], CommentedMap) and name not in added:
            added += [f"{name}.{key}" for key in _insert(content[name], wanted[name])]
    return (_dump(content) if added else text), added


def remove(text: str, names: Collection[str]) -> str:
    """`text` without the keys `names`, each as `section.key`; a section that has no others is removed, too.

    Comments in lines of their own stay.
    """
    text = _remove_in_braces(text, names)
    starts: list[tuple[int, bool]] = []  # the line of every section and key, and whether that is removed
    content = parse(text)
    for name, keys in content.items():
        leaves = [f"{name}.{key}" in names for key in keys] if isinstance(keys, CommentedMap) else []
        starts.append((content.lc.key(name)[0], bool(leaves) and all(leaves)))
        if leaves and not keys.fa.flow_style():
            starts += [(keys.lc.key(key)[0], is_removed) for key, is_removed in zip(keys, leaves, strict=True)]
    lines = text.splitlines(keepends=True)
    for (start, is_removed), (end, _) in reversed(list(pairwise([*starts, (len(lines), False)]))):
        if is_removed:
            _remove_lines(lines, start, end)
    return "".join(lines)


def _remove_in_braces(text: str, names: Collection[str]) -> str:
    """Remove the keys of sections in braces that keep others."""
    content, is_changed = parse(text), False
    for name, keys in content.items():
        leaving = [key for key in keys if f"{name}.{key}" in names] if isinstance(keys, CommentedMap) else []
        if leaving and keys.fa.flow_style() and len(leaving) < len(keys):
            is_changed = True
            for key in leaving:
                del keys[key]
    return _dump(content) if is_changed else text


def _remove_lines(lines: list[str], start: int, end: int) -> None:
    """Remove the lines from `start` to before `end`, but the comments and blank lines at their end."""
    while not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#"):
        end -= 1
    del lines[start:end]
    if start and not "".join(lines[start - 1 : start + 1]).strip():  # two blank lines, or one at the end
        del lines[start - 1]


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
