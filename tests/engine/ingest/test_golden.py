"""Readers, merge strategies, the writer and whole ingests do what the reference does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from chain import instant
from chain.data.arrow_schema import from_arrow
from chain.errors import Invalid
from chain.model import source as steps
from chain.model.source import (
    MergeAppend,
    MergeLedger,
    MergeSnapshot,
    MergeStrategy,
    ReadNdJson,
    SqlQueryStep,
    TransformSql,
)
from engines.contract import InvalidQuery, Success, Vocab
from engines.spark.ingest.history import History
from engines.spark.ingest.merge import MergeContext, Merged, merge
from engines.spark.ingest.parse import SourceFile, parse_sources
from engines.spark.ingest.shape import sort_rows

# Whole ingests as the reference does them: preprocess, vocabularies, inference, empty sources, late data.


pytestmark = pytest.mark.engine
INGESTS = {
    vector["test"]: vector
    for vector in json.loads((Path(__file__).parents[2] / "golden" / "ingest" / "ingest.json").read_text())["vectors"]
}
LEDGER_DDL = "date TIMESTAMP, city STRING, population BIGINT"
NOW = "2050-01-01T12:00:00Z"


def sql(*steps: tuple[str | None, str]) -> TransformSql:
    return TransformSql(engine="spark", queries=tuple(SqlQueryStep(alias=alias, query=query) for alias, query in steps))


def test_polling_snapshot(dataset: Callable[..., Any], csv_step: Callable[..., Any]) -> None:
    vector = INGESTS["test_ingest_polling_snapshot"]
    first, second = vector["preprocess"]
    steps = sql(("step1", first.removeprefix("step1: ")), (None, second))
    made = dataset(MergeSnapshot(primary_key=("city",)))
    for round_ in vector["rounds"]:
        now = round_.get("now", "2050-03-01T12:00:00Z")
        before = len(made.slices)
        answer = made.ingest(
            round_["csv"],
            csv_step("city STRING, population BIGINT"),
            system_time=now,
            source_time=now,
            preprocess=steps,
        )
        assert isinstance(answer, Success), answer
        assert instant.render(answer.new_watermark) == round_["watermark"]
        if "rows" in round_:
            assert made.rows() == round_["rows"]
        else:
            assert len(made.slices) == before


def test_polling_ledger(
    dataset: Callable[..., Any], merge_of: Callable[..., Any], csv_step: Callable[..., Any]
) -> None:
    vector = INGESTS["test_ingest_polling_ledger"]
    vocab = Vocab(event_time=vector["vocab"]["event_time_column"])
    made = dataset(merge_of(vector["merge"]), vocab=vocab)
    for round_ in vector["rounds"]:
        before = len(made.slices)
        answer = made.ingest(round_["csv"], csv_step(LEDGER_DDL), system_time=NOW)
        assert isinstance(answer, Success), answer
        assert instant.render(answer.new_watermark) == re.sub(r" .*", "", round_["watermark"])
        if "rows" in round_:
            assert made.rows() == round_["rows"]
        elif "offsets" in round_:
            assert [row[0] for row in made.rows()] == round_["offsets"]
        else:
            assert len(made.slices) == before


def test_no_data_at_all(dataset: Callable[..., Any], csv_step: Callable[..., Any]) -> None:
    made = dataset(MergeAppend())
    answer = made.ingest("", csv_step(LEDGER_DDL))
    assert (answer.new_offset_interval, answer.new_watermark, answer.schema) == (None, None, None)


def test_event_time_may_be_a_date(dataset: Callable[..., Any], merge_of: Callable[..., Any]) -> None:
    from chain.model.source import ReadCsv

    vector = INGESTS["test_ingest_polling_event_time_as_date"]
    made = dataset(merge_of({"Ledger": {"pk": ["date", "city"]}}), vocab=Vocab(event_time="date"))
    read = ReadCsv(header=True, ddl_schema=("date DATE", "city STRING"))
    answer = made.ingest("date,city\n2020-01-01,A\n", read, system_time=NOW)
    assert instant.render(answer.new_watermark) == vector["watermark"]
    assert pq.ParquetFile(made.slices[-1]).schema.column(3).logical_type.type == "DATE"


def test_event_time_of_another_type_is_refused(dataset: Callable[..., Any], csv_step: Callable[..., Any]) -> None:
    made = dataset(MergeAppend(), vocab=Vocab(event_time="date"))
    answer = made.ingest("date\n2020-01-01\n", csv_step("date STRING"))
    assert isinstance(answer, InvalidQuery)
    assert "event time column 'date' should be a Date or a Timestamp, and is String" in str(answer)


@pytest.mark.parametrize(
    "columns",
    [INGESTS["test_ingest_polling_bad_column_names_preserve"]["columns"], ["date", "UPPER", "lower"]],
    ids=["odd", "case"],
)
def test_column_names_are_kept_as_they_are(
    columns: list[str], dataset: Callable[..., Any], csv_step: Callable[..., Any]
) -> None:
    """Also through the merge's joins."""
    made = dataset(MergeSnapshot(primary_key=(columns[1],)))
    ddl = ", ".join(f'"{name}" STRING' for name in columns)
    for text in ("1,2,3", "1,2,4"):
        answer = made.ingest(f"{','.join(columns)}\n{text}\n", csv_step(ddl))
        assert isinstance(answer, Success), answer
    assert made.last().column_names[4:] == columns
    assert [row[1] for row in made.rows()] == [2, 3]


