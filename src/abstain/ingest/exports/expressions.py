"""JMESPath expressions (https://jmespath.org) by which a mapping locates values, with functions of our own.

from_json(text)            the value of the JSON in a text; any value but a text is unchanged
literal(text)              the value of a text as Python prints it, such as a list; any value but a text is unchanged
number(text, decimal)      the number in a text whose decimal sign is `,` or `.`; a number is unchanged
replace(text, old, new)    the text with `new` for each `old`
split(text, separator)     the parts of a text that are not blank
time(text, format, zone)   a time in a format of strptime, or a day number of Excel (`excel`), of an IANA time zone
utc(time)                  a time without a zone as UTC, a number as seconds since 1970; a time with a zone is unchanged

A function gives null for null, and for a text that it cannot read.
"""

from __future__ import annotations

import ast
import io
import json
import math
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import jmespath
from jmespath import exceptions, functions, visitor
from pydantic import BeforeValidator

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.text import find_nearest_name

MAX_LITERAL_CHARACTERS = 500_000
"""The longest text that `literal` reads: its syntax tree takes a hundred times as much memory."""

_JSON = json.JSONDecoder(parse_constant={"NaN": None, "Infinity": math.inf, "-Infinity": -math.inf}.get)
_EXCEL_EPOCH = datetime(1899, 12, 30)
_NULL_TEXTS = {"from_json": ("null", "NaN"), "literal": ("None", "nan")}
_NUMBER_BY_DECIMAL = {
    decimal: re.compile(
        rf"([+-]?) ?(\d{{1,3}}(?:(?P<mark>[ '\u2019{thousands}])\d{{3}})(?:(?P=mark)\d{{3}})*|\d*)"
        rf"(?:{re.escape(decimal)}(\d*))?([eE][+-]?\d+)? ?(%?)",
        re.ASCII,
    )
    for decimal, thousands in ((",", "."), (".", ","))
}


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
            self._tree = jmespath.compile(text).parsed
        except exceptions.JMESPathError as error:
            raise ValueError(
                f"'{text}' is no JMESPath expression ({_format_error(error)}): write a field's name, in double quotes "
                "where it has other characters than letters, digits and _; a fixed text in single quotes"
            ) from None
        self.text = text
        self.fields = frozenset(_iter_fields(self._tree))

    def evaluate(self, record: Any, *, keep_nulls: bool = False) -> Any:
        """Evaluate the expression.

        Args:
            record: The record to search, as JSON values.
            keep_nulls: Return None for each item of a list, as in `a[].b`, that gives null; JMESPath leaves it out.

        Returns:
            The value; None if the record has none.

        Raises:
            AbstainError: A function of the expression got an unsuitable value.
        """
        try:
            if keep_nulls and self._tree["type"] == "projection":
                items, item_tree = self._tree["children"]
                base = _evaluate_node(items, record)
                return [_evaluate_node(item_tree, item) for item in base] if isinstance(base, list) else None
            return _evaluate_node(self._tree, record)
        except exceptions.JMESPathError as error:
            raise AbstainError(
                Code.BAD_SETTING, f"'{self.text}': {_format_error(error)}: correct the expression in the mapping"
            ) from None

    def find_lost_field(self, record: Any) -> str | None:
        """Find a field with a value of which the expression makes nothing, as `to_number(score)` of "0,41".

        Nothing is lost where a field is missing or empty, where no item meets a filter, or in JSON's own null.

        Args:
            record: The record.

        Returns:
            The field's name, with those of the objects that hold it; None if nothing is lost.
        """
        return _find_lost_field(self._tree, record)


class TrackedExpression:
    """An expression that tracks whether the records it was evaluated on have the fields it names.

    Attributes:
        records: Number of records so far.
    """

    def __init__(self, expression: Expression) -> None:
        self._expression = expression
        self.records = 0
        self._has_value, self._unseen_fields, self._name_counts = False, set(expression.fields), Counter[str]()

    def evaluate(self, record: Any, *, keep_nulls: bool = False) -> Any:
        """Evaluate the expression on `record`; see `Expression.evaluate`."""
        value = self._expression.evaluate(record, keep_nulls=keep_nulls)
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
        yield from iter_field_names(from_json(value))


def parse_json(text: str) -> Any:
    """Return the value of a JSON text, with NaN as None. Raises `ValueError` or `RecursionError` if it is no JSON."""
    return _JSON.decode(text)


