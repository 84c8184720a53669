"""Whole ingests as the reference does them: preprocess, vocabularies, inference, empty sources, late data."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from chain import instant
from chain.model.source import MergeAppend, MergeSnapshot, ReadNdJson, SqlQueryStep, TransformSql
from engines.contract import InvalidQuery, Success, Vocab

pytestmark = pytest.mark.engine

GOLDEN = {
    vector["test"]: vector
    for vector in json.loads((Path(__file__).parents[2] / "golden" / "ingest" / "ingest.json").read_text())["vectors"]
}
LEDGER_DDL = "date TIMESTAMP, city STRING, population BIGINT"
NOW = "2050-01-01T12:00:00Z"


def sql(*steps: tuple[str | None, str]) -> TransformSql:
    return TransformSql(engine="spark", queries=tuple(SqlQueryStep(alias=alias, query=query) for alias, query in steps))


def test_polling_snapshot(dataset: Callable[..., Any], csv_step: Callable[..., Any]) -> None:
    vector = GOLDEN["test_ingest_polling_snapshot"]
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
    vector = GOLDEN["test_ingest_polling_ledger"]
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

    vector = GOLDEN["test_ingest_polling_event_time_as_date"]
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
    [GOLDEN["test_ingest_polling_bad_column_names_preserve"]["columns"], ["date", "UPPER", "lower"]],
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
    vector = GOLDEN[name]
    made = dataset(MergeAppend())
    answer = made.ingest(vector["ndjson"] + "\n", ReadNdJson(), system_time=NOW, source_time=NOW)
    assert isinstance(answer, Success), answer
    assert made.rows() == vector["rows"]
    if "columns" in vector:
        assert made.last().column_names == vector["columns"]


def test_queries_are_case_sensitive(dataset: Callable[..., Any], csv_step: Callable[..., Any]) -> None:
    vector = GOLDEN["test_ingest_sql_case_sensitivity"]
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
