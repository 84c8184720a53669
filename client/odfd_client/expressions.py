"""Builds the predicates of a query: columns, comparisons, and values, which are sent as parameters, never as text."""

from __future__ import annotations

import datetime
import decimal
import math
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, TypeAlias

from odfd_client.errors import Invalid

Value: TypeAlias = "bool | int | float | str | bytes | datetime.date | datetime.datetime | decimal.Decimal | uuid.UUID"
Parameters: TypeAlias = "dict[str, Any]"
Tree: TypeAlias = "tuple[Any, ...]"


def quote_name(name: str) -> str:
    """Formats an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Formats a text literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def instant(when: str | datetime.date) -> str:
    """Formats a time for a query; one without a zone is in UTC."""
    if isinstance(when, datetime.datetime):
        moment = when if when.tzinfo else when.replace(tzinfo=datetime.UTC)
        return moment.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z")
    return when.isoformat() if isinstance(when, datetime.date) else when


def plain(value: object) -> Any:
    """Converts a parameter to JSON. Raises Invalid."""
    if isinstance(value, datetime.date):
        return instant(value)
    if isinstance(value, decimal.Decimal | uuid.UUID):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise Invalid(f"{value} cannot be sent", rule="parameter", hint="write CAST('nan' AS DOUBLE) in the query")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    hint = "send a number, a text, a time, a list, or nothing"
    raise Invalid(f"a {type(value).__name__} cannot be sent as a parameter", rule="parameter", hint=hint)


@dataclass(frozen=True, slots=True, eq=False)
class Predicate:
    """A condition on rows. ``&``, ``|`` and ``~`` join them (Python's ``and`` cannot)."""

    _parts: tuple[str | tuple[Value], ...]
    """Pieces of SQL text, and values in tuples of one."""
    tree: Tree
    """The same as a tree, for readers without SQL: an operator, and its operands."""

    def __and__(self, other: Predicate) -> Predicate:
        return Predicate(("(", *self._parts, " AND ", *other._parts, ")"), ("and", self.tree, other.tree))

    def __or__(self, other: Predicate) -> Predicate:
        return Predicate(("(", *self._parts, " OR ", *other._parts, ")"), ("or", self.tree, other.tree))

    def __invert__(self) -> Predicate:
        return Predicate(("(NOT ", *self._parts, ")"), ("not", self.tree))

    def __bool__(self) -> bool:
        raise Invalid(
            "a predicate is neither true nor false", rule="predicate", hint="join them with & | ~, each in ()"
        )

    def sql(self, parameters: Parameters) -> str:
        """Formats the predicate; adds its values to ``parameters``."""
        return "".join(part if isinstance(part, str) else _bind(part[0], parameters) for part in self._parts)


class Column:
    """A column for comparisons: ``col("celsius") > 30``."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, value: Value) -> Predicate:  # type: ignore[override]
        return self._compare("=", value)

    def __ne__(self, value: Value) -> Predicate:  # type: ignore[override]
        return self._compare("<>", value)

    def __lt__(self, value: Value) -> Predicate:
        return self._compare("<", value)

    def __le__(self, value: Value) -> Predicate:
        return self._compare("<=", value)

    def __gt__(self, value: Value) -> Predicate:
        return self._compare(">", value)

    def __ge__(self, value: Value) -> Predicate:
        return self._compare(">=", value)

    def between(self, least: Value, most: Value) -> Predicate:
        """Compares with two bounds, both included."""
        return (self >= least) & (self <= most)

    def isin(self, values: Collection[Value]) -> Predicate:
        """Compares with several values; an empty list matches nothing."""
        checked = [*map(_check, values)]
        joined = [part for value in checked for part in (", ", (value,))][1:]
        parts = (f"({quote_name(self.name)} IN (", *joined, "))") if joined else ("(1 = 0)",)
        return Predicate(parts, ("in", self.name, tuple(checked)))

    def like(self, pattern: str) -> Predicate:
        """Matches a pattern: ``%`` stands for any text, ``_`` for one character."""
        return self._compare("LIKE", pattern)

    def is_null(self) -> Predicate:
        return Predicate((f"({quote_name(self.name)} IS NULL)",), ("null", self.name))

    def is_not_null(self) -> Predicate:
        return Predicate((f"({quote_name(self.name)} IS NOT NULL)",), ("not", ("null", self.name)))

    def _compare(self, sign: str, value: Value) -> Predicate:
        value = _check(value)
        return Predicate((f"({quote_name(self.name)} {sign} ", (value,), ")"), (sign, self.name, value))


def col(name: str) -> Column:
    """Returns a column by its name."""
    return Column(name)


def _check(value: Value) -> Value:
    if value is None:
        raise Invalid("nothing is equal to NULL", rule="predicate", hint="use is_null() or is_not_null()")
    if isinstance(value, uuid.UUID):
        return str(value)
    if not isinstance(value, bool | int | float | str | bytes | datetime.date | decimal.Decimal):
        raise Invalid(f"a column cannot be compared with a {type(value).__name__}", rule="predicate")
    return value


def _bind(value: Value, parameters: Parameters) -> str:
    """Adds a value to ``parameters`` under a new name. Returns its SQL, as the type that the value has."""
    name = f"p{len(parameters)}"
    if isinstance(value, bytes):
        parameters[name] = value.hex()
        return f"from_hex(${name})"
    if isinstance(value, datetime.datetime):
        parameters[name] = instant(value)
        return f"CAST(${name} AS TIMESTAMPTZ)"
    if isinstance(value, datetime.date):
        parameters[name] = value.isoformat()
        return f"CAST(${name} AS DATE)"
    if isinstance(value, decimal.Decimal):
        return _decimal(value, name, parameters)
    if isinstance(value, float) and not math.isfinite(value):
        parameters[name] = str(value)
        return f"CAST(${name} AS DOUBLE)"
    parameters[name] = value
    return f"${name}"


def _decimal(value: decimal.Decimal, name: str, parameters: Parameters) -> str:
    exponent = value.as_tuple().exponent
    scale = max(0, -exponent) if isinstance(exponent, int) else 39
    digits = max(len(value.as_tuple().digits) + max(0, exponent if isinstance(exponent, int) else 0), scale)
    if digits > 38:
        raise Invalid(f"{value} is no decimal of at most 38 digits", rule="predicate")
    parameters[name] = f"{value:f}"
    return f"CAST(${name} AS DECIMAL({max(digits, 1)}, {scale}))"
