"""Large results come by other ways and are the slices that small ones are: same bytes of every row, same order."""

from __future__ import annotations

import pytest

from chain.data.logical_hash import logical_hash
from chain.model.source import SqlQueryStep, TransformSql
from engines.spark.execution import inputs
from engines.spark.output import slice as slices
from worlds.depth import stride

pytestmark = pytest.mark.engine
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
