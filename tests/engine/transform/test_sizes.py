"""How many rows there are shows in nothing: few reach Spark in memory, many as files, large results leave in runs."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.errors import ArithmeticException

from chain.data.logical_hash import logical_hash
from chain.data.parquet import write_slice
from chain.model.source import SqlQueryStep, TransformSql
from engines.contract import Vocab
from engines.spark.catalyst.plans import HIDDEN, carry_hidden
from engines.spark.execution import inputs
from engines.spark.output import slice as slices
from engines.spark.planning.transaction import SliceRead
from engines.spark.sql import views
from engines.spark.sql.views import name_empty_view, name_input, slices_view, view_schema
from worlds.depth import stride

# Few rows reach Spark in memory, many as files: a query sees the same. ``test_layout`` shows it of what comes out.


pytestmark = pytest.mark.engine
VOCAB = Vocab()
TIME = pa.timestamp("ms", "UTC")
SYSTEM = [("offset", pa.int64()), ("op", pa.int32()), ("system_time", TIME), ("event_time", TIME)]
PLAIN = {
    "whole": (pa.int64(), [-(2**63), 2**63 - 1, None, 0]),
    "small": (pa.int16(), [-(2**15), None, 1, 0]),
    "single": (pa.float32(), [1.5, -0.0, float("nan"), None]),
    "double": (pa.float64(), [float("-inf"), -0.0, float("nan"), None]),
    "sure": (pa.bool_(), [True, None, False, True]),
    "text": (pa.string(), ["", "\U0001f600", None, "a\x00b"]),
    "bytes": (pa.binary(), [b"", b"\xff\x00", None, b"x"]),
    "day": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), None, dt.date(1970, 1, 1)]),
    "price": (pa.decimal128(38, 10), [Decimal("-1e-10"), None, Decimal(9) * 10**27, Decimal(0)]),
    "moment": (pa.timestamp("us", "UTC"), [0, -1, None, 2**53]),
}
OTHER = {
    "unsigned": (pa.uint64(), [0, 2**64 - 1, None, 1]),
    "local": (pa.timestamp("us"), [0, -1, None, 5]),
    "fine": (pa.timestamp("ns", "UTC"), [0, -1, None, 5]),
    "many": (pa.list_(pa.int32()), [[], [1, None], None, [2]]),
    "parts": (pa.struct([("a", pa.int32())]), [{"a": 1}, {"a": None}, None, {"a": 2}]),
}


def slice_of(path, columns, first=0):
    times = [first + 3000, first + 1000, None, first + 2000]
    rows = {"offset": [*range(first, first + 4)], "op": [0] * 4, "system_time": [0] * 4, "event_time": times}
    arrays = [pa.array(rows[name], kind) for name, kind in SYSTEM] + [
        pa.array(values, kind) for kind, values in columns.values()
    ]
    write_slice(pa.table(arrays, names=[name for name, _ in SYSTEM] + list(columns)), path)
    return str(path)


def shown(spark, reads, columns, number, monkeypatch, few, events=False):
    """What a query sees of an input, and what comes with it; and which parts of it were files."""
    monkeypatch.setattr(views, "FEW", 1 << 18 if few else -1)
    kinds = pa.schema(SYSTEM + [(name, kind) for name, (kind, _) in columns.items()])
    schema, session = view_schema(kinds, VOCAB), spark.newSession()
    name_empty_view(session, schema, "a.b")
    frame = slices_view(session, reads, schema, VOCAB, number, events)
    name_input(frame, schema, "a.b")
    table = session.table("`a.b`")
    if number is not None:
        table = carry_hidden(session, table._jdf.queryExecution().analyzed(), HIDDEN)
    rows = table.toArrow().sort_by([("offset", "ascending")])
    kinds = [(field.name, field.type) for field in rows.schema]
    return rows.to_pylist(), kinds, "parquet" in frame._jdf.queryExecution().toString()


def same(one, other):
    """Bit for bit, as far as ``repr`` tells: of numbers that are none too, and of zeros with a sign."""
    return repr(one) == repr(other)


@pytest.mark.parametrize("number", [None, 3])
@pytest.mark.parametrize("name", ["all", "missing", "none", *OTHER])
def test_few_rows_and_many_are_seen_alike(spark, tmp_path, monkeypatch, name, number):
    columns = PLAIN | ({name: OTHER[name]} if name in OTHER else {})
    first = slice_of(tmp_path / "first", {} if name == "missing" else columns)
    second = slice_of(tmp_path / "second", columns, 4)
    micros = 1000
    reads = [SliceRead((first,)), SliceRead((second,), 1004 * micros, 3004 * micros, 77)] if name != "none" else []
    rows, kinds, by_file = shown(spark, reads, columns, number, monkeypatch, few=True)
    others, their_kinds, theirs_by_file = shown(spark, reads, columns, number, monkeypatch, few=False)
    assert same(rows, others)
    assert kinds == their_kinds
    assert len(rows) == (6 if reads else 0)
    assert by_file == (name in OTHER)
    assert theirs_by_file == bool(reads)


def test_of_events_every_row_is_an_addition(spark, tmp_path, monkeypatch):
    reads = [SliceRead((slice_of(tmp_path / "slice", PLAIN),))]
    rows, *_ = shown(spark, reads, PLAIN, 0, monkeypatch, few=True, events=True)
    others, *_ = shown(spark, reads, PLAIN, 0, monkeypatch, few=False, events=True)
    assert same(rows, others)
    assert {row[HIDDEN[1]] for row in rows} == {0}


def test_a_time_that_spark_does_not_hold_is_for_spark_to_refuse(spark, tmp_path, monkeypatch):
    """In words, as in a large slice; a number that went over its end would be another time."""
    columns = {"moment": (TIME, [2**62, 0, None, 1])}
    reads = [SliceRead((slice_of(tmp_path / "slice", columns),))]
    faults = []
    for few in (True, False):
        with pytest.raises(Exception, match="overflow") as caught:
            shown(spark, reads, columns, None, monkeypatch, few)
        faults.append(type(caught.value))
    assert faults[0] is faults[1]


def test_many_rows_are_for_spark_to_read(spark, tmp_path, monkeypatch):
    reads = [SliceRead((slice_of(tmp_path / "slice", PLAIN),))]
    monkeypatch.setattr(views, "FEW_ROWS", 3)
    assert shown(spark, reads, PLAIN, None, monkeypatch, few=True)[2]


def test_rows_in_memory_are_worked_on_in_tasks(spark, tmp_path):
    """Which can be stopped: what Spark computes while it plans is watched by nobody, and goes on when all have left."""
    schema = view_schema(pa.schema(SYSTEM), VOCAB)
    frame = slices_view(spark, [SliceRead((slice_of(tmp_path / "slice", {}),))], schema, VOCAB, None)
    name_empty_view(spark, schema, "a")
    name_input(frame, schema, "a")
    asked = spark.sql("select 1 / (a.offset - 2) as q from a where a.op = 0")
    planned = asked._jdf.queryExecution().optimizedPlan().toString()
    assert "LocalRelation" in planned
    assert "Project" in planned
    with pytest.raises(ArithmeticException):
        asked.toArrow()


# Large results come by other ways and are the slices that small ones are: same bytes of every row, same order.


DAY = "time_bucket(interval '5' day, event_time)"
QUERIES = {
    "sums": f"select {DAY} as event_time, k, sum(v) as s, count(*) as c from a group by 1, 2",
    "zeros": (f"select {DAY} as event_time, case v % 5 when 0 then -0.0D when 1 then 0.0D when 2 then double('NaN') "
              f"when 3 then null else v / 3.0D end as f, v, rank() over (partition by {DAY} order by k) as n "
              "from a"),
    "nested": (f"select {DAY} as event_time, struct(min(k) as k, double(max(v)) / 7 as d) as p, "
               "array_sort(collect_list(v)) as l, count(*) as c from a group by 1, v % 3"),
    "dates": (f"select cast({DAY} as date) as event_time, k, v, rank() over (partition by {DAY} order by v) as r "
              "from a"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(QUERIES)[:: stride()])
def test_runs_make_the_same_slices(lab, name, monkeypatch):
    query = TransformSql(engine="spark", queries=(SqlQueryStep(query=QUERIES[name]),))
    stream = lab.stream(11, days=60, blocks=8, rows=120)
    schedule = [{"a": 3}, {"a": 2}, {"a": 3}]
    whole = lab.run(query, {"a": stream}, schedule)
    made = []
    join = slices._join

    def counted(files, *rest):
        made.append(len(files))
        return join(files, *rest)

    monkeypatch.setattr(slices, "LARGE", -1)
    monkeypatch.setattr(slices, "RUN", 300)
    monkeypatch.setattr(slices, "_join", counted)
    split = lab.run(query, {"a": stream}, schedule)
    assert max(made) > 2
    assert split.rows == whole.rows or name == "zeros"  # NaN is not itself
    assert [logical_hash(table) for table in split.slices] == [logical_hash(table) for table in whole.slices]
    assert (split.state, split.watermark) == (whole.state, whole.watermark)
    assert not list(lab.folder.glob("*.runs"))


@pytest.mark.parametrize("changing", ["", "a"])
def test_logs_that_say_no_ops_make_the_same_slices(lab, changing, monkeypatch):
    streams = lab.streams("logs", "a", changing, blocks=6)
    schedule = [{"a": 1}, {"a": 3}, {"a": 2}]
    sql = "select event_time, k, v * 2 as v from a where v % 3 <> 0"
    whole = lab.run(sql, streams, schedule, changelogs=changing)
    monkeypatch.setattr(inputs, "MANY", 0)
    assert lab.run(sql, streams, schedule, changelogs=changing).slices == whole.slices
    assert any(row["op"] for row in whole.rows) == bool(changing)
