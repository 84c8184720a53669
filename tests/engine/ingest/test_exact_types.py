"""Ingest keeps every type and every digit: read, preprocessed, merged by; or says which column it would cut."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chain.data.arrow_schema import from_arrow
from chain.data.ddl import spell_field
from chain.model import schema as odf
from chain.model.schema import DataField, DataSchema, TimeUnit
from chain.model.source import (
    MergeAppend,
    MergeLedger,
    MergeSnapshot,
    MergeUpsertStream,
    ReadCsv,
    ReadNdJson,
    ReadParquet,
    TransformSql,
)
from engines.contract import InvalidQuery, Success
from worlds.every_type import AT, every_type

pytestmark = pytest.mark.engine
NS, US, MS = (pa.timestamp(unit, "UTC") for unit in ("ns", "us", "ms"))
SYSTEM = ["offset", "op", "system_time", "event_time"]
PARQUET = ReadParquet()


def parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def given(**columns: tuple[pa.DataType, list[Any]]) -> bytes:
    return parquet(pa.table({name: pa.array(values, kind) for name, (kind, values) in columns.items()}))


def passed(sql: str) -> TransformSql:
    return TransformSql(engine="spark", query=sql)


def data_of(table: pa.Table) -> pa.Table:
    return table.drop_columns(SYSTEM)


@pytest.mark.parametrize("sql", [None, "select * from input"], ids=["plain", "preprocessed"])
def test_every_type_is_kept(dataset: Callable[..., Any], sql: str | None) -> None:
    rows = every_type()
    root = dataset(MergeAppend())
    answer = root.ingest(parquet(rows), PARQUET, preprocess=passed(sql) if sql else None)
    assert isinstance(answer, Success), answer
    made = data_of(root.last())
    assert dict(zip(made.column_names, made.schema.types, strict=True)) == dict(
        zip(rows.column_names, rows.schema.types, strict=True)
    )
    for name in rows.column_names:
        assert made.column(name).combine_chunks().equals(rows.column(name).combine_chunks()), name


NEAR = [AT, AT + 1]
"""One nanosecond apart: the same to Spark's own times."""


@pytest.mark.parametrize("merge", [MergeSnapshot(primary_key=("k",)), MergeUpsertStream(primary_key=("k",))])
def test_keys_and_compared_columns_differ_by_a_nanosecond(dataset: Callable[..., Any], merge: Any) -> None:
    root = dataset(merge)
    key = (NS, NEAR)
    root.ingest(given(k=key, at=(NS, NEAR), clock=(pa.time64("ns"), [1, 2])), PARQUET)
    assert root.last().num_rows == 2
    again = root.ingest(given(k=key, at=(NS, NEAR), clock=(pa.time64("ns"), [1, 2])), PARQUET)
    assert isinstance(again, Success)
    assert again.new_offset_interval is None
    root.ingest(given(k=key, at=(NS, [AT, AT + 2]), clock=(pa.time64("ns"), [1, 2])), PARQUET)
    assert root.last().column("op").to_pylist() == [2, 3]
    assert root.last().column("at").cast(pa.int64()).to_pylist() == [AT + 1, AT + 2]


def test_a_ledger_sees_keys_a_nanosecond_apart(dataset: Callable[..., Any]) -> None:
    root = dataset(MergeLedger(primary_key=("k",)))
    root.ingest(given(k=(NS, NEAR[:1])), PARQUET)
    root.ingest(given(k=(NS, NEAR)), PARQUET)
    assert root.last().column("k").cast(pa.int64()).to_pylist() == [AT + 1]