def from_json(value: Any) -> Any:
    """Return the value of the JSON text `value`, None if it is no JSON; anything but a text is unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value)
    except (ValueError, RecursionError):
        return None


def from_literal(value: Any) -> Any:
    """Return the value of the Python literal `value`, None if it is none; anything but a text is unchanged."""
    if not isinstance(value, str):
        return value
    try:
        if len(value) > MAX_LITERAL_CHARACTERS or _has_adjacent_texts(value):
            return None
        return _to_json_value(_NanToNone().visit(ast.parse(value.strip(), mode="eval")).body)
    except (ValueError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError):
        return None


def to_number(value: Any, decimal: str) -> Any:
    """Return the number in a text with the decimal sign `decimal`, None if it is none; a number is unchanged."""
    if not isinstance(value, str):
        return value
    text = " ".join(value.replace("\N{MINUS SIGN}", "-").split())
    match = _NUMBER_BY_DECIMAL[decimal].fullmatch(text)
    if match is None or not (match[2] or match[4]):
        return None
    sign, digits, _, fraction, exponent, percent = match.groups()
    number = float(f"{sign}{re.sub(r'[^0-9]', '', digits)}.{fraction or 0}{exponent or ''}")
    number = number / 100 if percent else number
    return number if math.isfinite(number) else None


def to_time(value: Any, time_format: str, zone: str) -> str | None:
    """Return a time in `time_format` of the time zone `zone` as ISO 8601; None if `value` is no such time."""
    try:
        if time_format == "excel":
            days = float(value.replace(",", ".")) if isinstance(value, str) else value
            milliseconds = round(days * 86_400_000)  # a fraction of a day is not exact
            moment = _EXCEL_EPOCH + timedelta(milliseconds=milliseconds)
        else:
            text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
            moment = datetime.strptime(text.strip(), time_format)
        return (moment if moment.tzinfo else moment.replace(tzinfo=_get_zone(zone))).isoformat()
    except (ValueError, OverflowError):
        return None


def to_utc(value: Any) -> Any:
    """Return the time `value` with a zone, as `utc` above; anything else is unchanged, for the contract to reject."""
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC).isoformat()
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError, OverflowError, OSError):
        return value
    return value if moment.tzinfo else moment.replace(tzinfo=UTC).isoformat()


class _FunctionError(exceptions.JMESPathError):  # type: ignore[misc]
    """A fixed argument of a function is wrong."""


_TEXT_OR_NULL = {"types": ["string", "null"]}
_TEXT_OR_NUMBER = {"types": ["string", "number", "null"]}
_TEXT = {"types": ["string"]}


class _Functions(functions.Functions):  # type: ignore[misc]
    @functions.signature({"types": []})  # type: ignore[untyped-decorator]
    def _func_from_json(self, value: Any) -> Any:
        return from_json(value)

    @functions.signature({"types": []})  # type: ignore[untyped-decorator]
    def _func_literal(self, value: Any) -> Any:
        return from_literal(value)

    @functions.signature(_TEXT_OR_NUMBER, _TEXT)  # type: ignore[untyped-decorator]
    def _func_number(self, value: Any, decimal: str) -> Any:
        if decimal not in _NUMBER_BY_DECIMAL:
            raise _FunctionError(f"number() takes the decimal sign ',' or '.', not '{decimal}'")
        return to_number(value, decimal)

    @functions.signature(_TEXT_OR_NULL, _TEXT, _TEXT)  # type: ignore[untyped-decorator]
    def _func_replace(self, value: str | None, old: str, new: str) -> str | None:
        if not old:
            raise _FunctionError("replace() takes a text to be replaced, not ''")
        return value.replace(old, new) if value is not None else None

    @functions.signature(_TEXT_OR_NULL, _TEXT)  # type: ignore[untyped-decorator]
    def _func_split(self, value: str | None, separator: str) -> list[str] | None:
        if not separator:
            raise _FunctionError("split() takes a separator, not ''")
        return [part.strip() for part in value.split(separator) if part.strip()] if value is not None else None

    @functions.signature(_TEXT_OR_NUMBER, _TEXT, _TEXT)  # type: ignore[untyped-decorator]
    def _func_time(self, value: Any, time_format: str, zone: str) -> str | None:
        _check_time_format(time_format)
        _get_zone(zone)
        return None if value is None else to_time(value, time_format, zone)

    @functions.signature({"types": []})  # type: ignore[untyped-decorator]
    def _func_utc(self, value: Any) -> Any:
        return to_utc(value)


_evaluate_node = visitor.TreeInterpreter(jmespath.Options(custom_functions=_Functions())).visit


@lru_cache
def _get_zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError):  # of a name that is a path, or of none
        raise _FunctionError(f"time() takes an IANA time zone such as 'Europe/Berlin', not '{name}'") from None


@lru_cache
def _check_time_format(time_format: str) -> None:
    try:
        datetime.strptime("", time_format)
    except ValueError as error:
        if "does not match" not in str(error):
            expected = "'excel' or a format of strptime such as '%d.%m.%Y'"
            raise _FunctionError(f"time() takes {expected}, not '{time_format}'") from None


class _NanToNone(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return None for the name nan, as numpy and pandas print it."""
        return ast.Constant(None) if node.id == "nan" else node


