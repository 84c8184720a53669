"""Columns added to a root are of the types that they would have had from its first row on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from chain.data.arrow_schema import from_arrow
from chain.ids import DatasetId
from chain.model.events import DatasetKind, SetDataSchema, SetPollingSource
from chain.model.schema import Option
from chain.model.source import FetchUrl, MergeAppend, MergeSnapshot, ReadCsv
from chain.state import ChainState
from engines.contract import Success
from odfd.ingest.alteration import Alteration, plan_alteration

pytestmark = pytest.mark.engine
READ = ReadCsv(header=True, ddl_schema=("event_time TIMESTAMP, k STRING",))
DAY = "2020-01-0{}T00:00:00Z"
VALUES = {
    "BOOLEAN": "true", "TINYINT": "1", "SMALLINT": "2", "INT": "3", "BIGINT": "4", "REAL": "1.5", "DOUBLE": "2.5",
    "DECIMAL(9, 2)": "1.25", "DATE": "2020-02-29", "TIMESTAMP": DAY.format(1), "TIMESTAMP(6)": DAY.format(1),
    "STRING": "x", "INT UNSIGNED": "7",
}  # fmt: skip


def altered(schema: Any, *columns: str, read: ReadCsv = READ) -> tuple[Any, ReadCsv]:
    source = SetPollingSource(fetch=FetchUrl(url="https://a.example"), read=read, merge=MergeAppend())
    state = ChainState(
        dataset=DatasetId.from_public_key(bytes(32)),
        kind=DatasetKind.ROOT,
        schema=SetDataSchema(schema=schema),
        set_polling_source=source,
    )
    done = plan_alteration(state, Alteration(action="add", columns=columns))
    changed = done.events[0]
    assert isinstance(changed, SetPollingSource)
    assert isinstance(changed.read, ReadCsv)
    return done.schema, changed.read


def test_each_type_is_taken_in_as_if_it_had_always_been_there(
    spark: SparkSession, dataset: Callable[..., Any], dataset_class: Any, tmp_path: Any
) -> None:
    columns = {f"c{place}": kind for place, kind in enumerate(VALUES)}
    header, row = ",".join(["event_time", "k", *columns]), ",".join([DAY.format(2), "b", *VALUES.values()])
    made = dataset(MergeAppend())
    made.ingest(f"event_time,k\n{DAY.format(1)},a\n", READ)
    made.schema, read = altered(made.schema, *(f"{name} {kind}" for name, kind in columns.items()))
    answer = made.ingest(f"{header}\n{row}\n", read)
    assert isinstance(answer, Success), answer
    (tmp_path / "fresh").mkdir()
    fresh = dataset_class(spark, tmp_path / "fresh", MergeAppend())
    assert isinstance(fresh.ingest(f"{header}\n{row}\n", read), Success)
    plain = {field.name: field.type for field in fresh.schema.fields}
    for field in made.schema.fields:
        if field.name in columns and field.type != plain[field.name]:
            assert "TIMESTAMP" in columns[field.name], field
            assert isinstance(field.type, Option)
    assert made.last().schema.names == fresh.last().schema.names
    assert from_arrow(made.last().schema.remove_metadata()).fields[-1] == fresh.schema.fields[-1]


def test_a_snapshot_corrects_rows_that_come_with_a_value(spark: SparkSession, dataset: Callable[..., Any]) -> None:
    made = dataset(MergeSnapshot(primary_key=("k",)))
    made.ingest(f"event_time,k\n{DAY.format(1)},a\n{DAY.format(1)},b\n", READ)
    made.schema, read = altered(made.schema, "v INT")
    answer = made.ingest(f"event_time,k,v\n{DAY.format(1)},a,1\n{DAY.format(1)},b,\n", read)
    assert isinstance(answer, Success), answer
    rows = made.last().select(["op", "k", "v"]).to_pylist()
    assert rows == [{"op": 2, "k": "a", "v": None}, {"op": 3, "k": "a", "v": 1}]