TIMES = DataSchema(
    fields=tuple(
        DataField(name=name, type=odf.Option(inner=odf.Timestamp(unit=unit)))
        for name, unit in (("ms", TimeUnit.MILLISECOND), ("us", TimeUnit.MICROSECOND), ("ns", TimeUnit.NANOSECOND))
    )
)
TEXT = "2023-11-14T22:13:20.123456789Z"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (f"ms,us,ns\n{TEXT},{TEXT},{TEXT}\n", ReadCsv(header=True, schema=TIMES)),
        (f'{{"ms": "{TEXT}", "us": "{TEXT}", "ns": "{TEXT}"}}\n', ReadNdJson(schema=TIMES)),
    ],
    ids=["csv", "json"],
)
def test_texts_are_read_to_the_unit_declared(dataset: Callable[..., Any], text: str, read: Any) -> None:
    root = dataset(MergeAppend())
    answer = root.ingest(text, read)
    assert isinstance(answer, Success), answer
    made = data_of(root.last())
    assert made.schema.types == [MS, US, NS]
    assert [column.cast(pa.int64())[0].as_py() for column in made.columns] == [AT // 10**6, AT // 10**3, AT]


def test_event_times_finer_than_milliseconds_are_told_not_cut(dataset: Callable[..., Any]) -> None:
    root = dataset(MergeAppend())
    for unit, kind in (("us", US), ("ns", NS)):
        answer = root.ingest(given(event_time=(kind, [1_500_000, 1_500_001])), PARQUET)
        assert isinstance(answer, InvalidQuery), unit
        assert "column 'event_time' of the dataset is a Timestamp, and its times here are finer" in str(answer)
    hinted = passed(
        "SET odf.ahead = 'any';"
        " select timestamp_millis(event_time div 1000000) as event_time, event_time as exact from input"
    )
    answer = root.ingest(given(event_time=(NS, [AT])), PARQUET, preprocess=hinted)
    assert isinstance(answer, Success), answer
    assert root.last().column("exact").cast(pa.int64()).to_pylist() == [AT]
    assert root.last().column("event_time").cast(pa.int64()).to_pylist() == [AT // 10**6]
    assert answer.new_watermark == AT // 10**6 * 10**6


def test_event_times_in_finer_units_are_taken_where_nothing_is_lost(dataset: Callable[..., Any]) -> None:
    for kind, scale in ((US, 10**3), (NS, 10**6)):
        root = dataset(MergeAppend())
        assert isinstance(root.ingest(given(event_time=(kind, [7 * scale])), PARQUET), Success)
        assert root.last().column("event_time").type == MS
        assert root.last().column("event_time").cast(pa.int64()).to_pylist() == [7]


def test_times_finer_than_the_dataset_has_are_told_not_cut(dataset: Callable[..., Any]) -> None:
    root = dataset(MergeAppend())
    root.ingest(given(t=(MS, [1])), PARQUET)
    assert isinstance(root.ingest(given(t=(US, [5000])), PARQUET), Success)
    assert root.last().column("t").cast(pa.int64()).to_pylist() == [5]
    refused = root.ingest(given(t=(US, [5001])), PARQUET)
    assert isinstance(refused, InvalidQuery)
    assert "column 't' of the dataset is a Timestamp, and its times here are finer" in str(refused)
    declared = ReadParquet(ddl_schema=("t TIMESTAMP",))
    refused = root.ingest(given(t=(US, [5001])), declared)
    assert isinstance(refused, InvalidQuery)
    assert "column 't' is declared a Timestamp, and the file holds finer times" in str(refused)
    assert "{kind: Timestamp, unit: Microsecond}" in str(refused)


def test_what_preprocess_computes_is_told_not_cut(dataset: Callable[..., Any]) -> None:
    root = dataset(MergeAppend())
    refused = root.ingest(
        given(t=(US, [5001])), PARQUET, preprocess=passed("select t + interval 1 day as t from input")
    )
    assert isinstance(refused, InvalidQuery)
    assert "column 't' holds times with digits that timestamp[ms, tz=UTC] cannot hold" in str(refused)


OLD = pa.struct([pa.field("city", pa.string())])
NEW = pa.struct([pa.field("zip", pa.uint64()), pa.field("city", pa.string())])


@pytest.mark.parametrize(
    ("merge", "ops"),
    [
        (MergeLedger(primary_key=("k",)), [0]),
        (MergeSnapshot(primary_key=("k",)), [2, 3, 0]),
        (MergeUpsertStream(primary_key=("k",)), [2, 3, 0]),
    ],
)
def test_merges_read_old_slices_under_the_schema_in_force(
    dataset: Callable[..., Any], merge: Any, ops: list[int]
) -> None:
    """One row as it was, one with what is new filled in, one more."""
    root = dataset(merge)
    first = [{"city": "Graz"}, {"city": "Linz"}]
    root.ingest(given(k=(pa.int64(), [1, 2]), place=(OLD, first)), PARQUET)
    force = pq.read_schema(root.slices[0])
    grown = [field.with_type(NEW) if field.name == "place" else field for field in force]
    root.schema = from_arrow(pa.schema([*grown, pa.field("note", pa.string())]))
    now = [{"zip": None, "city": "Graz"}, {"zip": 4020, "city": "Linz"}, {"zip": 1, "city": "Wien"}]
    second = given(k=(pa.int64(), [1, 2, 3]), place=(NEW, now), note=(pa.string(), [None, None, "n"]))
    answer = root.ingest(second, PARQUET)
    assert isinstance(answer, Success), answer
    made = root.last()
    assert made.column("op").to_pylist() == ops
    places = {2: {"zip": None, "city": "Linz"}, 3: {"zip": 4020, "city": "Linz"}, 0: {"zip": 1, "city": "Wien"}}
    assert made.column("place").to_pylist() == [places[op] for op in ops]
    again = root.ingest(second, PARQUET)
    assert isinstance(again, Success)
    assert again.new_offset_interval is None


ONE, TWO, THREE = (str(uuid.UUID(int=(number << 120) + number)) for number in (3, 1, 2))
TEXTS = "id UUID NOT NULL", "name STRING"


def uuid_file(step: Any, pairs: list[tuple[str, str]]) -> bytes:
    if isinstance(step, ReadParquet):
        ids = pa.array([uuid.UUID(each).bytes for each, _ in pairs], pa.binary(16)).cast(pa.uuid())
        return parquet(pa.table({"id": ids, "name": [name for _, name in pairs]}))
    if isinstance(step, ReadCsv):
        return "".join(f"{each},{name}\n" for each, name in pairs).encode()
    return "".join(json.dumps({"id": each, "name": name}) + "\n" for each, name in pairs).encode()


@pytest.mark.parametrize("sql", [None, "select * from input"], ids=["plain", "preprocessed"])
@pytest.mark.parametrize(
    "step", [PARQUET, ReadCsv(ddl_schema=TEXTS), ReadNdJson(ddl_schema=TEXTS)], ids=lambda s: type(s).__name__
)
def test_uuids_are_keys_and_stay_uuids(dataset: Callable[..., Any], step: Any, sql: str | None) -> None:
    root = dataset(MergeSnapshot(primary_key=("id",)))
    query = passed(sql) if sql else None
    first = root.ingest(uuid_file(step, [(ONE, "a"), (TWO, "b")]), step, preprocess=query)
    assert isinstance(first, Success), first
    assert [spell_field(field).rstrip("?") for field in first.schema.fields[-2:]] == ["UUID", "String"]
    assert root.last().schema.field("id").type == pa.uuid(), "Parquet's logical type"
    again = root.ingest(uuid_file(step, [(ONE, "c"), (THREE, "d")]), step, preprocess=query)
    assert isinstance(again, Success), again
    made = root.last()
    told = zip(
        map(str, made.column("id").to_pylist()),
        made.column("name").to_pylist(),
        made.column("op").to_pylist(),
        strict=True,
    )
    assert sorted(told) == sorted([(TWO, "b", 1), (THREE, "d", 0), (ONE, "a", 2), (ONE, "c", 3)])


def test_what_is_no_uuid_is_told_with_its_line(dataset: Callable[..., Any]) -> None:
    refused = dataset(MergeAppend()).ingest(b"123,a\n", ReadCsv(ddl_schema=TEXTS))
    assert isinstance(refused, InvalidQuery)
    assert "'123' is not a UUID" in str(refused)
