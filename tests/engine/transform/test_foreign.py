"""A coordinator that sends slices and watermarks, and mounts nothing again, gets the rows that ours gets."""

from __future__ import annotations

import pytest

from chain.model.source import SqlQueryStep, TemporalTable, TransformSql

pytestmark = pytest.mark.engine
BLOCKS = 8
DAILY = """select time_bucket(interval '1' day, event_time) as event_time, k, sum(v) as s, count(*) as c
from a group by 1, 2"""
SHAPES = {
    "map": ("select * from a", "a", ""),
    "window, late rows allowed": ("set odf.lateness = '1 day';\n" + DAILY, "a", ""),
    "join": (
        "select a.event_time, a.v, b.v as w from a left join b on a.k = b.k "
        "and b.event_time between a.event_time - interval '3' day and a.event_time", "ab", "",
    ),
    "sessions": ("select session_window(event_time, '2 days').end as event_time, count(*) as c from a group by "
                 "session_window(event_time, '2 days')", "a", ""),
    "merged log": ("select event_time, k, v from a union all select event_time, k, v from b", "ab", "b"),
    "versions": ("select a.event_time, a.v, b.v as w from a join b on a.k = b.k and a.event_time >= b.valid_from "
                 "and a.event_time < b.valid_to", "ab", "b"),
    "windows over changes": ("set odf.late = 'drop';\n" + DAILY, "a", "a"),
    "table": ("select k, max(event_time) as event_time, sum(v) as s from a group by k", "a", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_same_rows_without_blocks(lab, name):
    sql, aliases, changing = SHAPES[name]
    temporal = (TemporalTable(name="b", primary_key=("k",)),) if name == "versions" else None
    query = TransformSql(engine="spark", queries=(SqlQueryStep(query=sql),), temporal_tables=temporal)
    streams = {
        alias: lab.changing(f"{name}-{alias}", at, BLOCKS) if alias in changing
        else lab.stream(900 + at, days=25, blocks=BLOCKS)
        for at, alias in enumerate(aliases)
    }  # fmt: skip
    takes = [dict.fromkeys(aliases, 2), {alias: 1 + (alias == "b") for alias in aliases}]
    takes.append({alias: BLOCKS - sum(take[alias] for take in takes) for alias in aliases})
    ours = lab.run(query, streams, takes, changelogs=changing)
    theirs = lab.run(query, streams, takes, restart=True, changelogs=changing, foreign=True)
    assert ours.rows
    assert theirs.rows == ours.rows
    assert (theirs.late, theirs.watermark) == (ours.late, ours.watermark)
    assert b'"open":[[' not in theirs.state.split(b"\n")[0]
