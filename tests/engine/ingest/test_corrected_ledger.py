"""What a ledger takes in after rows of it were corrected by hand: it undoes nothing, and says what it passed over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from chain.model.source import MergeChangelogStream, MergeLedger, ReadCsv

pytestmark = pytest.mark.engine
READ = ReadCsv(header=True, ddl_schema=("event_time TIMESTAMP, k STRING, v BIGINT",))
WITH_OP = ReadCsv(header=True, ddl_schema=("op INT, event_time TIMESTAMP, k STRING, v BIGINT",))


def lines(*rows: str, op: bool = False) -> str:
    return "\n".join([("op," if op else "") + "event_time,k,v", *rows, ""])


def test_old_values_conflict_and_what_stands_is_known(spark: SparkSession, dataset: Callable[..., Any]) -> None:
    made = dataset(MergeLedger(primary_key=("k",)))
    made.ingest(lines("2020-01-01T00:00:00Z,a,1", "2020-01-01T01:00:00Z,b,2", "2020-01-01T02:00:00Z,c,3"), READ)
    made.merge = MergeChangelogStream(primary_key=("k",))
    made.ingest(
        lines("2,2020-01-01T00:00:00Z,a,1", "3,2020-01-01T00:00:00Z,a,10", "1,2020-01-01T01:00:00Z,b,2", op=True),
        WITH_OP,
    )
    made.merge = MergeLedger(primary_key=("k",))
    answer = made.ingest(
        lines(
            "2020-01-01T00:00:00Z,a,1",  # as it was before it was corrected
            "2020-01-01T00:00:00Z,a,10",  # as it is
            "2020-01-01T01:00:00Z,b,2",  # taken back
            "2020-01-01T02:00:00Z,c,3",  # never touched
            "2020-01-01T02:00:00Z,c,4",
            "2020-01-01T03:00:00Z,d,5",
        ),
        READ,
    )
    assert (answer.rows.unchanged, answer.rows.conflicting, answer.rows.superseded) == (2, 3, 0)
    assert made.last().column("k").to_pylist() == ["d"]
    assert made.last().column("op").to_pylist() == [0]