def test_a_query_names_columns_anew(dataset: Callable[..., Any], csv_step: Callable[..., Any]) -> None:
    made = dataset(MergeSnapshot(primary_key=("city",)))
    time = "to_timestamp(`Date (UTC)`, 'yyyy-MM-dd')"
    query = f"select {time} as event_time, `City Name` as city, `Population` as n from input"
    answer = made.ingest(
        "Date (UTC),City Name,Population\n2000-01-01,A,1000\n",
        csv_step('"Date (UTC)" STRING, "City Name" STRING, "Population" BIGINT'),
        preprocess=sql((None, query)),
    )
    assert isinstance(answer, Success), answer
    assert made.last().column_names[3:] == ["event_time", "city", "n"]


@pytest.mark.parametrize(
    "name",
    [
        "test_ingest_inference_automatic_coercion_of_event_time_from_string",
        "test_ingest_inference_automatic_coercion_of_event_time_from_unixtime",
        "test_ingest_inference_automatic_renaming_of_conflicting_columns",
    ],
)
def test_guessed_schemas(name: str, dataset: Callable[..., Any]) -> None:
    vector = INGESTS[name]
    made = dataset(MergeAppend())
    answer = made.ingest(vector["ndjson"] + "\n", ReadNdJson(), system_time=NOW, source_time=NOW)
    assert isinstance(answer, Success), answer
    assert made.rows() == vector["rows"]
    if "columns" in vector:
        assert made.last().column_names == vector["columns"]


def test_queries_are_case_sensitive(dataset: Callable[..., Any], csv_step: Callable[..., Any]) -> None:
    vector = INGESTS["test_ingest_sql_case_sensitivity"]
    made = dataset(MergeAppend())
    answer = made.ingest(
        "lower,MIXed,mixED,UPPER\na,b,c,d\n",
        csv_step("lower STRING, MIXed STRING, mixED STRING, UPPER STRING"),
        preprocess=sql((None, vector["query"])),
    )
    assert isinstance(answer, Success), answer
    assert made.last().column_names[4:] == vector["columns"]


def test_a_file_of_no_bytes_does_not_empty_a_snapshot(
    dataset: Callable[..., Any], csv_step: Callable[..., Any]
) -> None:
    made = dataset(MergeSnapshot(primary_key=("city",)))
    step = csv_step("city STRING, population BIGINT")
    made.ingest("city,population\nA,1\nB,2\n", step)
    answer = made.ingest("", step)
    assert (answer.new_offset_interval, answer.new_watermark, answer.schema) == (None, made.watermark, None)
    assert isinstance(made.ingest("city,population\n", step), Success)
    assert [(row[1], row[4]) for row in made.rows()] == [(1, "A"), (1, "B")]


# Merge strategies do what the reference does, row by row, on real Spark.


MERGES = json.loads((Path(__file__).parents[2] / "golden" / "ingest" / "merge_strategies.json").read_text())
CODES = MERGES["op_codes"]
LETTERS = {code: letters for letters, code in CODES.items()}
DATA = [("year", pa.int32()), ("city", pa.string()), ("population", pa.int64())]
FORCE = pa.schema([("offset", pa.int64()), ("op", pa.int32()), *DATA])
VOCAB = Vocab(event_time="year")


