"""Queries that only name columns mean the same in every engine; no others are taken for such."""

from __future__ import annotations

import pytest

from chain.model.source import MergeAppend, MergeLedger, MergeSnapshot, SqlQueryStep, TransformSql
from odfd.ingest.source_manifest import of_any_engine, ours, renamed_columns


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ("select\n  ts as event_time,\n  temp\nfrom input\n", {"ts": "event_time", "temp": "temp"}),
        ("SELECT `a b` AS c FROM input;", {"a b": "c"}),
        ("select A, b from INPUT", {"A": "A", "b": "b"}),
    ],
)
def test_columns_and_their_names_are_found(query: str, columns: dict[str, str]) -> None:
    assert renamed_columns(query) == columns


@pytest.mark.parametrize(
    "query",
    [
        "select * from input", "select a + 1 as b from input", "select f(a) as b from input",
        "select 1 as b from input", "select 'a' as b from input", "select distinct a from input",
        "select a from input where b", "select a b from input",
        "select a from input limit 1", "select current_timestamp as t from input", "select null as t from input",
        "select a from other", "select a, from input", "select i.a from input", "select a, a as b from input",
        "select a from input; select b from input", "select a as b as c from input",
        "with x as (select a) select a from input",
        'select "a" as b from input', "select a as b -- why\nfrom input", "",
    ],
)  # fmt: skip
def test_any_other_query_is_left_to_the_engine_that_it_names(query: str) -> None:
    assert renamed_columns(query) is None


def test_keys_are_named_as_after_the_query() -> None:
    transform = TransformSql(engine="datafusion", version="1", query="select day as event_time, id from input")
    columns = of_any_engine(transform)
    assert columns is not None
    snapshot = MergeSnapshot(primary_key=("id",), compare_columns=("day", "event_time"))
    for merge, after in (
        (MergeAppend(), MergeAppend()),
        (MergeLedger(primary_key=("day", "id")), MergeLedger(primary_key=("event_time", "id"))),
        (snapshot, MergeSnapshot(primary_key=("id",), compare_columns=("event_time", "event_time"))),
    ):
        assert ours(transform, merge, columns) == (TransformSql(engine="spark", query=transform.query), after)
    for other in (
        None,
        TransformSql(engine="Spark", query=transform.query),
        TransformSql(engine="flink", queries=(SqlQueryStep(query="select a from input"),)),
        TransformSql(engine="flink", query="select sum(a) as b from input"),
    ):
        assert of_any_engine(other) is None
