"""Metadata at the beginning of a Markdown file: YAML between lines of `---`, or TOML between lines of `+++`."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from typing import Any

import yaml

from abstain.core.codes import Code
from abstain.core.errors import AbstainError

# A line of `---` is also a rule in Markdown, so the line below it has to name a field.
_YAML = re.compile(r"\A\s*^---[ \t]*\n(?=---|[\"'\w#])(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_TOML = re.compile(r"\A\s*^\+\+\+[ \t]*\n(.*?)^\+\+\+[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
# Errors of PyYAML's constructors and parsers for odd input: 2026-13-45, `!!bool x`, a thousand brackets or nested tags.
_YAML_ERRORS = (
    yaml.YAMLError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    TypeError,
    RecursionError,
)


def split_front_matter(text: str) -> tuple[dict[str, Any], str]:
    """Split a Markdown file into its metadata and its text.

    Args:
        text: The file.

    Returns:
        Field name -> value, empty if there is no front matter, and the text below it.

    Raises:
        AbstainError: The front matter cannot be read, or names a field twice.
    """
    for pattern, parse in ((_YAML, _parse_yaml), (_TOML, _parse_toml)):
        if match := pattern.match(text):
            return parse(match[1]), text[match.end() :]
    return {}, text


def _parse_yaml(text: str) -> dict[str, Any]:
    try:
        fields = yaml.load(text, _StrictLoader)  # noqa: S506 (a SafeLoader)
    except _YAML_ERRORS as error:
        raise _make_error(f"is not valid YAML: {' '.join(str(error).split())}") from None
    if fields is not None and not isinstance(fields, dict):
        raise _make_error("holds no 'name: value' lines: add doc_id, title, updated_at, or leave it out")
    return {str(name): value for name, value in (fields or {}).items()}


def _parse_toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise _make_error(f"is not valid TOML: {error}") from None


def _make_error(problem: str) -> AbstainError:
    return AbstainError(Code.INVALID_ROW, f"the front matter {problem}")


class _StrictLoader(yaml.SafeLoader):
    """YAML's safe loader without duplicate names in one mapping, including merged ones (`<<`): YAML keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        if isinstance(node, yaml.MappingNode):
            self.flatten_mapping(node)
            names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            if duplicates := [name for name, times in Counter(names).items() if times > 1]:
                raise _make_error(f"names '{' '.join(duplicates[0].split())}' twice: keep one of the two")
        return super().construct_mapping(node, deep)
