"""Rows without event time, and rows far ahead of the clock: refused with file and line unless the source says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chain import instant
from chain.model.source import (
    MergeAppend,
    MergeLedger,
    ReadCsv,
    ReadGeoJson,
    ReadJson,
    ReadNdJson,
    ReadStep,
    SqlQueryStep,
    TransformSql,
)
from engines.contract import InvalidQuery, Success

DDL = "event_time TIMESTAMP, k STRING"
NOW = "2010-01-01T12:00:00Z"
HEAD = "event_time,k\n"
TIMED = "2009-12-31T00:00:00Z"
PATTERN = "\"yyyy-MM-dd'T'HH:mm:ssX\""


def query(*texts: str) -> TransformSql:
    return TransformSql(engine="spark", queries=tuple(SqlQueryStep(query=text) for text in texts))


def refused(answer: Any, *said: str) -> None:
    assert isinstance(answer, InvalidQuery), answer
    for each in said:
        assert each in str(answer)


@pytest.mark.parametrize(
    "text,step,place",
    [
        (f"{HEAD}{TIMED},a\n\n,b\n", ReadCsv(header=True, ddl_schema=(DDL,)), "input-1.csv:4"),
        (f'{HEAD}{TIMED},"a\nb"\n,c\n', ReadCsv(header=True, ddl_schema=(DDL,)), "input-1.csv:4"),
        (f"{HEAD}{TIMED},a\n,b\n", ReadCsv(header=True, infer_schema=True), "input-1.csv:3"),
        (f'{{"event_time": "{TIMED}", "k": "a"}}\n{{"k": "b"}}\n', ReadNdJson(ddl_schema=(DDL,)), "input-1.csv:2"),
        (f'[{{"event_time": "{TIMED}"}}, {{"event_time": null}}]', ReadJson(ddl_schema=(DDL,)), "input-1.csv"),
        (
            '{"type": "FeatureCollection", "features": [{"type": "Feature", "properties": {"k": "a"}, '
            '"geometry": null}]}',
            ReadGeoJson(ddl_schema=(DDL,)),
            "input-1.csv",
        ),
    ],
)
def test_a_row_without_event_time_is_an_error(
    dataset: Callable[..., Any], text: str, step: ReadStep, place: str
) -> None:
    made = dataset(MergeAppend())
    refused(made.ingest(text, step, fills=False), place, "a row has no event time", "coalesce")
    filled = dataset(MergeAppend(), rounds=10).ingest(text, step, fills=True)
    assert isinstance(filled, Success), filled
    assert filled.rows.untimed == 1


def test_a_query_that_leaves_a_row_without_time_is_told_by_the_line_of_the_file(dataset: Callable[..., Any]) -> None:
    rows = [f"{TIMED},{number}" for number in range(500)]
    rows[333] = "yesterday,333"
    step = ReadCsv(header=True, ddl_schema=("at STRING, k STRING",))
    said = query(f"select try_to_timestamp(at, {PATTERN}) as event_time, k from input")
    text = "\n".join(["at,k", *rows, ""])
    refused(
        dataset(MergeAppend()).ingest([text.replace("yesterday", TIMED), text], step, preprocess=said, fills=False),
        "input-1.csv:335",
        "a row has no event time",
    )
    grouped = query(f"select max(try_to_timestamp(at, {PATTERN})) as event_time, k from input group by k")
    refused(dataset(MergeAppend()).ingest(text, step, preprocess=grouped, fills=False), "input-1.csv:335")
    paired = query(f"select try_to_timestamp(max(at), {PATTERN}) as event_time from input having count(*) > 1")
    refused(dataset(MergeAppend()).ingest(text, step, preprocess=paired, fills=False), "input-1.csv", "no event time")


def test_columns_that_are_declared_without_event_time_take_that_of_the_source(dataset: Callable[..., Any]) -> None:
    answer = dataset(MergeAppend()).ingest("k\na\n", ReadCsv(header=True, ddl_schema=("k STRING",)), fills=False)
    assert isinstance(answer, Success)
    assert answer.rows.untimed == 1


def test_a_file_whose_columns_are_guessed_must_have_the_event_times_that_others_have(
    dataset: Callable[..., Any],
) -> None:
    step = ReadCsv(header=True, infer_schema=True)
    made = dataset(MergeAppend())
    made.ingest(f"{HEAD}{TIMED},a\n", step, fills=False)
    refused(made.ingest("k\nb\n", step, fills=False, needs=True), "no column 'event_time'", "--event-time")
    assert isinstance(made.ingest("k\nb\n", step, fills=True), Success)


AHEAD = "2011-03-01T00:00:00Z"


def test_a_row_far_ahead_of_the_clock_is_refused_with_its_line(dataset: Callable[..., Any]) -> None:
    step = ReadCsv(header=True, ddl_schema=(DDL,))
    made = dataset(MergeLedger(primary_key=("k",)))
    made.ingest(f"{HEAD}{TIMED},a\n", step, system_time=NOW)
    before = made.watermark
    text = f"{HEAD}{TIMED},b\n{AHEAD},c\n2010-01-02T12:00:00Z,d\n{AHEAD},e\n"
    answer = made.ingest(text, step, system_time=NOW, bounded=True)
    refused(answer, "2 rows", "input-2.csv:3, input-2.csv:5", "odf.ahead", AHEAD)
    assert made.watermark == before
    said = query("select * from input where k <> 'a'")
    refused(made.ingest(text, step, system_time=NOW, preprocess=said), "input-3.csv:3")
    within_a_day = made.ingest(f"{HEAD}2010-01-02T12:00:00Z,d\n", step, system_time=NOW, bounded=True)
    assert isinstance(within_a_day, Success)


def test_how_far_ahead_is_declared_by_the_source(dataset: Callable[..., Any]) -> None:
    step = ReadCsv(header=True, ddl_schema=(DDL,))
    text = f"{HEAD}{AHEAD},c\n"
    for rounds, said in enumerate(("SET odf.ahead = '500 days'; select * from input", "SET odf.ahead = 'any';")):
        made = dataset(MergeAppend(), rounds=10 * rounds)
        assert isinstance(made.ingest(text, step, system_time=NOW, preprocess=query(said)), Success)
        assert instant.render(made.watermark) == AHEAD
        # What is there already moves nothing, and what is not later neither.
        assert isinstance(made.ingest(text, step, system_time=NOW, bounded=True), Success)
    short = query("SET odf.ahead = '2 days'; select * from input")
    made = dataset(MergeAppend(), rounds=30)
    answer = made.ingest(text, step, system_time=NOW, preprocess=short)
    refused(answer, AHEAD, "SET odf.ahead = '424 days'")
    enough = query("SET odf.ahead = '424 days'; select * from input")
    assert isinstance(made.ingest(text, step, system_time=NOW, preprocess=enough), Success)
    unknown = query("SET odf.late = 'drop'; select * from input")
    refused(dataset(MergeAppend(), rounds=40).ingest(text, step, preprocess=unknown), "SET odf.late", "odf.ahead")


def test_a_time_of_the_source_far_ahead_is_refused_too(dataset: Callable[..., Any]) -> None:
    step = ReadCsv(header=True, ddl_schema=("k STRING",))
    answer = dataset(MergeAppend()).ingest("k\na\n", step, system_time=NOW, source_time=AHEAD, bounded=True)
    refused(answer, AHEAD, "--event-time")


def test_a_watermark_may_lag_behind(dataset: Callable[..., Any]) -> None:
    step = ReadCsv(header=True, ddl_schema=(DDL,))
    said = query("SET odf.watermark = 'max - 2 hours'; select event_time, upper(k) as k from input")
    made = dataset(MergeAppend())
    made.ingest(f"{HEAD}2009-12-31T10:00:00Z,a\n", step, system_time=NOW, preprocess=said)
    assert instant.render(made.watermark) == "2009-12-31T08:00:00Z"
    answer = made.ingest(f"{HEAD}2009-12-31T09:00:00Z,b\n", step, system_time=NOW, preprocess=said)
    assert instant.render(made.watermark) == "2009-12-31T08:00:00Z", "it does not go back"
    assert answer.rows.late == 0, "what comes within the lag is not late"
    made.ingest(f"{HEAD}2009-12-31T11:00:00.001Z,c\n", step, system_time=NOW, preprocess=said)
    assert instant.render(made.watermark) == "2009-12-31T09:00:00.001Z"
