"""A backlog that leaves in pieces is the backlog that leaves at once. Spec: docs/spec/engine-semantics.md#pacing."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest
import trio

from bench.engine import LocalEngine
from chain.model.source import TemporalTable, TransformSql
from odfd.transform.driver import Committed, run_transform
from odfd.transform.plan import UpToDate
from odfd.transform.replay import Replayed, replay
from worlds.depth import stride
from worlds.transform_world import DERIVED, World

pytestmark = pytest.mark.engine
BLOCKS = 12
LEDGER = """select a.event_time, a.k, a.v, b.v as w from a left join b
on a.k = b.k and a.event_time >= b.event_time and a.event_time < b.event_time + interval '3' day"""
VERSIONS = TransformSql(
    engine="spark",
    query="select a.event_time, a.k, a.v, b.v as w from a left join b "
    "on a.k = b.k and a.event_time >= b.valid_from and a.event_time < b.valid_to",
    temporal_tables=(TemporalTable(name="b", primary_key=("k",)),),
)
WINDOWS = "select time_bucket(interval '1' day, event_time) as event_time, k, sum(v) as s from a group by 1, 2"
CHANGES = "select k, max(event_time) as event_time, count(distinct v % 3) as s from a group by k"
CASES = {
    "windows": (
        "select time_bucket(interval '1' day, event_time) as event_time, k, sum(v) as s from a group by 1, 2",
        (),
    ),
    "overlapping": (
        "select window(event_time, '3 days', '1 day').end as event_time, sum(v) as s from a group by "
        "window(event_time, '3 days', '1 day')",
        (),
    ),
    "sessions": (
        "select session_window(event_time, '6 hours').end as event_time, k, count(*) as c from a group by "
        "session_window(event_time, '6 hours'), k",
        (),
    ),
    "join": (LEDGER, ()),
    "versions": (VERSIONS, ("b",)),
    "table": ("select k, max(event_time) as event_time, sum(v) as s, count(*) as c from a group by k", ()),
    "table over changes": (
        "select k, max(event_time) as event_time, count(distinct v % 3) as s from a group by k",
        ("a",),
    ),
}


@pytest.mark.parametrize("name", list(CASES)[:: stride()])
def test_chunked_by_limits_is_the_whole(lab, name):
    sql, changing = CASES[name]
    aliases = ("a", "b") if name in ("join", "versions") else ("a",)
    streams = {
        alias: lab.changing(alias, 7, BLOCKS) if alias in changing else lab.stream(61 + at, days=40, blocks=BLOCKS)
        for at, alias in enumerate(aliases)
    }
    schedule = [dict.fromkeys(aliases, 7), dict.fromkeys(aliases, BLOCKS - 7)]
    whole = lab.run(sql, streams, schedule, changelogs=changing)
    assert whole.with_data == 2
    limits = {number: quarters(table) for number, table in enumerate(whole.slices)}
    pieces = lab.run(sql, streams, schedule, True, changing, limits=limits)
    assert pieces.with_data > whole.with_data, "the limits must have cut something"
    assert (pieces.rows, pieces.watermark, pieces.late) == (whole.rows, whole.watermark, whole.late)
    assert pieces.state == whole.state


@pytest.mark.parametrize(
    "sql",
    [
        WINDOWS.replace("k, sum(v)", "k % 3 as k, sum(k)").replace("'1' day", "'5' second"),
        "select k % 3 as k, max(event_time) as event_time, sum(k) as s from x group by 1",
    ],
)
def test_a_coordinator_paces_a_backlog_and_a_replay_knows_its_limits(tmp_path, spark_root, sql):  # fmt: skip
    """A slow input that jumps settles years at once; they leave in several blocks, and again so in a replay."""
    sql = sql.replace("from a", "from x")

    async def derived(name, rows):
        world = World(tmp_path / name, LocalEngine(spark_root))
        world.deps = dataclasses.replace(world.deps, rows=rows)
        world.found(sql)
        for number in range(12):
            world.time = 1_700_000_000_000 + 1000 * (number + 1)
            world.add_rows([10 * number + more for more in range(5)], watermark=10_000 * number)
        while isinstance(done := await run_transform(world.deps, DERIVED), Committed):
            pass
        assert isinstance(done, UpToDate), done
        found = [each async for each in replay(world.deps, DERIVED)]
        assert all(isinstance(each, Replayed) and each.is_reproduced for each in found)
        tables = [world.rows(each.event.new_data) for each in found if each.event.new_data is not None]
        return [row for table in tables for row in table.drop_columns(["system_time"]).to_pylist()], len(found), found

    rows, blocks, found = trio.run(derived, "paced", 15)
    whole, at_once, one = trio.run(derived, "whole", 1_000_000)
    assert rows == whole
    assert (at_once, blocks > 3) == (1, True)
    assert found[-1].checkpoint == one[-1].checkpoint
    assert b'"settled"' in found[0].checkpoint


def quarters(table):
    """Event times (milliseconds) that cut the rows in four."""
    times = sorted(table["event_time"].cast(pa.int64()).to_pylist())
    return [times[len(times) * part // 4] for part in (1, 2, 3)]
