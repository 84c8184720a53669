"""Parses a value that a person writes as the exact type of a dataset's column. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Final

from chain.errors import Invalid, Refused
from chain.libraries import pa
from chain.wording import a
from engines.spark.ingest.text_columns import Misfit, to_dates, to_instants, type_name

_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_NO_NUMBER: Final = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
_TIME: Final = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?")
_FRACTION: Final = re.compile(r"[0-9]\.([0-9]+)")
_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_TRUTH: Final = {"true": True, "false": False}


def value_of(text: str, field: pa.Field) -> pa.Array:
    """Parses ``text`` as one element of the column's type. Raises Invalid, Refused for nested types."""
    kind = field.type
    read = _reader(kind)
    if read is None:
        raise Refused(
            f"column {field.name!r} is {type_name(kind)}, which cannot be written as one text",
            rule="correct-type",
            hint="numbers, texts, dates, times and booleans can",
        )
    try:
        return read(text)
    except (pa.ArrowException, ValueError, OverflowError, InvalidOperation, Misfit) as error:
        raise Invalid(
            f"column {field.name!r}: {text[:80]!r} is not {a(type_name(kind))}", rule="correct-value", hint=_hint(kind)
        ) from error


def nothing_of(field: pa.Field) -> pa.Array:
    """Returns null as one element of the column's type. Raises Invalid if the column must have a value."""
    if not field.nullable:
        raise Invalid(
            f"column {field.name!r} cannot be null: the schema says NOT NULL", rule="not-null", hint="give it a value"
        )
    return pa.nulls(1, field.type)


def _reader(kind: pa.DataType) -> Callable[[str], pa.Array] | None:
    t = pa.types
    if t.is_string(kind) or t.is_large_string(kind):
        return lambda text: pa.array([text], kind)
    if t.is_boolean(kind):
        return lambda text: pa.array([_truth(text)], kind)
    if t.is_integer(kind):
        return lambda text: pa.array([_integer(text)], kind)
    if t.is_decimal(kind):
        return lambda text: pa.array([_decimal(text)], kind)
    if t.is_floating(kind):
        return lambda text: _float(text, kind)
    if t.is_timestamp(kind):
        return lambda text: to_instants(_exactly(text, kind), kind).combine_chunks()
    if t.is_date(kind):
        return lambda text: to_dates(pa.chunked_array([[text]], pa.string())).combine_chunks().cast(kind)
    if t.is_time(kind):
        return lambda text: _time(text, kind)
    return None


def _truth(text: str) -> bool:
    if text.lower() not in _TRUTH:
        raise ValueError(text)
    return _TRUTH[text.lower()]


def _integer(text: str) -> int:
    # int() also takes 1_000, blanks, and digits of other scripts.
    if not _INTEGER.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _decimal(text: str) -> Decimal:
    if not _DECIMAL.fullmatch(text):
        raise ValueError(text)
    return Decimal(text)


def _float(text: str, kind: pa.DataType) -> pa.Array:
    """Parses a float. Raises ValueError if a number would become infinite."""
    if not (_DECIMAL.fullmatch(text) or _NO_NUMBER.fullmatch(text)):
        raise ValueError(text)
    value = pa.array([float(text)]).cast(kind)
    if _DECIMAL.fullmatch(text) and math.isinf(float(value[0].as_py())):
        raise ValueError(text)
    return value


def _time(text: str, kind: pa.DataType) -> pa.Array:
    """Parses a time of day. Raises ValueError."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(text)
    hour, minute, second = (int(found[place]) for place in (1, 2, 3))
    _exactly(text, kind)
    fraction = int((found[4] or "").ljust(9, "0")[:9])
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError(text)
    whole = ((hour * 60 + minute) * 60 + second) * 10**9 + fraction
    width = pa.int32() if pa.types.is_time32(kind) else pa.int64()
    return pa.array([whole // 10 ** (9 - _DIGITS[kind.unit])], width).cast(kind)


def _exactly(text: str, kind: pa.DataType) -> pa.ChunkedArray:
    """Returns the text as an array. Raises ValueError if the column would lose digits of a time."""
    fraction = _FRACTION.search(text)
    if fraction is not None and fraction[1][_DIGITS[kind.unit] :].strip("0"):
        raise ValueError(text)
    return pa.chunked_array([[text]], pa.string())


def _hint(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return "write times like 2024-05-01T12:30:00Z (RFC 3339), with no more digits than the column holds"
    if pa.types.is_date(kind):
        return "write dates like 2024-05-01"
    if pa.types.is_boolean(kind):
        return "write true or false"
    return "write it as the column holds it"
