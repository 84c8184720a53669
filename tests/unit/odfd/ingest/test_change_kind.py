"""Whether a changed declaration evolves a dataset or rewrites it: by what it says of columns, and of nothing else."""

from __future__ import annotations

import msgspec
import pytest

from chain.data.ddl import parse_ddl
from chain.model.events import AddData, AddPushSource, SetDataSchema, SetInfo, SetTransform, TransformInput
from chain.model.schema import DataSchema
from chain.model.source import MergeAppend, ReadCsv, SqlQueryStep, TransformSql
from chain.state import ChainState
from odfd.ingest.alteration import change_kind_of

COLUMNS = ("city STRING", "people INT")
SYSTEM = ("offset BIGINT", "op INT", "system_time TIMESTAMP", "event_time TIMESTAMP")


def a_state(rows: int = 3) -> ChainState:
    schema = SetDataSchema(schema=DataSchema(fields=parse_ddl((*SYSTEM, *COLUMNS)).fields))
    return ChainState(schema=schema, last_data=AddData(prev_offset=rows - 1))


def a_source(*columns: str, query: str | None = None) -> AddPushSource:
    steps = None if query is None else TransformSql(engine="spark", queries=(SqlQueryStep(query=query),))
    read = ReadCsv(ddl_schema=columns or None)
    return AddPushSource(source_name="default", read=read, preprocess=steps, merge=MergeAppend())


@pytest.mark.parametrize(
    "source",
    [
        a_source(*COLUMNS),
        a_source("event_time DATE", *COLUMNS),
        a_source("city STRING", "people STRING", query="select city, 1 as people from input"),
        a_source(),
    ],
)
def test_what_the_chain_takes_in_evolves(source: AddPushSource) -> None:
    found = change_kind_of("cities", a_state(), [source], 0)
    assert found is not None
    assert found.word == "evolves"
    assert "3 rows so far stay as they are" in found.text
    assert "not kept" in found.text


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (("city STRING", "people BIGINT"), "column 'people' changes its type from Int32 to Int64"),
        (("city STRING",), "column 'people' is removed"),
        ((*COLUMNS, "mayor STRING"), "column 'mayor' is new"),
    ],
)
def test_what_the_chain_refuses_rewrites(columns: tuple[str, ...], said: str) -> None:
    found = change_kind_of("cities", a_state(), [a_source(*columns)], 2)
    assert found is not None
    assert found.word == "rewrites"
    assert said in found.text
    assert "odfctl rendition create cities, then odfctl rendition handover cities N" in found.text
    lost = change_kind_of("cities", a_state(), [a_source(*columns)], 0)
    assert lost is not None
    assert "no rendition can be made of them" in lost.text


def test_what_concerns_no_rows_says_nothing() -> None:
    other = a_source("city STRING", "people STRING")
    assert change_kind_of("cities", a_state(), [SetInfo(description="x")], 1) is None
    assert change_kind_of("cities", msgspec.structs.replace(a_state(), schema=None), [other], 1) is None


def test_a_query_is_taken_over() -> None:
    query = TransformSql(engine="spark", queries=(SqlQueryStep(query="select 1"),))
    event = SetTransform(inputs=(TransformInput(dataset_ref="did:odf:x", alias="a"),), transform=query)
    found = change_kind_of("towns", a_state(1), [event], 0)
    assert found is not None
    assert (found.word, found.text) == (
        "evolves",
        "the next transaction takes over from the query so far; 1 row so far stays as it is",
    )


def test_a_column_that_is_added_to_the_chain_too_evolves() -> None:
    wider = (*COLUMNS, "mayor STRING")
    schema = SetDataSchema(schema=parse_ddl((*SYSTEM, *wider)))
    found = change_kind_of("cities", a_state(), [a_source(*wider), schema], 1)
    assert found is not None
    assert found.word == "evolves"
