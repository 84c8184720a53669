"""Converts predicates to expressions of Arrow, with the meaning that they have in the node's SQL.

Comparisons with NULL are neither true nor false, and NaN is equal to itself and greater than any number.
"""

from __future__ import annotations

import datetime
import decimal
import math
import operator
from typing import Any, Final

import pyarrow as pa

from odfd_client.errors import Invalid
from odfd_client.expressions import Predicate, Tree

_COMPARED: Final = {
    "=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def expression(predicate: Predicate | None, schema: pa.Schema) -> Any:
    """Returns the expression for rows of these columns; ``None``: all. Raises Invalid."""
    if predicate is None:
        return None
    try:
        made = _make(predicate.tree, schema)
        schema.empty_table().filter(made)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise Invalid(f"the predicate does not suit its columns: {error}", rule="predicate") from error
    return made


def _make(tree: Tree, schema: pa.Schema) -> Any:
    import pyarrow.compute as pc

    sign, *rest = tree
    if sign in ("and", "or"):
        left, right = (_make(each, schema) for each in rest)
        return left & right if sign == "and" else left | right
    if sign == "not":
        return ~_make(rest[0], schema)
    name = rest[0]
    if name not in schema.names:
        raise Invalid(f"there is no column {name}", rule="predicate", hint=f"columns are {', '.join(schema.names)}")
    column, kind = pc.field(name), schema.field(name).type
    if sign == "null":
        return column.is_null()
    if sign == "in":
        if not rest[1]:
            return pc.scalar(False)
        values = [_compare(column, kind, "=", each) for each in rest[1]]
        found = values[0]
        for value in values[1:]:
            found = found | value
        return found
    if sign == "LIKE":
        return pc.match_like(column, rest[1].replace("\\", "\\\\"))
    return _compare(column, kind, sign, rest[1])


def _compare(column: Any, kind: pa.DataType, sign: str, value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        raise Invalid("a repository's rows are not compared with NaN", rule="predicate", hint="read them on a node")
    if str(kind) == "extension<arrow.uuid>":  # Arrow compares values of no extension
        raise Invalid("a repository's rows are not compared by UUIDs", rule="predicate", hint="read them on a node")
    if pa.types.is_timestamp(kind) and isinstance(value, datetime.date):
        at = value if isinstance(value, datetime.datetime) else datetime.datetime.combine(value, datetime.time())
        value = at if at.tzinfo else at.replace(tzinfo=datetime.UTC)
    if pa.types.is_decimal(kind) and type(value) is int:
        value = decimal.Decimal(value)  # Arrow would widen a small decimal beyond its precision
    found = _COMPARED[sign](column, pa.scalar(value))
    return found | column.is_nan() if pa.types.is_floating(kind) and sign in (">", ">=") else found