def history_of(ledger: list[list[Any]], folder: Path) -> History:
    """Every ledger row in its own slice, so that state spans slices."""
    paths = []
    for offset, (op, year, city, population) in enumerate(ledger):
        row = {"offset": offset, "op": CODES[op], "year": year, "city": city, "population": population}
        paths.append(folder / f"slice-{offset}")
        pq.write_table(pa.Table.from_pylist([row], FORCE), paths[-1])
    return History(FORCE, paths)


def batch_of(rows: list[list[Any]]) -> pa.Table:
    width = len(rows[0]) if rows else 3
    names = {2: ["city", "population"], 3: ["year", "city", "population"], 4: ["op", "year", "city", "population"]}
    types = {"op": pa.int32(), **dict(DATA)}
    schema = pa.schema([(name, types[name]) for name in names[width]])
    rows = [[CODES[row[0]], *row[1:]] if width == 4 else row for row in rows]
    table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)
    if "year" not in schema.names:
        table = table.append_column(pa.field("year", pa.int32()), pa.nulls(len(rows), pa.int32()))
    return table


def said(merged: Merged) -> list[list[Any]]:
    table = sort_rows(merged.rows.append_column("op", merged.op), merged.order)
    rows = table.select(["op", "year", "city", "population"]).to_pylist()
    return [[LETTERS[row["op"]], row["year"], row["city"], row["population"]] for row in rows]


@pytest.mark.parametrize(
    "vector", MERGES["merge"], ids=lambda vector: f"{vector['test']}-{'-'.join(vector.get('pk', []))}"
)
def test_as_the_reference(spark: SparkSession, tmp_path: Path, vector: dict[str, Any]) -> None:
    content = {"kind": vector["strategy"], **({"primaryKey": vector["pk"]} if "pk" in vector else {})}
    strategy = msgspec.convert(content, MergeStrategy)
    context, history = MergeContext(lambda: spark, tmp_path, VOCAB), history_of(vector["ledger"], tmp_path)
    batch = batch_of(vector["input"])
    if vector["expected"] == "ERROR Internal":
        with pytest.raises(Invalid, match="no column 'foo'") as caught:
            merge(context, batch, history, strategy)
        assert "city" in caught.value.hint
        return
    assert said(merge(context, batch, history, strategy)) == vector["expected"]


@pytest.mark.parametrize("vector", MERGES["snapshot_project"]["vectors"], ids=lambda vector: vector["test"])
def test_state_is_the_latest_row_of_each_key(spark: SparkSession, tmp_path: Path, vector: dict[str, Any]) -> None:
    """An empty snapshot takes back exactly the state."""
    strategy = msgspec.convert({"kind": "Snapshot", "primaryKey": ["city"]}, MergeStrategy)
    merged = merge(
        MergeContext(lambda: spark, tmp_path, VOCAB), batch_of([]), history_of(vector["ledger"], tmp_path), strategy
    )
    state = sorted([row[1:] for row in vector["expected_state"]])
    assert sorted(row[1:] for row in said(merged)) == state
    assert {row[0] for row in said(merged)} <= {"R"}


# Readers: options, schemas given and guessed, as the reference reads.


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


# Slices as the reference's writer makes them: rows, offsets, Parquet schema, watermark, refusals.


WRITER = {
    vector["test"]: vector
    for vector in json.loads((Path(__file__).parents[2] / "golden" / "ingest" / "writer.json").read_text())["vectors"]
}
WITH_ROUNDS = [vector for vector in WRITER.values() if "rounds" in vector]
REFUSALS = {
    "IncompatibleSchema": "does not fit the dataset's schema",
    "ExecutionError: Column `population` contains 1 null values while none were expected": (
        "column 'population' contains 1 null values while none were expected"
    ),
}
DEFAULT_DDL = "city STRING, population BIGINT"


def parquet_schema(path: str) -> str:
    """The file's physical schema in the words of the golden files."""
    schema = pq.ParquetFile(path).schema
    parts = []
    for index in range(len(schema)):
        column = schema.column(index)
        logical = str(column.logical_type)
        suffix = {"String": " (STRING)", "Date": " (DATE)"}.get(logical, "")
        if logical.startswith("Timestamp"):
            assert "isAdjustedToUTC=true" in logical
            assert "timeUnit=milliseconds" in logical
            suffix = " (TIMESTAMP(MILLIS,true))"
        need = "REQUIRED" if column.max_definition_level == 0 else "OPTIONAL"
        parts.append(f"{need} {column.physical_type} {column.name}{suffix};")
    return " ".join(parts)


