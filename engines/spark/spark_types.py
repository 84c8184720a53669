"""Types of the format as Spark holds them: unsigned integers widen, instants are microseconds, nothing is lost.

Spark is asked for places of rows, never for their values, so widening here cannot change what is written.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as spark

from chain.errors import Invalid


def struct_type(schema: pa.Schema) -> spark.StructType:
    """How to read Parquet columns of ``schema``. Raises Invalid for a type that Spark cannot read."""
    return spark.StructType([spark.StructField(field.name, spark_type(field.type, field.name)) for field in schema])


def spark_type(kind: pa.DataType, column: str) -> spark.DataType:
    """Raises Invalid, naming ``column``."""
    simple = _SIMPLE.get(kind)
    if simple is not None:
        return simple
    if pa.types.is_timestamp(kind):
        return spark.TimestampType() if kind.tz else spark.TimestampNTZType()
    if pa.types.is_decimal(kind) and kind.precision <= 38:
        return spark.DecimalType(kind.precision, kind.scale)
    if pa.types.is_list(kind):
        return spark.ArrayType(spark_type(kind.value_type, column))
    if pa.types.is_struct(kind):
        return spark.StructType([spark.StructField(child.name, spark_type(child.type, column)) for child in kind])
    raise Invalid(
        f"column {column!r}: Spark has no type for {kind}",
        rule="spark-type",
        hint="leave it out of key and compare columns, or convert it in preprocess",
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
    pa.uint64(): spark.DecimalType(20, 0),
    pa.float32(): spark.FloatType(),
    pa.float64(): spark.DoubleType(),
    pa.string(): spark.StringType(),
    pa.large_string(): spark.StringType(),
    pa.binary(): spark.BinaryType(),
    pa.large_binary(): spark.BinaryType(),
    pa.date32(): spark.DateType(),
}
