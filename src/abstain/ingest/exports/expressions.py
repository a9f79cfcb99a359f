"""JMESPath (https://jmespath.org), in which a mapping says where a value stands, with two functions of our own.

from_json(text)   the value that JSON in a text stands for; what is no such text stays as it is
utc(time)         a time without a zone as UTC, a number as seconds since 1970; what has a zone stays as it is
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import jmespath
from jmespath import exceptions, functions
from pydantic import BeforeValidator

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.text import nearest


class Expression:
    """One JMESPath expression. Raises `ValueError` where it is none."""

    def __init__(self, text: str) -> None:
        try:
            self._compiled = jmespath.compile(text)
        except exceptions.JMESPathError as error:
            raise ValueError(
                f"'{text}' is no JMESPath expression ({_reason(error)}): write a field's name, in double quotes where "
                "it has other characters than letters, digits and _; a fixed text in single quotes"
            ) from None
        self.text = text
        self.fields = frozenset(_fields(self._compiled.parsed))
        """Every name of a field in it."""

    def evaluate(self, record: Any) -> Any:
        """The value that it has in `record`; None where there is none. Raises `AbstainError` for a wrong function."""
        try:
            return self._compiled.search(record, _OPTIONS)
        except exceptions.JMESPathError as error:
            raise AbstainError(
                Code.BAD_SETTING, f"'{self.text}': {_reason(error)}: correct the expression in the mapping"
            ) from None


class TrackedExpression:
    """An expression that knows whether the records that it was read from have what it names."""

    def __init__(self, expression: Expression) -> None:
        self._expression = expression
        self.records = 0
        self._found, self._unseen, self._names = False, set(expression.fields), Counter[str]()

    def evaluate(self, record: Any) -> Any:
        """As `Expression.of`."""
        value = self._expression.evaluate(record)
        self.records += 1
        self._found = self._found or value not in (None, False)
        if not self._found and self._unseen:
            names = set(iter_field_names(record))
            self._unseen -= names
            self._names.update(names)
        return value

    def problem(self) -> str | None:
        """A field that it names, and no record had, with a hint; None where it ever had a value, or all its fields."""
        if not self.records or self._found or not self._unseen:
            return None
        missing = min(self._unseen)
        close = nearest(missing, self._names)
        known = ", ".join(name for name, _ in self._names.most_common(8))
        hint = f"did you mean '{close}'?" if close else f"fields there: {known}"
        return f"the field '{missing}' is in none of the {self.records:,} records that it is read from: {hint}"


def _parse(value: Any) -> Expression:
    if isinstance(value, Expression):
        return value
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no expression: a fixed value is written \"'{value}'\"")
    return Expression(value)


ExpressionText = Annotated[Any, BeforeValidator(_parse)]
"""An `Expression` as a field of a pydantic model."""


def iter_field_names(value: Any) -> Iterator[str]:
    """Every name of a field in `value`, at any depth, JSON in texts included."""
    if isinstance(value, dict):
        yield from value
        for inner in value.values():
            yield from iter_field_names(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from iter_field_names(inner)
    elif isinstance(value, str) and value[:1] in ("{", "["):
        parsed = from_json(value)
        if not isinstance(parsed, str):
            yield from iter_field_names(parsed)


def from_json(value: Any) -> Any:
    """See the module."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def to_utc(value: Any) -> Any:
    """See the module. What is no time stays as it is, for the contract to refuse."""
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC).isoformat()
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError, OverflowError, OSError):
        return value
    return value if moment.tzinfo else moment.replace(tzinfo=UTC).isoformat()


class _Functions(functions.Functions):  # type: ignore[misc]
    @functions.signature({"types": []})  # type: ignore[untyped-decorator]
    def _func_from_json(self, value: Any) -> Any:
        return from_json(value)

    @functions.signature({"types": []})  # type: ignore[untyped-decorator]
    def _func_utc(self, value: Any) -> Any:
        return to_utc(value)


_OPTIONS = jmespath.Options(custom_functions=_Functions())


def _fields(node: Any) -> Iterator[str]:
    if node["type"] == "field":
        yield node["value"]
    for child in node["children"]:
        if isinstance(child, dict):
            yield from _fields(child)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())
