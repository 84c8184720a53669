"""Types of the format to Spark's and back: a column that is passed on is what it was, or Spark never gets it."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from chain.data.arrow_schema import to_arrow
from chain.errors import Invalid
from chain.model.schema import DataSchema
from engines.spark.catalyst.types import as_written, slice_types, struct_type
from worlds.every_type import every_type
from worlds.schemas import SCHEMAS


@pytest.mark.slow
@given(SCHEMAS)
def test_every_column_comes_back_as_it_was_or_is_refused_by_name(schema: DataSchema) -> None:
    for field in to_arrow(schema):
        column = pa.schema([field])
        refused: list[Invalid] = []
        try:
            held = struct_type(column)
        except Invalid as fault:
            refused.append(fault)
        if refused:
            assert repr(field.name) in refused[0].message
            assert refused[0].hint
            continue
        assert slice_types(held).types == column.types
        renamed = [spark.StructField("other", each.dataType, metadata=each.metadata) for each in held]
        assert slice_types(renamed).types == column.types


def test_values_come_back_as_they_were() -> None:
    rows = every_type()
    held = struct_type(rows.schema)
    there = rows.cast(to_arrow_schema(held, timezone="UTC").remove_metadata())
    assert as_written(there, slice_types(held)).equals(rows)


def test_what_a_query_computes_is_in_milliseconds_and_says_what_it_would_lose() -> None:
    computed = [
        spark.StructField("at", spark.TimestampType()),
        spark.StructField("several", spark.ArrayType(spark.TimestampType())),
    ]
    types = slice_types(computed)
    millis = pa.timestamp("ms", "UTC")
    assert types.types == [millis, pa.list_(millis)]
    micros = pa.timestamp("us", "UTC")
    whole = pa.table({"at": pa.array([5000], micros), "several": pa.array([[1000, None]], pa.list_(micros))})
    assert as_written(whole, types).column("at").cast(pa.int64()).to_pylist() == [5]
    for name, column in (("at", pa.array([5001], micros)), ("several", pa.array([[1]], pa.list_(micros)))):
        with pytest.raises(Invalid, match=f"column '{name}' holds times with digits") as caught:
            as_written(pa.table({name: column}), types)
        assert "date_trunc" in caught.value.hint


def test_a_column_that_was_made_anew_under_an_old_memory_is_what_spark_says() -> None:
    """Spark keeps metadata where a type changes beneath it, as in unions of unlike columns."""
    (was,) = struct_type(pa.schema([("n", pa.uint8())]))
    assert slice_types([spark.StructField("n", spark.LongType(), metadata=was.metadata)]).types == [pa.int64()]


@pytest.mark.parametrize("kind", [spark.MapType(spark.StringType(), spark.LongType()), spark.NullType()])
def test_types_that_a_dataset_cannot_hold(kind: spark.DataType) -> None:
    with pytest.raises(Invalid, match="column x"):
        slice_types([spark.StructField("x", kind)])


@pytest.mark.parametrize(
    "kind",
    [
        spark.YearMonthIntervalType(),
        spark.DayTimeIntervalType(),
        spark.ArrayType(spark.YearMonthIntervalType()),
        spark.ArrayType(spark.StructType([spark.StructField("key", spark.NullType(), False)])),
    ],
)
def test_a_computed_type_that_no_dataset_holds_is_refused_by_name(kind: spark.DataType) -> None:
    with pytest.raises(Invalid, match=r"column span is of type .*, which a dataset cannot hold") as fault:
        slice_types([spark.StructField("span", kind)])
    assert (fault.value.rule, bool(fault.value.hint)) == ("output-type", True)
