"""Edges, those that the specification names and others: single histories whose answers were worked out by hand.

Each on the real Spark: in one transaction, block by block, and two blocks of each input at a time.
Times are days since 2024-01-01, a Monday, unless said. An edge that has several histories has its name before a colon.
``catch-up-1000-ticks`` and ``handover-mid-window`` stand with what they are edges of.
Spec: docs/spec/engine-semantics.md#edges.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from chain.model.source import SqlQueryStep, TemporalTable, TransformSql
from conformance.case import DAYS as SUMS
from conformance.cases import CASES
from conformance.coordinator import Bed, Coordinator, lay_out
from conformance.histories import DAY, START, history
from engines.contract import InvalidQuery
from engines.request_control import RequestControl
from engines.spark.execution.transform import SharedCaches, run_transform
from engines.spark.planning.slice_facts import SliceReader
from engines.spark.sql.queries import Analyst

pytestmark = pytest.mark.engine
ADD, RETRACT, FROM, TO = 0, 1, 2, 3


def at(days):
    return START + int(days * DAY)


def utc(*parts):
    return int(dt.datetime(*parts, tzinfo=dt.UTC).timestamp() * 1000)


def text(sql, temporal=()):
    tables = tuple(TemporalTable(name=name, primary_key=("k",)) for name in temporal)
    return TransformSql(engine="spark", queries=(SqlQueryStep(query=sql),), temporal_tables=tables or None)


DAYS = "select time_bucket(interval '1' day, event_time) as event_time, sum(v) as s from a group by 1"
DAILY = text(DAYS)
LATE = "set odf.rows = 'late';\n"
APPLY = "set odf.late = 'apply';\n"
UNTIMED = [([(None, "x", 0)], None)]
MONTHLY = text("select time_bucket(interval '1' month, event_time) as event_time, sum(v) as s from a group by 1")
POINTS = text(
    "select event_time, sum(v) over (partition by k order by event_time "
    "range between interval '1' hour preceding and current row) as s from a"
)
SESSIONS = text(
    "select session_window(event_time, '1 day').end as event_time, sum(v) as s from a "
    "group by session_window(event_time, '1 day')"
)
NEAR = text(
    "select x.event_time, x.v, y.v as w from a x join a y "
    "on x.k = y.k and y.event_time > x.event_time and y.event_time <= x.event_time + interval '1' day"
)
JOINED = CASES["left-interval-join"].sql
VERSIONS = CASES["versions"].sql
ENRICHED = CASES["versions"].text.replace("{h}", "")
KINDS = SUMS.replace("sum(v)", "count(distinct v % 3)")
MOVED = text(
    "set odf.watermark = 'max - 3 days';\nselect timestamp_millis(bigint(unix_millis(event_time) + v % 5 * 86400000)) "
    "as event_time, k, v from a"
)
PER_KEY = text("select k, max(event_time) as event_time, sum(v) as s from a group by k")
SUMS_OF_KEY = "select k, max(event_time) as event_time, sum(v) as s, count(*) as c from a group by k"
GROUPED = text(SUMS_OF_KEY)
KINDS_OF_KEY = "select k, max(event_time) as event_time, count(distinct v % 3) as s, count(*) as c from a group by k"
SMALL_KEYS = text("select event_time, k, v from a where v < 6")
SMALL = text("select event_time, v from a where v < 6")
PARITY = text("select event_time, k, v % 2 as v from a")
LOCAL = CASES["local-days"].sql
FLOATS = text(
    "select event_time, case v when 1 then double('NaN') when 2 then -0.0D when 3 then 0.0D end as d, "
    "sum(v) over (partition by k order by event_time range between interval '1' hour preceding and current row) as s "
    "from a"
)


@dataclass(frozen=True)
class Edge:
    sql: TransformSql
    parts: Mapping[str, Sequence[object]]
    """Of each input (rows, watermark after) by block; a row is (milliseconds, k, v) or also op."""
    rows: Sequence[tuple[object, ...]]
    """(op, event time, columns)."""
    late: int | None = 0
    changes: Sequence[str] = ()
    untimed: int = 0
    seen: Mapping[str, object] = field(default_factory=dict)
    """The ``watermark`` at the end, and how many rows are ``kept`` of what later blocks may need, or ``None``."""


def one(sql, parts, rows, **more):
    return Edge(sql, {"a": parts}, rows, **more)


def days(*blocks):
    """Blocks of (rows, watermark after), in days."""
    return [([(at(day), *rest) for day, *rest in rows], at(after)) for rows, after in blocks]


def changing(sql, blocks, rows, **more):
    """A changelog, and what the query says of it, in days."""
    return one(sql, days(*blocks), [(op, at(day), *rest) for op, day, *rest in rows], changes=("a",), **more)


def marked(parts, mark):
    """Rows that pass by themselves, whose watermark is a declared distance behind the greatest."""
    return one(MOVED, parts, [(ADD, *row) for rows, _ in parts for row in rows], late=None, seen={"watermark": mark})


def reaching(late, kept):
    """Of fifty versions, each of a day, what is kept for facts that come so late."""
    facts = days(([(1, "x", 1)], 1), ([(50, "x", 2)], 50))
    versions = days(([(day, "x", day) for day in range(50)], 50))
    query = text(f"set odf.late.a = '{late}';\n{ENRICHED}", ["b"])
    return Edge(query, {"a": facts, "b": versions}, [(ADD, at(1), "x", 1, 1)], seen={"kept": kept})


def some_pass(query, first, last, changes):
    """Of the first block no row passes, and of one between."""
    blocks = days(([(2, "k", 5)], 2), ([(1, "k", 11)], 3), ([(2, "k", 5)], 4), ([(3, "k", 12)], 5))
    rows = [(ADD, at(1), "k", first, 1), (FROM, at(1), "k", first, 1), (TO, at(3), "k", last, 2)]
    return one(text(query.replace("from a", "from a where v > 10")), blocks, rows, changes=changes)


def ledger(times, until=20):
    """One row for each time, and a promise that there are no more."""
    return [([(at(time), "x", number) for number, time in enumerate(times, 1)], at(until))]


def seen_by_ledger(parts, times, found, **more):
    """What facts at these times see of key x, when ``parts`` is all that was ever said of it."""
    inputs = {"a": ledger(times), "b": [*parts, ([], at(20))]}
    rows = [(ADD, at(time), "x", number, v) for number, (time, v) in enumerate(zip(times, found, strict=True), 1)]
    return Edge(VERSIONS, inputs, rows, changes=more.pop("changes", ("b",)), **more)


EDGES = {
    "row-at-watermark": one(
        POINTS,
        [([(at(0), "x", 1)], at(1)), ([(at(1), "y", 2), (at(1) - 1, "z", 4)], at(2))],
        [(ADD, at(0), 1), (ADD, at(1), 2)],
        late=1,
    ),
    "row-at-window-end": one(
        DAILY,
        [
            ([(at(0), "x", 1), (at(1) - 1, "x", 2), (at(1), "x", 4)], at(0.5)),
            ([(at(0.25), "x", 8)], at(1)),
            ([(at(1) - 1, "x", 1000), (at(1), "x", 32)], at(2)),
        ],
        [(ADD, at(0), 11), (ADD, at(1), 36)],
        late=1,
    ),
    "session-exact-gap": one(
        SESSIONS,
        [
            ([(at(0), "x", 1)], at(1)),
            ([(at(1), "x", 2)], at(2)),
            ([(at(2), "x", 4), (at(3) + 1, "x", 8)], at(3)),
            ([], at(5)),
        ],
        # The row at the watermark 3 would still have joined the first session, so it ends only after it.
        [(ADD, at(3), 7), (ADD, at(4) + 1, 8)],
    ),
    "bucket-straddles-month": one(
        text(
            "select time_bucket(interval '1' month, w) as event_time, sum(s) as s from (select date_trunc('week', "
            "event_time) as w, sum(v) as s from a group by 1) group by 1"
        ),
        # The week of 29 January reaches into February, so January is not settled before it ends.
        [
            ([(utc(2024, 1, 30), "x", 1), (utc(2024, 2, 5), "x", 8)], utc(2024, 2, 3)),
            ([(utc(2024, 2, 1), "x", 2)], utc(2024, 2, 5)),
            ([(utc(2024, 2, 4), "x", 1000)], utc(2024, 2, 6)),
            ([], utc(2024, 3, 5)),
        ],
        [(ADD, utc(2024, 1, 1), 3), (ADD, utc(2024, 2, 1), 8)],
        late=1,
    ),
    "dst-fall-back": one(
        LOCAL,
        [
            (
                [
                    (utc(2024, 11, 3, 3, 59), "x", 1),
                    (utc(2024, 11, 3, 4), "x", 2),
                    (utc(2024, 11, 3, 5, 30), "x", 4),
                    (utc(2024, 11, 3, 6, 30), "x", 8),
                    (utc(2024, 11, 4, 4, 59), "x", 16),
                    (utc(2024, 11, 4, 5), "x", 32),
                ],
                utc(2024, 11, 4),
            ),
            ([], utc(2024, 11, 8)),
        ],
        # The third of November has 25 hours, and half past one comes twice.
        [
            (ADD, utc(2024, 11, 2, 4), 1),
            (ADD, utc(2024, 11, 3, 4), 2 + 4 + 8 + 16),
            (ADD, utc(2024, 11, 4, 5), 32),
        ],
    ),
    "feb-29": one(
        text("select event_time + interval '1' month as event_time, sum(v) as s, count(*) as c from a group by 1"),
        [
            ([(utc(2024, 1, day), "x", day) for day in (28, 29, 30, 31)], utc(2024, 1, 31)),
            ([(utc(2024, 2, 28), "x", 1), (utc(2024, 2, 29), "x", 2)], utc(2024, 3, 1)),
            ([], utc(2024, 4, 1)),
        ],
        [
            (ADD, utc(2024, 2, 28), 28, 1),
            (ADD, utc(2024, 2, 29), 29 + 30 + 31, 3),
            (ADD, utc(2024, 3, 28), 1, 1),
            (ADD, utc(2024, 3, 29), 2, 1),
        ],
    ),
    "epoch-negative": one(
        MONTHLY,
        [([(-1, "x", 1), (-31 * DAY, "x", 2), (0, "x", 4)], -1), ([(-DAY, "x", 8)], 31 * DAY)],
        [(ADD, -31 * DAY, 11), (ADD, 0, 4)],
    ),
    "first-block-no-watermark": one(
        DAILY,
        [([(at(0), "x", 1)], None), ([(at(-400), "x", 2)], None), ([], at(3))],
        [(ADD, at(-400), 2), (ADD, at(0), 1)],
    ),
    "watermark-beyond-all-data": one(
        DAILY,
        [([(at(0), "x", 1)], utc(9000, 1, 1)), ([(at(1), "x", 2)], None),
         ([(utc(9000, 1, 1), "x", 4)], utc(9000, 1, 2))],
        [(ADD, at(0), 1), (ADD, utc(9000, 1, 1), 4)],
        late=1,
    ),
    "empty-block": one(
        DAILY,
        [([], None), ([(at(0), "x", 1)], at(1)), ([], None), ([], at(1)), ([(at(1), "x", 2)], at(2))],
        [(ADD, at(0), 1), (ADD, at(1), 2)],
    ),
    "heartbeat-only": one(DAILY, [([], at(1)), ([], at(2.5))], [], seen={"watermark": at(2)}),
    "idle-side-input": Edge(
        JOINED,
        {
            "a": [([(at(0), "x", 1)], at(5)), ([(at(6), "x", 2)], at(9))],
            "b": [([(at(0), "x", 7)], at(1)), ([], None), ([], at(2)), ([], at(2))],
        },
        # The fact of the sixth waits for the side that has not spoken since the second.
        [(ADD, at(0), "x", 1, 7)],
        seen={"watermark": at(1)},
    ),
    "same-time-two-versions": seen_by_ledger(
        [([(at(1), "x", 70), (at(1), "x", 71)], at(2))], [0.5, 1, 3], [None, 71, 71], changes=()
    ),
    "retract-unsettled-version": seen_by_ledger(
        [([(at(1), "x", 70, ADD)], at(0)), ([(at(1), "x", 70, RETRACT)], at(0.5))], [0.75, 1, 3], [None, None, None]
    ),
    "retract-and-reassert": seen_by_ledger(
        [([(at(1), "x", 70, ADD)], at(2)), ([(at(1), "x", 70, RETRACT)], at(3)), ([(at(4), "x", 70, ADD)], at(5))],
        [1, 2.9, 3, 3.9, 4],
        [70, 70, None, None, 70],
    ),
    "correction-to-earlier-time": seen_by_ledger(
        [([(at(5), "x", 70, ADD)], at(1)), ([(at(5), "x", 70, FROM), (at(2), "x", 71, TO)], at(6))],
        [1.5, 2, 4, 5, 6],
        [None, 71, 71, 71, 71],
    ),
    "correction-moves-group": one(
        PER_KEY,
        [
            ([(at(0), "x", 1, ADD), (at(0.1), "x", 2, ADD), (at(0.2), "y", 4, ADD)], at(1)),
            ([(at(0.1), "x", 2, FROM), (at(0.1), "y", 2, TO)], at(2)),
        ],
        [
            (ADD, at(0.1), "x", 3), (ADD, at(0.2), "y", 4),
            (FROM, at(0.1), "x", 3), (TO, at(0), "x", 1), (FROM, at(0.2), "y", 4), (TO, at(0.2), "y", 6),
        ],
        changes=("a",),
    ),
    "correction-of-last-row-of-group": one(
        PER_KEY,
        [([(at(0), "x", 1, ADD)], at(1)), ([(at(0), "x", 1, FROM), (at(0), "y", 1, TO)], at(2))],
        [(ADD, at(0), "x", 1), (RETRACT, at(0), "x", 1), (ADD, at(0), "y", 1)],
        changes=("a",),
    ),
    "pair-split-by-filter": one(
        SMALL,
        [
            ([(at(0), "x", 1, ADD)], at(1)),
            ([(at(0), "x", 1, FROM), (at(0), "x", 9, TO)], at(2)),
            ([(at(0), "x", 9, FROM), (at(0), "x", 2, TO)], at(3)),
        ],
        [(ADD, at(0), 1), (RETRACT, at(0), 1), (ADD, at(0), 2)],
        late=None,
        changes=("a",),
    ),
    "pair-made-equal": one(
        PARITY,
        [
            ([(at(0), "x", 1, ADD)], at(1)),
            ([(at(0), "x", 1, FROM), (at(0), "x", 3, TO)], at(2)),
            ([(at(0), "x", 3, FROM), (at(0), "x", 2, TO)], at(3)),
        ],
        [(ADD, at(0), "x", 1), (FROM, at(0), "x", 1), (TO, at(0), "x", 0)],
        late=None,
        changes=("a",),
    ),
    "correction-moves-group: of two to one of one": changing(
        GROUPED,
        [
            ([(0, "x", 1, ADD), (0, "x", 5, ADD), (0, "y", 7, ADD)], 1),
            ([(0, "x", 5, FROM), (0, "y", 5, TO)], 2),
            ([], 3),
        ],
        [
            (ADD, 0, "x", 6, 2), (ADD, 0, "y", 7, 1),
            (FROM, 0, "x", 6, 2), (TO, 0, "x", 1, 1), (FROM, 0, "y", 7, 1), (TO, 0, "y", 12, 2),
        ],
    ),
    "correction-of-last-row-of-group: or it is taken back": changing(
        GROUPED,
        [
            ([(0, "x", 1, ADD), (0, "y", 2, ADD)], 1),
            ([(0, "x", 1, FROM), (1, "z", 1, TO)], 2),
            ([(0, "y", 2, RETRACT)], 3),
            ([], 4),
        ],
        [
            (ADD, 0, "x", 1, 1), (ADD, 0, "y", 2, 1),
            (RETRACT, 0, "x", 1, 1), (ADD, 1, "z", 1, 1),
            (RETRACT, 0, "y", 2, 1),
        ],
    ),
    "retract-and-reassert: within a tick nothing happened": changing(
        GROUPED,
        [([(0, "x", 1, ADD)], 1), ([(0, "x", 1, FROM), (0, "x", 1, TO)], 2), ([], 3)],
        [(ADD, 0, "x", 1, 1)],
    ),
    "retract-and-reassert: over two the row goes and comes": changing(
        GROUPED,
        [([(0, "x", 1, ADD)], 1), ([(0, "x", 1, RETRACT)], 2), ([], 3), ([(3.5, "x", 1, ADD)], 4)],
        [(ADD, 0, "x", 1, 1), (RETRACT, 0, "x", 1, 1), (ADD, 3.5, "x", 1, 1)],
    ),
    "retract-unsettled-version: the one before stays in force": Edge(
        VERSIONS,
        {
            "a": days(([(4, "x", 1), (6, "x", 2), (6, "y", 3)], 5), ([(8, "x", 4)], 9)),
            "b": days(
                ([(0, "x", 10, ADD), (5, "y", 30, ADD)], 1),
                ([(5, "y", 30, RETRACT)], 2),
                ([(0, "x", 10, FROM), (7, "x", 11, TO)], 3),
                ([(7, "x", 11, FROM), (7, "x", 12, TO)], 4),
                ([], 9),
            ),
        },
        [(ADD, at(4), "x", 1, 10), (ADD, at(6), "x", 2, 10), (ADD, at(6), "y", 3, None), (ADD, at(8), "x", 4, 12)],
        changes=("b",),
    ),
    "retract-unsettled-version: leaves no trace in a table": changing(
        GROUPED,
        [([(5, "x", 1, ADD), (0, "y", 1, ADD)], 1), ([(5, "x", 1, RETRACT)], 2), ([], 9)],
        [(ADD, 0, "y", 1, 1)],
    ),
    "pair-split-by-filter: half a correction is a retraction, or an addition": changing(
        SMALL_KEYS,
        [
            ([(0, "x", 1, ADD), (0, "y", 9, ADD)], 1),
            ([(0, "x", 1, FROM), (0, "x", 9, TO), (0, "y", 9, FROM), (0, "y", 2, TO)], 2),
            ([(0, "y", 2, FROM), (0, "y", 3, TO)], 3),
        ],
        [(ADD, 0, "x", 1), (RETRACT, 0, "x", 1), (ADD, 0, "y", 2), (FROM, 0, "y", 2), (TO, 0, "y", 3)],
        late=None,
    ),
    "pair-split-by-filter: beside a retraction": changing(
        SMALL_KEYS,
        [
            ([(0, "x", 1, ADD), (0, "y", 5, ADD)], 1),
            ([(0, "x", 1, FROM), (0, "x", 9, TO), (0, "y", 5, RETRACT)], 2),
            ([(0, "x", 9, FROM), (0, "x", 2, TO)], 3),
        ],
        [(ADD, 0, "x", 1), (ADD, 0, "y", 5), (RETRACT, 0, "x", 1), (RETRACT, 0, "y", 5), (ADD, 0, "x", 2)],
        late=None,
    ),
    "pair-made-equal: in a table": changing(
        text("select k, max(event_time) as event_time, max(v % 2) as odd from a group by k"),
        [([(0, "x", 1, ADD)], 1), ([(0, "x", 1, FROM), (0, "x", 3, TO)], 2), ([(0, "x", 3, FROM), (0, "x", 4, TO)], 3)],
        [(ADD, 0, "x", 1), (FROM, 0, "x", 1), (TO, 0, "x", 0)],
    ),
    "late-version-superseded": seen_by_ledger(
        # Said on the sixth for the second day, when a newer one has long been in force: it never counts.
        [([(at(1), "x", 70), (at(4), "x", 71)], at(6)), ([(at(2), "x", 72)], at(7))],
        [1, 2, 3, 4, 6, 8],
        [70, 70, 70, 71, 71, 71],
        changes=(),
    ),
    "self-join-two-paths": one(
        NEAR,
        # The row of day 1 is both a first and a second; pairs of a first are out a day after it.
        [
            ([(at(0), "x", 1), (at(1), "x", 2)], at(1)),
            ([(at(1.5), "x", 4)], at(2)),
            ([(at(2), "x", 8)], at(3)),
            ([(at(2.5), "x", 1000)], at(4)),
        ],
        [(ADD, at(0), 1, 2), (ADD, at(1), 2, 4), (ADD, at(1), 2, 8), (ADD, at(1.5), 4, 8)],
        late=1,
    ),
    "late-on-one-path-only": one(
        CASES["months-and-days"].sql,
        # Still in time for its month, too late for its day: it counts for neither.
        [([(at(0), "x", 1)], at(3)), ([(at(1), "x", 2), (at(3), "x", 4)], at(31)), ([], at(32))],
        [(ADD, at(0), 1 + (1 + 4)), (ADD, at(3), 4)],
        late=1,
    ),
    "null-event-time": one(
        DAILY,
        [([(None, "x", 1), (at(0), "x", 2)], at(1)), ([(None, "x", 4), (at(1), "x", 8)], at(2))],
        [(ADD, at(0), 2), (ADD, at(1), 8)],
        untimed=2,
    ),
    "null-event-time: passes a map": one(
        text("select event_time, v from a"),
        [([(None, "x", 1), (at(0), "x", 2)], at(1)), ([(None, "x", 4)], at(2))],
        [(ADD, None, 1), (ADD, at(0), 2), (ADD, None, 4)],
        late=None,
    ),
    "lateness allowed": one(
        text(f"set odf.lateness.a = '2 days';\n{DAYS}"),
        [([(at(0), "x", 1)], at(2)), ([(at(0.5), "x", 2)], at(2)), ([], at(4))],
        [(ADD, at(0), 3)],
    ),
    "queries in sequence": one(
        text("with q as (select event_time, v * 10 as w from a) select event_time, w from (select * from q) "
             "where w > 10"),
        [([(at(0), "x", 1), (at(0), "y", 2)], at(1)), ([(at(1), "x", 3)], at(2))],
        [(ADD, at(0), 20), (ADD, at(1), 30)],
        late=None,
    ),
    "correction-to-earlier-time: between closed windows": changing(
        text(APPLY + SUMS),
        [([(0, "x", 1), (2.5, "x", 4)], 1), ([], 3), ([(2.5, "x", 4, FROM), (0.5, "y", 5, TO)], 4), ([], 5)],
        [(ADD, 0, "x", 1, 1), (ADD, 2, "x", 4, 1), (ADD, 0, "y", 5, 1), (RETRACT, 2, "x", 4, 1)],
        seen={"watermark": at(5)},
    ),
    "correction-of-last-row-of-group: of a closed window": changing(
        text(APPLY + SUMS),
        [
            ([(0, "x", 1), (0, "y", 2), (1.5, "x", 8)], 1),
            ([(0, "x", 1, RETRACT), (1.5, "x", 8, FROM), (1.5, "x", 9, TO)], 2),
            ([(0, "y", 2, FROM), (0, "y", 3, TO)], 3),
            ([(0, "x", 7)], 4),
        ],
        [
            (ADD, 0, "x", 1, 1), (ADD, 0, "y", 2, 1),  # the first tick
            (ADD, 1, "x", 9, 1),  # the second: of 8 nobody ever hears
            # The third: a retraction counts from when its block ends.
            (RETRACT, 0, "x", 1, 1), (FROM, 0, "y", 2, 1), (TO, 0, "y", 3, 1),
            (ADD, 0, "x", 7, 1),
        ],
    ),
    "late-on-one-path-only: half a row would be an answer to no question": one(
        text("select event_time, sum(v) as s from ("
             "select time_bucket(interval '1' day, event_time) as event_time, v from a union all "
             "select time_bucket(interval '2' day, event_time) as event_time, v from a) group by 1"),
        days(([(1, "x", 1)], 2), ([(1.5, "x", 10), (2, "x", 4)], 4)),
        [(ADD, at(1), 1 + 5), (ADD, at(2), 4)],
        late=1,
    ),
    "later than declared: dropped, and their windows are forgotten": one(
        text("set odf.late = 'apply within 2 days';\n" + KINDS),
        days(
            ([(0, "x", 1), (3, "x", 2)], 4),
            ([(1.9, "x", 9), (2, "x", 3)], 4),
            ([(3, "x", 4)], 9),
            ([(3, "x", 5)], 9),
        ),
        [
            (ADD, at(0), "x", 1, 1), (ADD, at(3), "x", 1, 1), (ADD, at(2), "x", 1, 1),
            (FROM, at(3), "x", 1, 1), (TO, at(3), "x", 2, 2),
        ],
        late=2,
        seen={"kept": None},
    ),
    "late-fact-old-version": Edge(
        text(ENRICHED, ["b"]),
        {
            "a": days(
                ([(7, "x", 1)], 8),
                ([(4, "x", 2), (5, "y", 3), (7, "y", 4), (10, "x", 5)], 12),
                ([(2, "x", 6), (0, "x", 7)], 20),
            ),
            # 15 was superseded by 20 before it was said; y holds from the sixth on.
            "b": days(([(1, "x", 10), (5, "x", 20)], 6), ([(3, "x", 15), (5, "y", 1)], 9), ([], 20)),
        },
        [(ADD, at(day), k, v, w) for day, k, v, w in (
            (7, "x", 1, 20), (4, "x", 2, 10), (5, "y", 3, None), (7, "y", 4, 1), (10, "x", 5, 20),
            (0, "x", 7, None), (2, "x", 6, 10),
        )],
    ),
    "versions kept: none for late facts": reaching("drop", 1),
    "versions kept: of as many days": reaching("apply within 9 days", 10),
    "versions kept: all": reaching("apply", 50),
    "watermark declared: waits for the first row": marked(UNTIMED, None),
    "watermark declared: behind the greatest": marked([*UNTIMED, *days(([(9, "x", 0)], 9))], at(6)),
    "watermark declared: never goes back": marked([*UNTIMED, *days(([(9, "x", 0)], 9)), ([(at(2), "x", 0)], None)],
                                                  at(6)),
    "none passes: a table that is merged": some_pass(SUMS_OF_KEY, 11, 23, ()),
    "none passes: a table that is made anew": some_pass(KINDS_OF_KEY, 1, 2, ["a"]),
    "nan-and-minus-zero": one(
        FLOATS,
        [([(at(0), f"k{v}", v) for v in (3, 1, 4, 2)], at(1))],
        [(ADD, at(0), None, 4), (ADD, at(0), -0.0, 2), (ADD, at(0), 0.0, 3), (ADD, at(0), math.nan, 1)],
    ),
}  # fmt: skip
NAMED = """
row-at-watermark row-at-window-end session-exact-gap bucket-straddles-month dst-fall-back feb-29 epoch-negative
first-block-no-watermark watermark-beyond-all-data empty-block heartbeat-only idle-side-input same-time-two-versions
retract-unsettled-version retract-and-reassert correction-to-earlier-time correction-moves-group
correction-of-last-row-of-group pair-split-by-filter pair-made-equal late-version-superseded late-fact-old-version
self-join-two-paths late-on-one-path-only null-event-time nan-and-minus-zero decimal-overflow catch-up-1000-ticks
handover-mid-window
"""
UNNAMED = {
    "lateness allowed", "queries in sequence", "later than declared", "versions kept", "watermark declared",
    "none passes",
}  # fmt: skip
ELSEWHERE = {"catch-up-1000-ticks", "handover-mid-window", "decimal-overflow"}


def schedules(edge):
    sizes = {alias: len(parts) for alias, parts in edge.parts.items()}
    single = [{**dict.fromkeys(sizes, 0), alias: 1} for alias, size in sizes.items() for _ in range(size)]
    pairs = [
        {alias: max(0, min(2, size - done)) for alias, size in sizes.items()}
        for done in range(0, max(sizes.values()), 2)
    ]
    return [[(takes, None) for takes in steps] for steps in ([sizes], single, pairs)]


def kept(state):
    """Rows of the first table that a checkpoint keeps."""
    arranged = json.loads(state.split(b"\n")[0]).get("arranged")
    return arranged[0]["rows"] if arranged else None


@pytest.mark.parametrize("name", EDGES)
def test_edge(name, spark_root, analyst, tmp_path):
    edge = EDGES[name]
    laid = lay_out(tmp_path, {alias: history(parts) for alias, parts in edge.parts.items()})
    states = set()
    for number, schedule in enumerate(schedules(edge)):
        bed = Bed(spark_root.newSession, analyst)
        got = Coordinator(tmp_path / str(number), bed, edge.sql, laid, edge.changes).run(schedule, None, None)
        # As text, in which NaN is NaN and -0.0 is not 0.0.
        assert repr(got.rows) == repr(list(edge.rows))
        assert edge.late in (None, got.late)
        found = {"watermark": got.watermark, "kept": kept(got.state)}
        assert found == {**found, **edge.seen}
        assert (f'"untimed":{{"a":{edge.untimed}}}'.encode() in got.state) == (edge.untimed > 0)
        states.add(got.state)
    assert len(states) == 1


def test_decimal_overflow(spark_root, analyst, tmp_path):
    """``decimal-overflow``: the transaction fails, however its blocks are grouped, and leaves nothing behind."""
    sql = text(
        "select time_bucket(interval '1' day, event_time) as event_time, sum(cast(v as decimal(2, 0))) as s "
        "from a group by 1"
    )
    laid = lay_out(tmp_path, {"a": history([([(at(0), "x", 99)], at(1)), ([(at(1), "x", 100)], at(1.5)), ([], at(2))])})
    messages = set()
    for number, before in enumerate([[], [{"a": 1}], [{"a": 1}, {"a": 1}]]):
        asked = Coordinator(tmp_path / str(number), Bed(spark_root.newSession, analyst), sql, laid)
        for takes in before:
            asked.transact(takes)
        request = asked.request({"a": 3 - len(before)})
        answer = run_transform(spark_root.newSession(), request, RequestControl(), asked._caches)
        assert isinstance(answer, InvalidQuery), answer
        assert (answer.rule or "").startswith("numeric-value-out-of-range")
        assert not (tmp_path / str(number) / f"out-{asked.attempts}").exists()
        assert not (tmp_path / str(number) / f"checkpoint-{asked.attempts}").exists()
        messages.add(str(answer))
    assert len(messages) == 1


def test_all_are_here_or_have_a_place():
    assert set(NAMED.split()) | UNNAMED == {name.partition(":")[0] for name in EDGES} | ELSEWHERE


OPEN = [([(at(0), "x", 1)], at(0.2)), ([(at(0.1), "x", 2)], at(0.3)), ([], at(0.9))]
IDLE = {
    "nothing is settled": (DAYS, OPEN),
    "no window is closed": (
        APPLY + SUMS,
        [*OPEN, ([(at(0), "x", 3)], None)],
    ),
    "no row is late": (
        LATE + "select time_bucket(interval '1' day, event_time) as event_time, event_time as said_of, k, v from a",
        [([(at(1), "x", 1)], at(1)), ([(at(2), "x", 2)], at(1)), ([(at(1), "x", 3)], at(3))],
    ),
}


@pytest.mark.parametrize("name", IDLE)
def test_a_transaction_with_nothing_to_write_starts_no_job(lab, name):
    sql, blocks = IDLE[name]
    context, stream = lab.spark.sparkContext, lab.given("idle", blocks)
    context.setJobGroup(name, "")
    for groups in ([len(blocks)], [1] * len(blocks), [1, len(blocks) - 1]):
        assert lab.run(sql, {"a": stream}, [{"a": size} for size in groups]).rows == []
    assert list(context.statusTracker().getJobIdsForGroup(name)) == []


def test_a_checkpoint_of_another_query_is_refused(lab):
    stream = lab.given("other", [([(at(0), "x", 1)], at(1)), ([(at(1), "x", 2)], at(2))])
    caches = SharedCaches(Analyst(), SliceReader())
    _, checkpoint, _ = lab.transact(DAYS, stream.blocks[:1], None, 0, caches)
    answer, _, _ = lab.transact("select event_time, v from a", stream.blocks[1:], checkpoint, 0, caches)
    assert isinstance(answer, InvalidQuery)
    assert "another query" in answer.message


FACT = [([(at(0), "x", 1)], at(1))]
LOG = "set odf.read.a = 'log';\n"
COUNTED = "select k, max(event_time) as event_time, sum(op) as s, count(*) as c from a group by k"
THREE = "set odf.late = 'apply within 3 days';\n"
TAKEN_BACK = [*FACT, ([(at(0), "x", 1, RETRACT)], at(2))]
LATE_FACT = [([(at(0), "x", 1)], at(2)), ([(at(3), "x", 2), (at(0.5), "x", 3)], at(2))]
REFUSED = [
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
    ("set odf.late = 'drop'; select event_time, v from a", "[late-in-log-mode]"),
    ("set odf.late.a = 'apply within 2 days'; select event_time, v from a", "[late-in-log-mode]"),
    ("set odf.late.b = 'drop'; select event_time, v from a", "[late]"),
    (LATE + "select timestamp_millis(v) as event_time, k from a", "[late-rows]"),
    (LATE + DAYS, "[late-rows]"),
    (f"set odf.watermark = 'max - 1 day'; {DAYS}", "[watermark]"),
    (LOG + "select event_time, k, v, op + 3 as op from a", "[op-value]", TAKEN_BACK),
    (LOG + "select event_time, k, v, k as op from a", "[exact-values]"),
    (LOG + "select k, op, max(event_time) as event_time from a group by k, op", "[op-not-available]"),
    ("select event_time, k, v, 1 - op as op from a", "[op-not-available]"),
    (
        "set odf.late = 'drop'; select date_trunc('day', event_time) as event_time, op from a group by 1, 2",
        "[op-not-available]",
    ),
    (COUNTED, "[op-not-available]"),
    ("select k, max(event_time) as event_time, count(*) as c from a where op < 2 group by k", "[op-not-available]"),
    ("set odf.read = 'table'; " + COUNTED, "[op-not-available]"),
    ("set odf.read.b = 'log'; " + COUNTED, "[read]"),
    ("set odf.tick = '1 day'; select event_time, k from a", "[tick]"),
    (
        THREE + "select date_trunc('day', event_time) as event_time, k, sum(v) as s, count(*) as c from a "
        "group by window(event_time, '1 day', '1 hour'), 1, 2",
        "[late-apply",
    ),
    (
        THREE + "select x.event_time, x.v from a x join a y on x.k = y.k and y.event_time = x.event_time",
        "[late-apply-join",
    ),
    (
        THREE + "select max(event_time) as event_time, sum(v) as s from a group by date_trunc('day', event_time)",
        "[key-not-selected",
    ),
    (KINDS_OF_KEY, "[history-per-key]"),
    (f"set odf.late = 'fail';\n{DAYS}", "1 row of a block came later", LATE_FACT),
    (f"set odf.late = 'fail';\n{DAYS}", "the first at offset 2", LATE_FACT),
    (DAYS, "corrections", TAKEN_BACK),
]
"""Queries, what is said of them, and blocks."""


@pytest.mark.parametrize(("sql", "said", "blocks"), [(*each, FACT)[:3] for each in REFUSED])
def test_a_fault_of_a_query_or_of_rows_is_an_answer(lab, sql, said, blocks):
    stream = lab.given("fault", blocks)
    answer, checkpoint, data = lab.transact(sql, stream.blocks, None, 0, SharedCaches(Analyst(), SliceReader()))
    assert isinstance(answer, InvalidQuery), answer
    assert said in str(answer)
    assert "\n\tat " not in answer.message
    assert answer.hint is None or answer.hint not in answer.message
    assert not checkpoint.exists()
    assert not data.exists()
