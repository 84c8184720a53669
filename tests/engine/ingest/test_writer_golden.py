"""Slices as the reference's writer makes them: rows, offsets, Parquet schema, watermark, refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chain import instant
from chain.data.arrow_schema import from_arrow
from chain.model.source import MergeAppend, MergeLedger, MergeSnapshot
from engines.contract import InvalidQuery, Success

pytestmark = pytest.mark.engine

GOLDEN = {
    vector["test"]: vector
    for vector in json.loads((Path(__file__).parents[2] / "golden" / "ingest" / "writer.json").read_text())["vectors"]
}
WITH_ROUNDS = [vector for vector in GOLDEN.values() if "rounds" in vector]
REFUSALS = {
    "IncompatibleSchema": "does not fit the dataset's schema",
    "ExecutionError: Column `population` contains 1 null values while none were expected": (
        "column 'population' contains 1 null values while none were expected"
    ),
}
DEFAULT_DDL = "city STRING, population BIGINT"
TS = pa.timestamp("ms", "UTC")


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
    for name, wanted in GOLDEN["test_data_writer_optimal_parquet_encoding"]["asserts"].items():
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
    wanted = GOLDEN[f"test_data_writer_schema_evolution_add_optional_field_merge_{name}"]["rows"]
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
