"""Readers: options, schemas given and guessed, as the reference reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from chain.data.arrow_schema import from_arrow
from chain.errors import Invalid
from chain.model import source as steps
from engines.spark.ingest.parse import SourceFile, parse_sources

pytestmark = pytest.mark.engine

TS = pa.timestamp("ms", "UTC")
CITIES = "city,population\nA,1000\nB,2000\nC,3000\n"
CITY_LINES = '{"city": "A", "population": 1000}\n{"city": "B", "population": 2000}\n{"city": "C", "population": 3000}\n'
CITY_ARRAY = "[" + CITY_LINES.strip().replace("\n", ",") + "]"
SHAPE = '{"type": "Polygon", "coordinates": [[[0.0, 0.0], [10.0, 0.0], [10.0, 10.0], [0.0, 10.0], [0.0, 0.0]]]}'
FEATURE = f'{{"type": "Feature", "properties": {{"id": 0, "zipcode": "00101", "name": "A"}}, "geometry": {SHAPE}}}'
VECTORS = json.loads((Path(__file__).parents[2] / "golden" / "ingest" / "readers.json").read_text())["vectors"]
GEOMETRY = next(vector["geometry_text"] for vector in VECTORS if "geometry_text" in vector)
REQUIRED = pa.schema([pa.field("city", pa.string(), False), pa.field("population", pa.int32(), False)])
GUESSED = pa.schema([("city", pa.string()), ("population", pa.int64())])


def vector(reader: str, number: int) -> dict[str, Any]:
    return [each for each in VECTORS if each["reader"] == reader][number]


@pytest.fixture
def read(spark: SparkSession, tmp_path: Path) -> Callable[..., pa.Table]:
    def run(text: str, step: steps.ReadStep) -> pa.Table:
        path = tmp_path / "source"
        path.write_text(text)
        parts = parse_sources(lambda: spark, [SourceFile(path, "source")], step, tmp_path)
        assert parts is not None
        table = pa.concat_tables([pq.read_table(part) for part in parts.paths])
        assert sum(parts.rows) == table.num_rows
        return table.cast(parts.schema)

    return run


def rows(table: pa.Table) -> list[list[Any]]:
    return [list(row.values()) for row in table.to_pylist()]


def test_csv_with_schema(read: Callable[..., pa.Table]) -> None:
    table = read(vector("Csv", 0)["input"], steps.ReadCsv(header=True, schema=from_arrow(REQUIRED)))
    assert table.schema == REQUIRED
    assert rows(table) == [["A", 1000], ["B", 2000], ["C", 3000]]


def test_csv_without_schema_is_text(read: Callable[..., pa.Table]) -> None:
    table = read(vector("Csv", 1)["input"], steps.ReadCsv(header=True))
    assert table.schema == pa.schema([("city", pa.string()), ("population", pa.string())])


def test_csv_guesses_when_asked(read: Callable[..., pa.Table]) -> None:
    assert read(vector("Csv", 2)["input"], steps.ReadCsv(header=True, infer_schema=True)).schema == GUESSED


def test_csv_has_no_header_unless_said(read: Callable[..., pa.Table]) -> None:
    table = read(vector("Csv", 3)["input"], steps.ReadCsv(ddl_schema=("city STRING", "population BIGINT")))
    assert rows(table) == [["A", 1000], ["B", 2000], ["C", 3000]]
    assert read("x,1\n", steps.ReadCsv()).column_names == ["column_1", "column_2"]


def test_csv_empty_is_null(read: Callable[..., pa.Table]) -> None:
    case = vector("Csv", 4)
    assert rows(read(case["input"], steps.ReadCsv(header=True, infer_schema=True))) == case["rows"]


def test_csv_separator(read: Callable[..., pa.Table]) -> None:
    case = vector("Csv", 5)
    step = steps.ReadCsv(separator="\t", ddl_schema=("a INT, b INT, c INT, d INT",))
    assert rows(read(case["input"], step)) == case["rows"]


def test_tsv_empty_is_null(read: Callable[..., pa.Table]) -> None:
    step = steps.ReadCsv(separator="\t", header=True, infer_schema=True)
    assert rows(read("city\tpopulation\nA\t1000\nB\t\nC\t3000\n", step)) == [["A", 1000], ["B", None], ["C", 3000]]


def test_ndjson_with_schema(read: Callable[..., pa.Table]) -> None:
    table = read(CITY_LINES, steps.ReadNdJson(schema=from_arrow(REQUIRED)))
    assert table.schema == REQUIRED
    assert rows(table)[0] == ["A", 1000]


def test_ndjson_guessed(read: Callable[..., pa.Table]) -> None:
    assert read(CITY_LINES, steps.ReadNdJson()).schema == GUESSED


def test_ndjson_dates(read: Callable[..., pa.Table]) -> None:
    case = vector("NdJson", 2)
    table = read(case["input"], steps.ReadNdJson(schema=from_arrow(pa.schema([("date", pa.date32())]))))
    assert [[value.isoformat()] for value in table.column(0).to_pylist()] == case["rows"]


def test_ndjson_times(read: Callable[..., pa.Table]) -> None:
    case = vector("NdJson", 3)
    text = "\n".join(json.dumps({"event_time": value}) for value in case["input"])
    table = read(text, steps.ReadNdJson(schema=from_arrow(pa.schema([("event_time", TS)]))))
    assert [[v.isoformat().replace("+00:00", "Z")] for v in table.column(0).to_pylist()] == case["rows"]


def test_ndjson_bad_time_names_its_line(read: Callable[..., pa.Table]) -> None:
    good = '{"event_time": "2022-09-25 01:02:03"}\n'
    with pytest.raises(Invalid, match=r"source:2: column 'event_time': '9/25/2022 1:02:03' is not a Timestamp"):
        read(good + vector("NdJson", 4)["input"], steps.ReadNdJson(schema=from_arrow(pa.schema([("event_time", TS)]))))


def test_json_sub_path_and_array(read: Callable[..., pa.Table]) -> None:
    step = steps.ReadJson(sub_path="result.cities", schema=from_arrow(REQUIRED))
    assert rows(read(f'{{"result": {{"cities": {CITY_ARRAY}}}}}', step))[2] == ["C", 3000]
    assert rows(read(CITY_ARRAY, steps.ReadJson(schema=from_arrow(REQUIRED))))[2] == ["C", 3000]
    with pytest.raises(Invalid, match=r"no 'towns' at \$\.result"):
        read(f'{{"result": {{"cities": {CITY_ARRAY}}}}}', steps.ReadJson(sub_path="result.towns"))


@pytest.mark.parametrize("step", [steps.ReadGeoJson(), steps.ReadNdGeoJson()], ids=["document", "lines"])
def test_geojson(read: Callable[..., pa.Table], step: steps.ReadStep) -> None:
    lines = isinstance(step, steps.ReadNdGeoJson)
    text = FEATURE if lines else f'{{"type": "FeatureCollection", "features": [{FEATURE}]}}'
    table = read(text, step)
    names = [("geometry", pa.string()), ("id", pa.int64()), ("name", pa.string()), ("zipcode", pa.string())]
    assert table.schema == pa.schema(names)
    assert table.column("geometry")[0].as_py() == GEOMETRY


def test_parquet_round(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "typed.parquet"
    table = pa.table({"t": pa.array([1, None], pa.timestamp("us")), "l": pa.array([["a"], []], pa.list_(pa.string()))})
    pq.write_table(table, path)
    parts = parse_sources(lambda: spark, [SourceFile(path, "typed")], steps.ReadParquet(), tmp_path)
    assert parts is not None
    assert parts.schema.field("t").type == pa.timestamp("us", "UTC")
    assert pq.read_table(parts.paths[0]).column("t").cast(pa.int64()).to_pylist() == [1, None]
    assert pq.read_table(parts.paths[0]).column("l").to_pylist() == [["a"], []]


def test_parquet_becomes_what_is_declared(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "cities.parquet"
    pq.write_table(pa.table({"city": ["A", "B"], "population": [1000, 2000]}), path)
    texts = pa.schema([pa.field("city", pa.string(), False), pa.field("population", pa.string(), False)])
    step = steps.ReadParquet(schema=from_arrow(texts))
    parts = parse_sources(lambda: spark, [SourceFile(path, "cities")], step, tmp_path)
    assert parts is not None
    assert parts.schema == texts
    assert rows(pq.read_table(parts.paths[0])) == [["A", "1000"], ["B", "2000"]]
