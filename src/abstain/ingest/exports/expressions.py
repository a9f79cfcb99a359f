"""JMESPath expressions (https://jmespath.org) by which a mapping locates values, with two functions of our own.

from_json(text)   the value of the JSON in a text; any other value is unchanged
utc(time)         a time without a zone as UTC, a number as seconds since 1970; a time with a zone is unchanged
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
from abstain.core.text import find_nearest_name


class Expression:
    """One JMESPath expression.

    Args:
        text: The expression's text.

    Attributes:
        text: The expression's text.
        fields: The names of all fields in it.

    Raises:
        ValueError: `text` is not a JMESPath expression.
    """

    def __init__(self, text: str) -> None:
        try:
            self._compiled = jmespath.compile(text)
        except exceptions.JMESPathError as error:
            raise ValueError(
                f"'{text}' is no JMESPath expression ({_format_error(error)}): write a field's name, in double quotes "
                "where it has other characters than letters, digits and _; a fixed text in single quotes"
            ) from None
        self.text = text
        self.fields = frozenset(_iter_fields(self._compiled.parsed))

    def evaluate(self, record: Any) -> Any:
        """Evaluate the expression.

        Args:
            record: The record to search, as JSON values.

        Returns:
            The value; None if the record has none.

        Raises:
            AbstainError: A function of the expression got an unsuitable value.
        """
        try:
            return self._compiled.search(record, _OPTIONS)
        except exceptions.JMESPathError as error:
            raise AbstainError(
                Code.BAD_SETTING, f"'{self.text}': {_format_error(error)}: correct the expression in the mapping"
            ) from None


class TrackedExpression:
    """An expression that tracks whether the records it was evaluated on have the fields it names.

    Attributes:
        records: Number of records so far.
    """

    def __init__(self, expression: Expression) -> None:
        self._expression = expression
        self.records = 0
        self._has_value, self._unseen_fields, self._name_counts = False, set(expression.fields), Counter[str]()

    def evaluate(self, record: Any) -> Any:
        """Evaluate the expression on `record`; see `Expression.evaluate`."""
        value = self._expression.evaluate(record)
        self.records += 1
        self._has_value = self._has_value or value not in (None, False)
        if not self._has_value and self._unseen_fields:
            names = set(iter_field_names(record))
            self._unseen_fields -= names
            self._name_counts.update(names)
        return value

    def find_problem(self) -> str | None:
        """Find a field that the expression names and no record had.

        Returns:
            A message with a hint; None if any record gave a value, or if each of the fields was in some record.
        """
        if not self.records or self._has_value or not self._unseen_fields:
            return None
        missing = min(self._unseen_fields)
        nearest_name = find_nearest_name(missing, self._name_counts)
        common_names = ", ".join(name for name, _ in self._name_counts.most_common(8))
        hint = f"did you mean '{nearest_name}'?" if nearest_name else f"fields there: {common_names}"
        return f"the field '{missing}' is in none of the {self.records:,} records that it is read from: {hint}"


def _parse_expression(value: Any) -> Expression:
    if isinstance(value, Expression):
        return value
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no expression: a fixed value is written \"'{value}'\"")
    return Expression(value)


ExpressionText = Annotated[Any, BeforeValidator(_parse_expression)]
"""An `Expression` as a field of a pydantic model."""


def iter_field_names(value: Any) -> Iterator[str]:
    """Yield the name of every field in `value`, at any depth, including JSON inside texts."""
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
    """Return the value of the JSON text `value`; anything else is unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def to_utc(value: Any) -> Any:
    """Return the time `value` with a zone, as `utc` above; anything else is unchanged, for the contract to reject."""
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


def _iter_fields(node: Any) -> Iterator[str]:
    if node["type"] == "field":
        yield node["value"]
    for child in node["children"]:
        if isinstance(child, dict):
            yield from _iter_fields(child)


def _format_error(error: Exception) -> str:
    return " ".join(str(error).split())
