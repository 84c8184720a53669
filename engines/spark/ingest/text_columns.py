"""Converts columns of text to exact types, and finds the value that cannot be converted.

Times are RFC 3339; a time without zone is UTC; digits beyond the declared unit are cut off. Vectorised throughout;
values are examined one by one, by bisection, only after a failure.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from chain.data import uuids
from chain.data.logical_hash import described
from chain.errors import Invalid
from chain.libraries import np, pa, pc
from chain.model.schema import MAX_COLUMNS, MAX_NAME
from chain.repeats import repeated
from chain.wording import a, listed

NOT_NULL: Final = "not-null"
NULL_KEY: Final = "primary-key-null"

_ZONE: Final = r":\d\d(?:\.\d+)?(?:Z|[+-]\d\d(?::?\d\d)?)$"
_TRIED: Final = 64
_FINER: Final = {unit: rf"(\.\d{{{digits}}})\d+" for unit, digits in (("ms", 3), ("us", 6), ("ns", 9))}
"""Matches the digits of a text beyond those of a unit."""
_RULE: Final = "column-type"


class Absence(NamedTuple):
    """The reason why a column must have values although the schema does not declare NOT NULL, for messages."""

    rule: str
    message: str


NO_EVENT_TIME: Final = Absence("event-time-missing", "a row has no event time")


def no_key(column: str) -> Absence:
    return Absence(NULL_KEY, f"column {column!r} is empty, and it is in the primary key")


class Misfit(Exception):
    """Raised for the value at ``row`` (from 0) of a column that is not readable as the declared type."""

    def __init__(self, row: int, value: str) -> None:
        super().__init__(row, value)
        self.row = row
        self.value = value


class RowFault(Invalid):
    """Raised for a fault of the record ``row`` (from 0) of the parsed text."""

    def __init__(self, fault: Invalid, row: int) -> None:
        super().__init__(fault.message, rule=fault.rule, hint=fault.hint, place=fault.place)
        self.row = row


def type_name(type_: pa.DataType) -> str:
    """Returns the format's name of an Arrow type, for messages."""
    if pa.types.is_timestamp(type_):
        return {"us": "Timestamp(Microsecond)", "ns": "Timestamp(Nanosecond)"}.get(type_.unit, "Timestamp")
    if pa.types.is_date(type_):
        return "Date"
    if pa.types.is_decimal(type_):
        return f"Decimal({type_.precision}, {type_.scale})"
    if pa.types.is_unsigned_integer(type_):
        return f"UInt{type_.bit_width}"
    if pa.types.is_integer(type_):
        return f"Int{type_.bit_width}"
    if isinstance(type_, pa.UuidType):
        return "UUID"
    names = {"double": "Float64", "float": "Float32", "halffloat": "Float16", "string": "String", "bool": "Bool"}
    return names.get(str(type_), str(type_))


@functools.cache
def millis_type() -> pa.DataType:
    """Returns the type of an instant without a declaration: whole milliseconds in UTC."""
    return pa.timestamp("ms", "UTC")


def instant_type(kind: pa.DataType) -> pa.DataType:
    """Returns the slice's type of a time declared as ``kind``: in UTC, whole seconds as milliseconds, for Parquet."""
    return pa.timestamp("ms" if kind.unit == "s" else kind.unit, "UTC")


def to_instants(text: pa.ChunkedArray, kind: pa.DataType | None = None) -> pa.ChunkedArray:
    """Parses RFC 3339 texts as ``instant_type(kind)``, or ``millis_type()``. Raises Misfit."""
    wanted = millis_type() if kind is None else instant_type(kind)
    naive = pa.timestamp(wanted.unit)
    zoned = _attempt(text, lambda part: pc.cast(part, wanted))
    if zoned is not None:
        return zoned
    local = _attempt(text, lambda part: pc.assume_timezone(pc.cast(part, naive), "UTC"))
    if local is not None:
        return local
    return convert_column(text, functools.partial(_convert_mixed, wanted))


def to_uuids(text: pa.ChunkedArray) -> pa.ChunkedArray:
    """Parses texts like ``123e4567-e89b-12d3-a456-426614174000``. Raises Misfit."""
    return convert_column(text, uuids.parsed)


def to_dates(text: pa.ChunkedArray) -> pa.ChunkedArray:
    """Parses ``2024-05-01`` texts as ``date32``. Raises Misfit."""
    return convert_column(text, lambda part: pc.cast(part, pa.date32()))


def convert_column(text: pa.ChunkedArray, convert: Callable[[pa.ChunkedArray], pa.ChunkedArray]) -> pa.ChunkedArray:
    """Returns ``convert(text)``, which works value by value; when it fails, Misfit names the first failing value."""
    try:
        return convert(text)
    except pa.ArrowInvalid:
        low, high = 0, len(text)
        while high - low > 1:
            middle = (low + high) // 2
            fits = _attempt(text.slice(low, middle - low), convert) is not None
            low, high = (middle, high) if fits else (low, middle)
        raise Misfit(low, str(text[low].as_py())) from None


def _convert_mixed(wanted: pa.DataType, text: pa.ChunkedArray) -> pa.ChunkedArray:
    trimmed = pc.utf8_upper(pc.utf8_trim_whitespace(text))
    plain = pc.replace_substring_regex(trimmed, _FINER[wanted.unit], r"\1")
    zoned = pc.match_substring_regex(plain, _ZONE)
    nothing = pa.scalar(None, pa.string())
    with_zone = pc.cast(pc.if_else(zoned, plain, nothing), wanted)
    naive = pc.cast(pc.if_else(zoned, nothing, plain), pa.timestamp(wanted.unit))
    return pc.coalesce(with_zone, pc.assume_timezone(naive, "UTC"))


