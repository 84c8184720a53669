"""Converts types of the format to Spark's and back, so that no value is lost, or rounded silently.

Spark has fewer types. Unsigned numbers widen; nanoseconds and times of day become numbers, for Spark has microseconds
only. A column remembers the type that it had in its metadata, which Spark passes on wherever a query only passes the
column on, under any name: such a column is written in that type again. Columns that a query computes have Spark's
types; times among them are written in milliseconds, and finer ones are refused.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Iterable
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_type

from chain.data import uuids
from chain.errors import Invalid

_WAS: Final = "odf.type"
"""Key of a column's metadata: the type it had, as an Arrow schema of one column."""


def struct_type(schema: pa.Schema) -> spark.StructType:
    """Returns the type to read Parquet columns of ``schema``. Raises Invalid for a type that Spark cannot read."""
    return spark.StructType([_field(field.name, uuids.named(field).type) for field in schema])


def _field(name: str, kind: pa.DataType) -> spark.StructField:
    kind = _plain_type(kind)
    held = spark_type(kind, name)
    metadata = {} if computed_type(held, name).equals(kind) else {_WAS: _encode_type(kind)}
    return spark.StructField(name, held, metadata=metadata)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Returns the type without encodings that others write and slices never have: views, dictionaries, list views."""
    t = pa.types
    if t.is_string_view(kind):
        return pa.string()
    if t.is_binary_view(kind):
        return pa.binary()
    if t.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if t.is_list(kind) or t.is_list_view(kind) or t.is_large_list_view(kind):
        return pa.list_(kind.value_field.with_type(_plain_type(kind.value_type)))
    if t.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_plain_type(kind.value_type)))
    if t.is_struct(kind):
        return pa.struct([child.with_type(_plain_type(child.type)) for child in kind])
    return kind


def spark_type(kind: pa.DataType, column: str) -> spark.DataType:
    """Returns Spark's type for an Arrow type. Raises Invalid, naming ``column``, if it has none."""
    t = pa.types
    kind = _plain_type(kind)
    simple = _SIMPLE.get(kind)
    if simple is not None:
        return simple
    if t.is_timestamp(kind):
        # Spark's times count microseconds; as a number none is rounded, and merges compare it exactly.
        if kind.unit == "ns":
            return spark.LongType()
        return spark.TimestampType() if kind.tz else spark.TimestampNTZType()
    if t.is_time(kind):
        return spark.IntegerType() if kind.bit_width == 32 else spark.LongType()
    if t.is_decimal(kind) and kind.precision <= 38 and kind.scale >= 0:
        return spark.DecimalType(kind.precision, kind.scale)
    if t.is_fixed_size_binary(kind) or isinstance(kind, pa.UuidType):
        return spark.BinaryType()
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        return spark.ArrayType(spark_type(kind.value_type, column))
    if t.is_struct(kind):
        return spark.StructType([spark.StructField(child.name, spark_type(child.type, column)) for child in kind])
    raise Invalid(
        f"column {column!r}: Spark has no type for {kind}",
        rule="spark-type",
        hint="leave it out of key and compare columns and of what queries read, or convert it where it is written",
    )


def slice_types(columns: Iterable[spark.StructField], finest: str = "ms") -> pa.Schema:
    """Returns the slice types of a query's columns; computed times in units of ``finest``. Raises Invalid."""
    types = ((field.name, _was(field) or computed_type(field.dataType, field.name, finest)) for field in columns)
    return pa.schema([uuids.stored(pa.field(name, kind)) for name, kind in types])


def computed_type(kind: spark.DataType, column: str, finest: str = "ms") -> pa.DataType:
    """Returns the type of a computed column. Raises Invalid."""
    if _has_void(kind):
        raise Invalid(
            f"column {column} is of type {kind.simpleString()}, which a dataset cannot hold",
            rule="output-type",
            hint=f"say what it is of, as in: cast({column} as array<string>)",
        )
    try:
        arrow = to_arrow_type(kind, timezone="UTC")
    except (PySparkTypeError, ValueError) as error:  # raised by Arrow for a void type that is not nullable
        raise Invalid(
            f"column {column} is of type {kind.simpleString()}, which a dataset cannot hold",
            rule="output-type",
            hint=f"cast({column} as string)",
        ) from error
    return _logical(arrow, column, finest)