def _has_adjacent_texts(text: str) -> bool:
    """Whether two texts stand side by side, as numpy prints an array: Python would join them to one."""
    kinds = [
        token.type
        for token in tokenize.generate_tokens(io.StringIO(text.strip()).readline)
        if token.type not in (tokenize.NL, tokenize.NEWLINE)
    ]
    return any(kind == following == tokenize.STRING for kind, following in pairwise(kinds))


def _to_json_value(node: ast.expr) -> Any:
    """Return the JSON value of a literal. Raises `ValueError` for a value that JSON has not."""

    def convert(value: Any) -> Any:
        if isinstance(value, dict):
            return {str(key): convert(item) for key, item in value.items()}
        if isinstance(value, list | tuple | set):
            return [convert(item) for item in value]
        if value is None or isinstance(value, str | int | float):
            return value
        raise ValueError(f"{type(value).__name__} is no JSON value")

    return convert(ast.literal_eval(node))


def _find_lost_field(node: Any, value: Any) -> str | None:
    """Return the path of what is filled in `value` and of which `node` makes nothing; "" is `value` itself."""
    kind, children = node["type"], node["children"]
    if kind == "multi_select_dict":
        return _find_first_lost([pair["children"][0] for pair in children], value)
    if kind in ("subexpression", "index_expression", "pipe"):
        path: list[str] = []
        for child in children[:-1]:
            inner = _evaluate_node(child, value)
            if inner is None:
                break
            path.append(_format_path(child))
            value = inner
        lost = _find_lost_field(children[len(path)], value)
        return lost if lost is None else ".".join(filter(None, (*path, lost)))
    result = _evaluate_node(node, value)
    if result is not None and (result != [] or kind == "function_expression"):
        return None
    if kind in ("field", "index", "slice"):
        return "" if _is_filled(value) and not isinstance(value, dict if kind == "field" else list) else None
    if kind == "or_expression":
        return _find_first_lost(children, value)
    if kind == "and_expression":
        left, right = children
        return _find_lost_field(left if _evaluate_node(left, value) is None else right, value)
    if kind == "function_expression":
        arguments = [child for child in children if child["type"] not in ("literal", "expref")]
        null_texts = _NULL_TEXTS.get(node["value"], ())
    elif kind in ("projection", "value_projection", "filter_projection", "flatten"):
        arguments, null_texts = children[:1], ()
    else:
        return None
    for argument in arguments:
        base = _evaluate_node(argument, value)
        if not _is_filled(base):
            if (lost := _find_lost_field(argument, value)) is not None:
                return lost
        elif kind in ("filter_projection", "flatten") and isinstance(base, list):
            continue  # no item meets the filter, or the lists in the list are empty
        elif not (isinstance(base, str) and base.strip() in null_texts):
            return _format_path(argument)
    return None


def _find_first_lost(nodes: list[Any], value: Any) -> str | None:
    lost_fields = (_find_lost_field(node, value) for node in nodes if _evaluate_node(node, value) in (None, []))
    return next((lost for lost in lost_fields if lost is not None), None)


def _is_filled(value: Any) -> bool:
    return bool(value.strip()) if isinstance(value, str) else value is not None and value not in ([], {})


def _format_path(node: Any) -> str:
    """Return the names of the fields that lead to the value of `node`."""
    if node["type"] == "field":
        return str(node["value"])
    nodes = node["children"][: None if node["type"] == "subexpression" else 1]
    return ".".join(filter(None, (_format_path(child) for child in nodes if isinstance(child, dict))))


def _iter_fields(node: Any) -> Iterator[str]:
    if node["type"] == "field":
        yield node["value"]
    for child in node["children"]:
        if isinstance(child, dict):
            yield from _iter_fields(child)


def _format_error(error: exceptions.JMESPathError) -> str:
    if isinstance(error, exceptions.JMESPathTypeError):
        types = ", ".join(error.expected_types)
        return f"{error.function_name}() takes {types}, not {error.actual_type}"
    return " ".join(str(error).split())