def _attempt(text: pa.ChunkedArray, convert: Callable[[pa.ChunkedArray], pa.ChunkedArray]) -> pa.ChunkedArray | None:
    """Returns ``convert(text)``, which works value by value, or ``None`` where it fails.

    Few values are tried first: pyarrow writes a message for each that fails, which takes ten times as long as values.
    """
    try:
        if len(text) > _TRIED:
            convert(text.slice(0, _TRIED))
        return convert(text)
    except pa.ArrowInvalid:
        return None


def check_utf8(data: bytes, place: str, lines_before: int = 0) -> None:
    """Raises Invalid, naming the line, unless ``data`` is UTF-8. Vectorised, without a copy."""
    ends = pa.py_buffer(np.array([0, len(data)], np.int64))
    whole = pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, pa.py_buffer(data)])
    try:
        whole.cast(pa.large_string())
    except pa.ArrowInvalid:
        text_of(data, place, lines_before)
        raise


def text_of(data: bytes, place: str, lines_before: int = 0) -> str:
    """Decodes UTF-8. Raises Invalid, naming the line, for other text."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = lines_before + data.count(b"\n", 0, error.start) + 1
        raise Invalid(
            f"not UTF-8: byte {data[error.start]:#04x}",
            rule="read-encoding",
            hint="say which encoding it is in: `encoding: cp1252`, or another",
            place=f"{place}:{line}",
        ) from error


def check_present(column: pa.ChunkedArray, field: pa.Field) -> None:
    """Raises Misfit at the first null of a column that must not have any."""
    if column.null_count and not field.nullable:
        raise Misfit(pc.index(pc.is_null(column), True).as_py(), "")


def misfit_fault(place: str, column: str, type_: pa.DataType, value: str) -> Invalid:
    """Makes the error for a value that is not readable as its column's type."""
    if not value:
        return Invalid(
            f"column {column!r} is empty, and the schema says NOT NULL",
            rule=NOT_NULL,
            hint="repair the line, or make the column optional",
            place=place,
        )
    what = type_name(type_)
    hint = "repair the line, or declare the column as String and convert it in preprocess"
    if what.startswith(("Timestamp", "Date")):
        hint = "write times like 2024-05-01T12:30:00Z (RFC 3339), or declare String and convert it in preprocess"
    if isinstance(type_, pa.UuidType):
        hint = "write it like 123e4567-e89b-12d3-a456-426614174000, or declare the column as String"
    return Invalid(f"column {column!r}: {value[:80]!r} is not {a(what)}", rule="read-value", hint=hint, place=place)


def check_read(schema: pa.Schema, place: str, *, queried: bool) -> None:
    """Raises Invalid for columns of a type that no slice can hold; ``queried``: a query converts them first."""
    for field in schema:
        if not _is_known(_read_by_spark if queried else described, field):
            raise Invalid(_message(field), rule=_RULE, hint=_hint_of_read(field), place=place)


def check_made(schema: pa.Schema) -> None:
    """Checks the names and types of a query's columns. Raises Invalid."""
    check_once(schema, "preprocess", hint="name all but one otherwise: … as OTHER_NAME")
    for field in schema:
        if not _is_known(described, field):
            hint = f"make it a number, or a text, in its query: to_json({field.name}) as {field.name}"
            raise Invalid(_message(field), rule=_RULE, hint=hint)


def check_size(names: Sequence[str], place: str) -> None:
    """Raises Invalid for more columns, or longer names of columns, than a dataset may have."""
    if len(names) > MAX_COLUMNS:
        raise Invalid(
            f"{len(names):,} columns",
            rule="read-columns",
            hint=f"a dataset has at most {MAX_COLUMNS:,}; check the separator, and whether columns should be rows",
            place=place,
        )
    if len(longest := max(names, key=len, default="")) > MAX_NAME:
        raise Invalid(
            f"the name of a column has {len(longest):,} characters: {listed([longest])}",
            rule="read-columns",
            hint=f"a name has at most {MAX_NAME:,}; is this line the header?",
            place=place,
        )


def check_once(
    schema: pa.Schema, place: str, above: str = "", hint: str = "rename all but one where the file is written"
) -> None:
    """Raises Invalid for two columns, or two members of a struct, with the same name, and for too many of them."""
    check_size(schema.names, place)
    if twice := repeated(schema.names):
        raise Invalid(
            f"{schema.names.count(twice[0])} columns are called {above + twice[0]!r}",
            rule="read-columns",
            hint=hint,
            place=place,
        )
    for field in schema:
        if pa.types.is_struct(field.type):
            check_once(pa.schema(list(field.type)), place, f"{above}{field.name}.", hint)


def _is_known(judge: Callable[[pa.Schema], object], field: pa.Field) -> bool:
    try:
        judge(pa.schema([field]))
    except Invalid:
        return False
    return True


def _read_by_spark(schema: pa.Schema) -> object:
    """Returns the schema as Spark reads it. Imports Spark's types only here: a node without Spark loads
    this module too."""
    from engines.spark.catalyst.types import struct_type

    return struct_type(schema)


def _message(field: pa.Field) -> str:
    kind = str(field.type)
    if pa.types.is_map(field.type):
        kind = f"map of {field.type.key_type} to {field.type.item_type}"
    return f"column {field.name!r} is {a(kind)}, which no dataset holds"


def _hint_of_read(field: pa.Field) -> str:
    if pa.types.is_duration(field.type):
        return f"declare the columns in the read schema, this one as {field.name} BIGINT: the number of its units"
    if _is_known(_read_by_spark, field):
        return f"make it a text in preprocess: to_json({field.name}) as {field.name}"
    return "declare the other columns in the read schema, which leaves it out, or write it as a text of JSON"