@pytest.mark.parametrize("vector", WITH_ROUNDS, ids=lambda vector: vector["test"])
def test_rounds(
    vector: dict[str, Any],
    dataset: Callable[..., Any],
    merge_of: Callable[..., Any],
    csv_step: Callable[..., Any],
) -> None:
    made = dataset(MergeAppend() if isinstance(vector["merge"], str) else merge_of(vector["merge"]))
    ddl = DEFAULT_DDL
    for round_ in vector["rounds"]:
        ddl = round_.get("ddl", ddl)
        rows = round_.get("rows")
        system_time = round_.get("system_time") or (rows[0][2] if rows else "2010-01-01T12:00:00Z")
        source_time = round_.get("source_event_time") or (rows[0][3] if rows else "2000-01-01T12:00:00Z")
        before = made.watermark, len(made.slices)
        answer = made.ingest(
            round_["csv"], csv_step(ddl), system_time=system_time, source_time=instant_text(source_time)
        )
        check_round(made, answer, round_, before)
        if round_.get("error") == "IncompatibleSchema":
            ddl = DEFAULT_DDL


def instant_text(text: str) -> str:
    return text if "T" in text else f"{text}T00:00:00Z"


def check_round(made: Any, answer: Any, round_: dict[str, Any], before: tuple[Any, int]) -> None:
    error = round_.get("error")
    if error in REFUSALS:
        assert isinstance(answer, InvalidQuery)
        assert REFUSALS[error] in str(answer)
        return
    assert isinstance(answer, Success), answer
    if error == "EmptyCommit" or ("new_data" in round_ and round_["new_data"] is None):
        assert answer.new_offset_interval is None
        assert (made.watermark, len(made.slices)) == before
        return
    assert len(made.slices) == before[1] + 1
    if "rows" in round_:
        assert made.rows() == round_["rows"]
    if "parquet_schema" in round_:
        assert parquet_schema(made.slices[-1]) == round_["parquet_schema"]
    if "watermark" in round_:
        assert instant.render(answer.new_watermark) == re.sub(r" .*", "", round_["watermark"])


def test_encoding_is_the_references(dataset: Callable[..., Any], csv_step: Callable[..., Any]) -> None:
    made = dataset(MergeAppend())
    made.ingest("city,population\nA,1\nB,2\n", csv_step(DEFAULT_DDL))
    group = pq.ParquetFile(made.slices[-1]).metadata.row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    for name, wanted in WRITER["test_data_writer_optimal_parquet_encoding"]["asserts"].items():
        if name in columns:
            assert columns[name].compression == wanted["compression"]
            if "data_page_encoding" in wanted:
                assert columns[name].has_dictionary_page


CENSUS = ["A,1000,", "B,2000,https://b.ca/census", "C,3000,", "D,4000,https://d.ca/census"]


@pytest.mark.parametrize(
    "name,merge,timed",
    [
        ("append", MergeAppend(), False),
        ("ledger", MergeLedger(primary_key=("event_time", "city")), True),
        ("snapshot", MergeSnapshot(primary_key=("city",)), False),
    ],
)
def test_an_optional_column_is_added(
    name: str, merge: Any, timed: bool, dataset: Callable[..., Any], csv_step: Callable[..., Any]
) -> None:
    """Old slices lack the column, which then reads as null."""
    wanted = WRITER[f"test_data_writer_schema_evolution_add_optional_field_merge_{name}"]["rows"]
    ddl = ("event_time TIMESTAMP, " if timed else "") + "city STRING NOT NULL, population BIGINT NOT NULL"
    head, times = ("event_time," if timed else ""), ["2021-01-01,"] * 3 + ["2021-02-01,"] if timed else [""] * 4
    made = dataset(merge)
    rows = [f"{time}{row.rsplit(',', 1)[0]}" for time, row in zip(times, CENSUS[:3], strict=False)]
    first = made.ingest("\n".join([f"{head}city,population", *rows]), csv_step(ddl))
    assert isinstance(first, Success)
    columns = pq.read_schema(made.slices[-1]).remove_metadata().append(pa.field("census_url", pa.string()))
    made.schema = from_arrow(columns)
    more = [f"{time}{row}" for time, row in zip(times, CENSUS, strict=True)]
    second = made.ingest("\n".join([f"{head}city,population,census_url", *more]), csv_step(f"{ddl}, census_url STRING"))
    assert isinstance(second, Success), second
    assert made.rows() == wanted