def _has_void(kind: spark.DataType) -> bool:
    if isinstance(kind, spark.ArrayType):
        return isinstance(kind.elementType, spark.NullType) or _has_void(kind.elementType)
    return isinstance(kind, spark.StructType) and any(_has_void(field.dataType) for field in kind)


def _was(field: spark.StructField) -> pa.DataType | None:
    """Returns the type that a column had before Spark read it, if it is still that column; else ``None``."""
    text = (field.metadata or {}).get(_WAS)
    if text is None:
        return None
    kind = _read(text)
    return kind if spark_type(kind, field.name) == field.dataType else None


@functools.lru_cache(1024)
def _encode_type(kind: pa.DataType) -> str:
    return base64.b64encode(pa.schema([("", kind)]).serialize()).decode()


@functools.lru_cache(1024)
def _read(text: str) -> pa.DataType:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))).field(0).type


def _logical(kind: pa.DataType, name: str, finest: str) -> pa.DataType:
    t = pa.types
    if t.is_timestamp(kind):
        return pa.timestamp(finest, None if kind.tz is None else "UTC")
    if t.is_large_string(kind):
        return pa.string()
    if t.is_list(kind):
        return pa.list_(_logical(kind.value_type, name, finest))
    if t.is_struct(kind):
        return pa.struct([pa.field(field.name, _logical(field.type, name, finest)) for field in kind])
    plain = (t.is_integer, t.is_floating, t.is_decimal, t.is_boolean, t.is_string, t.is_binary, t.is_date)
    if any(test(kind) for test in plain):
        return kind
    hint = f"array_sort(map_entries({name}))" if t.is_map(kind) else f"cast({name} as string)"
    raise Invalid(f"column {name} is of type {kind}, which a dataset cannot hold", rule="output-type", hint=hint)


def as_written(table: pa.Table, types: pa.Schema) -> pa.Table:
    """Converts Spark's output to the types of a slice; columns that ``types`` does not name stay.

    Raises Invalid, naming the column, where a value would change.
    """
    known = {field.name: field for field in types}
    fields = [known.get(field.name, field) for field in table.schema]
    columns = [exactly(table.column(place), field.type, field.name) for place, field in enumerate(fields)]
    return pa.table(columns, schema=pa.schema([field.with_nullable(True) for field in fields]))


def exactly(column: pa.ChunkedArray, kind: pa.DataType, name: str) -> pa.ChunkedArray:
    """Converts values to type ``kind``. Raises Invalid where one would change."""
    if column.type.equals(kind):
        return column
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as error:
        if _has_times(column.type):
            raise _too_fine(name, kind) from error
        raise Invalid(
            f"column {name!r} holds values that are no {kind}: {str(error).splitlines()[0]}",
            rule="exact-values",
            hint=f"cast it to a type that holds them, as in: cast({name} as bigint) as {name}",
        ) from error


def _has_times(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) or any(_has_times(kind.field(place).type) for place in range(kind.num_fields))


def _too_fine(name: str, kind: pa.DataType) -> Invalid:
    return Invalid(
        f"column {name!r} holds times with digits that {kind} cannot hold",
        rule="exact-times",
        hint=f"cut them where they may be lost, as in date_trunc('MILLISECOND', {name}), "
        f"or keep all as a number: unix_micros({name})",
    )


_SIMPLE: dict[pa.DataType, spark.DataType] = {
    pa.bool_(): spark.BooleanType(),
    pa.int8(): spark.ByteType(),
    pa.int16(): spark.ShortType(),
    pa.int32(): spark.IntegerType(),
    pa.int64(): spark.LongType(),
    pa.uint8(): spark.ShortType(),
    pa.uint16(): spark.IntegerType(),
    pa.uint32(): spark.LongType(),
    # Spark has no unsigned numbers, and half of these are too large for BIGINT.
    pa.uint64(): spark.DecimalType(20, 0),
    pa.float32(): spark.FloatType(),
    pa.float64(): spark.DoubleType(),
    pa.string(): spark.StringType(),
    pa.large_string(): spark.StringType(),
    pa.binary(): spark.BinaryType(),
    pa.large_binary(): spark.BinaryType(),
    pa.date32(): spark.DateType(),
}
