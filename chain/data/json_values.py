"""Converts values of Arrow columns to JSON: times in RFC 3339, decimals and integers beyond 2^53 as text. Pure.

Imports neither numpy, which the process of a query does not have, nor ``pyarrow.compute``, whose import takes longer
than most answers.
"""

from __future__ import annotations

import datetime as dt
import decimal
from itertools import islice
from typing import Any, Final

from chain import instant
from chain.errors import Invalid
from chain.instant import Instant
from chain.libraries import pa

_SAFE_INTEGER: Final = 2**53


def plain_rows(table: pa.Table | pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Returns rows as JSON values: times in RFC 3339, decimals and integers beyond 2^53 as text."""
    columns = [
        plain_values(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
        for column in table.columns
    ]
    return list(zip(*columns, strict=True))


def plain_values(values: pa.Array) -> list[Any]:
    """Returns a column's values as JSON. Times are made from their numbers: Python's lack nanoseconds, far years."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        return plain_values(values.dictionary_decode())
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        numbers = values.cast(pa.int64()).to_pylist()
        return [None if number is None else instant.render(to_instant(number, kind)) for number in numbers]
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind) or (pa.types.is_time(kind) and kind.unit == "ns"):
        return list(values.cast(pa.string()).to_pylist())
    if pa.types.is_struct(kind):
        inner = [plain_values(values.field(place)) for place in range(kind.num_fields)]
        names = [field.name for field in kind]
        rows = zip(*inner, strict=True) if inner else ((),) * len(values)
        present = values.is_valid().to_pylist()
        return [dict(zip(names, row, strict=True)) if there else None for row, there in zip(rows, present, strict=True)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        lengths = values.value_lengths().to_pylist()
        items = iter(plain_values(values.flatten()))
        return [None if length is None else list(islice(items, length)) for length in lengths]
    return [_plain_value(value) for value in values.to_pylist()]


def _plain_value(value: object) -> object:
    match value:
        case dt.date() | dt.time() | dt.timedelta() | decimal.Decimal():
            return str(value)
        case bytes():
            return value.hex()
        case bool():
            return value
        case int() if abs(value) > _SAFE_INTEGER:
            return str(value)
        case float() if value != value or value in (float("inf"), float("-inf")):
            return str(value)
        case list() | tuple():
            return [_plain_value(item) for item in value]
        case dict():
            return {key: _plain_value(item) for key, item in value.items()}
        case _:
            return value


def to_instant(value: int, kind: pa.DataType) -> Instant:
    """Converts a date's or timestamp's stored number to an instant. Raises Invalid for another type."""
    if not (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        raise Invalid(f"an event time is a date or a timestamp, not {kind}", rule="event-time-type")
    scale = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
    if pa.types.is_date32(kind):
        return Instant(value * 86_400 * 10**9)
    unit = "ms" if pa.types.is_date64(kind) else kind.unit
    return Instant(value * scale[unit])
