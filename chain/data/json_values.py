"""Converts values of Arrow columns to JSON: times in RFC 3339, decimals and integers beyond 2^53 as text. Pure.

Imports neither numpy, which the process of a query does not have, nor ``pyarrow.compute``, whose import takes longer
than most answers. So no method of an array is called that imports it: no ``cast``, ``flatten`` or ``is_valid``, except
for many values at once, for which it is much faster.
"""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any, Final

from chain import instant
from chain.data import uuids
from chain.errors import Invalid
from chain.instant import Instant
from chain.libraries import pa

_SAFE_INTEGER: Final = 2**53
_DAY_MILLIS: Final = 86_400_000
_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}
"""Digits of a second's fraction, by the unit of a time."""
_FEW: Final = 200
"""Values that are rendered in less time here than Arrow's cast takes to be imported."""
_LAST_YEAR: Final = 32_767
"""The last year that Arrow renders."""


def plain_rows(table: pa.Table | pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Returns rows as JSON values: times in RFC 3339, decimals and integers beyond 2^53 as text."""
    columns = [
        _field_values(field, column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
        for field, column in zip(table.schema, table.columns, strict=True)
    ]
    return list(zip(*columns, strict=True))


def _field_values(field: pa.Field, values: pa.Array) -> list[Any]:
    if uuids.is_marked(field):
        return [None if value is None else uuids.text(value) for value in values.to_pylist()]
    return plain_values(values)


def plain_values(values: pa.Array) -> list[Any]:
    """Returns a column's values as JSON. Times are made from their numbers: Python's lack nanoseconds, far years."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        meant = plain_values(values.dictionary)
        return [None if place is None else meant[place] for place in values.indices.to_pylist()]
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return [None if number is None else instant.render(to_instant(number, kind)) for number in _numbers(values)]
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind) or (pa.types.is_time(kind) and kind.unit == "ns"):
        if len(values) > _FEW:
            return list(values.cast(pa.string()).to_pylist())
        return [None if number is None else _time_text(number, kind) for number in _numbers(values)]
    if pa.types.is_struct(kind):
        inner = [_field_values(kind.field(place), values.field(place)) for place in range(kind.num_fields)]
        names = [field.name for field in kind]
        rows = zip(*inner, strict=True) if inner else ((),) * len(values)
        return [
            dict(zip(names, row, strict=True)) if there else None
            for row, there in zip(rows, _present(values), strict=True)
        ]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        bounds = _bounds(values)
        items = plain_values(values.values.slice(bounds[0], bounds[-1] - bounds[0]))
        return [
            items[start - bounds[0] : end - bounds[0]] if there else None
            for start, end, there in zip(bounds, bounds[1:], _present(values), strict=False)
        ]
    return [_plain_value(value) for value in values.to_pylist()]


def _numbers(values: pa.Array) -> list[int | None]:
    """Returns the stored numbers of dates and times."""
    found: list[int | None] = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64()).to_pylist()
    return found


def _present(values: pa.Array) -> list[bool]:
    return [value.is_valid for value in values] if values.null_count else [True] * len(values)


def _bounds(values: pa.Array) -> list[int]:
    """Returns where each list begins among the values, and where the last ends."""
    if pa.types.is_fixed_size_list(values.type):
        size: int = values.type.list_size
        return [(values.offset + place) * size for place in range(len(values) + 1)]
    found: list[int] = values.offsets.to_pylist()
    return found


def _time_text(number: int, kind: pa.DataType) -> str:
    """Renders a date, a time without a zone, or a time of day, as Arrow's cast to text does."""
    if pa.types.is_date(kind):
        days, ticks, digits = number if pa.types.is_date32(kind) else number // _DAY_MILLIS, 0, -1
    else:
        digits = _DIGITS[kind.unit]
        days, ticks = divmod(number, instant.DAY * 10**digits)
    time = _time_of_day(ticks, digits)
    if pa.types.is_time(kind):
        return time
    year, month, day = instant.date_of(days)
    if abs(year) > _LAST_YEAR:
        return f"<value out of range: {number}>"
    date = f"{'-' * (year < 0)}{abs(year):04d}-{month:02d}-{day:02d}"
    return f"{date} {time}" if digits >= 0 else date


def _time_of_day(ticks: int, digits: int) -> str:
    """Renders ticks since midnight; ``digits``: those of a second's fraction."""
    seconds, fraction = divmod(ticks, 10 ** max(digits, 0))
    time = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{time}.{fraction:0{digits}d}" if digits > 0 else time


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
