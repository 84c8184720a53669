"""Declarations, queries in sequence and faults, on single histories. Times are days since 2024-01-01 unless said.

Edges that have a name stand in ``test_named_edges``.
"""

from __future__ import annotations

import pytest

from engines.contract import InvalidQuery
from engines.spark.execution.transform import SharedCaches
from engines.spark.planning.slice_facts import SliceReader
from engines.spark.sql.queries import Analyst

pytestmark = pytest.mark.engine
DAY = 86_400_000
START = 1_704_067_200_000
DAILY = "select time_bucket(interval '1' day, event_time) as event_time, sum(v) as s from a group by 1"


def at(days):
    return START + int(days * DAY)


def sums(replayed):
    return [(int(row["event_time"].timestamp() * 1000), row["s"]) for row in replayed.data()]


def test_rows_without_time_are_counted_never_guessed(lab):
    stream = lab.given("untimed", [([(None, "x", 1), (at(0), "x", 2)], at(1)), ([(None, "x", 4)], at(2))])
    got = lab.replay(DAILY, stream, [1, 1])
    assert sums(got) == [(at(0), 2)]
    assert b'"untimed":{"a":2}' in got.state
    passed = lab.replay("select event_time, v as s from a", stream, [1, 1])
    assert [row["s"] for row in passed.data()] == [1, 2, 4]


def test_late_rows_may_fail_the_transform_and_lateness_be_allowed(lab):
    blocks = [([(at(0), "x", 1)], at(2)), ([(at(0.5), "x", 2)], at(2)), ([], at(4))]
    stream = lab.given("late", blocks)
    failing = "set odf.late = 'fail';\n" + DAILY
    caches = SharedCaches(Analyst(), SliceReader())
    answer, _, _ = lab.transact(failing, stream.blocks, None, 0, caches)
    assert isinstance(answer, InvalidQuery)
    assert "1 row of a block came later" in answer.message
    patient = "set odf.lateness.a = '2 days';\n" + DAILY
    for groups in ([3], [1, 1, 1]):
        got = lab.replay(patient, stream, groups)
        assert (sums(got), got.late) == ([(at(0), 3)], 0)


def test_changes_pass_a_map_and_their_split_pairs_are_mended(lab):
    stream = lab.given(
        "changes",
        [
            ([(at(0), "x", 1, 0), (at(0), "y", 5, 0)], at(1)),
            ([(at(0), "x", 1, 2), (at(0), "x", 9, 3), (at(0), "y", 5, 1)], at(2)),
            ([(at(0), "x", 9, 2), (at(0), "x", 2, 3)], at(3)),
        ],
    )
    for groups in ([3], [1, 1, 1], [2, 1]):
        got = lab.replay("select event_time, k, v from a where v < 6", stream, groups)
        assert [(row["op"], row["k"], row["v"]) for row in got.rows] == [
            (0, "x", 1), (0, "y", 5), (1, "x", 1), (1, "y", 5), (0, "x", 2),
        ]  # fmt: skip
    answer, _, _ = lab.transact(DAILY, stream.blocks, None, 0, SharedCaches(Analyst(), SliceReader()))
    assert isinstance(answer, InvalidQuery)
    assert "corrections" in answer.message


def test_queries_in_sequence_and_common_tables(lab):
    stream = lab.given("steps", [([(at(0), "x", 1), (at(0), "y", 2)], at(1)), ([(at(1), "x", 3)], at(2))])
    nested = "with q as (select event_time, v * 10 as w from a) select event_time, w as s from (select * from q)"
    nested += " where w > 10"
    assert [s for _, s in sums(lab.replay(nested, stream, [1, 1]))] == [20, 30]


def test_nothing_settled_starts_no_job(lab):
    tracker = lab.spark.sparkContext.statusTracker()
    stream = lab.given("open", [([(at(0), "x", 1)], at(0.2)), ([(at(0.1), "x", 2)], at(0.3)), ([], at(0.9))])
    lab.spark.sparkContext.setJobGroup("idle-transactions", "")
    got = lab.replay(DAILY, stream, [1, 1, 1])
    assert got.rows == []
    assert list(tracker.getJobIdsForGroup("idle-transactions")) == []


def test_a_checkpoint_of_another_query_is_refused(lab):
    stream = lab.given("other", [([(at(0), "x", 1)], at(1)), ([(at(1), "x", 2)], at(2))])
    caches = SharedCaches(Analyst(), SliceReader())
    _, checkpoint, _ = lab.transact(DAILY, stream.blocks[:1], None, 0, caches)
    answer, _, _ = lab.transact("select event_time, v from a", stream.blocks[1:], checkpoint, 0, caches)
    assert isinstance(answer, InvalidQuery)
    assert "another query" in answer.message


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("select event_time, v / 0 as x from a", "[divide-by-zero] (try_divide"),
        ("select event_time, cast(k as int) as x from a", "[cast-invalid-input] (try_cast"),
        ("selct 1", "line 1, column 1: [PARSE_SYNTAX_ERROR]"),
        ("select event_time,\n  nope from a", "line 2, column 3: [UNRESOLVED_COLUMN"),
        ("select event_time, v\n, now() as n from a", "line 2, column 3: now"),
        ("select event_time from b", "TABLE_OR_VIEW_NOT_FOUND"),
        ("select event_time from parquet.`/etc/passwd`", "a query sees its inputs alone"),
        ("create table t as select 1", "not a query"),
        ("create temporary view t as select 1", "not a query"),
        ("insert into a values (1)", "not a query"),
        ("drop view a", "not a query"),
        ("add jar '/tmp/x.jar'", "not a query"),
        ("set spark.sql.ansi.enabled = false", "not a query"),
        ("show tables", "not a query"),
        ("select event_time, map(k, v) as m from a", "column m"),
    ],
)
def test_a_query_s_fault_is_an_answer(lab, sql, said):
    stream = lab.given("fault", [([(at(0), "x", 1)], at(1))])
    answer, checkpoint, data = lab.transact(sql, stream.blocks, None, 0, SharedCaches(Analyst(), SliceReader()))
    assert isinstance(answer, InvalidQuery), answer
    assert said in str(answer)
    assert "\n\tat " not in answer.message
    assert not checkpoint.exists()
    assert not data.exists()
