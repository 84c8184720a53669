"""The law for shapes of one and two inputs: grouping, interleaving and restarts do not show, and a batch query agrees.

Each shape says in plain arithmetic what the engine has to find out from the plan: the least output time that a row of
each occurrence of an input can touch.
"""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

import engines.spark.incremental as incremental
import engines.spark.sessions as sessions
import engines.spark.transform as transform

pytestmark = pytest.mark.engine
HOUR = 3_600_000
DAY = 24 * HOUR
SEEDS = range(int(os.environ.get("ODF_SOAK", "1")))
BLOCKS = 14


def same(time: int) -> int:
    return time


def day(time: int) -> int:
    return time // DAY * DAY


@dataclass(frozen=True)
class Shape:
    """A query; ``lows``: least output time of a row (milliseconds), for each occurrence of each input."""

    sql: str
    lows: dict[str, tuple[Callable[[int], int], ...]]


DAILY = "select time_bucket(interval '1' day, event_time) as event_time, sum(v) as s from {} group by 1"
SHAPES = {
    "left interval join": Shape(
        "select a.event_time, a.k, a.v, b.v as w from a left join b on a.k = b.k "
        "and b.event_time between a.event_time - interval '3' day and a.event_time + interval '1' day",
        {"a": (same,), "b": (lambda time: time - DAY,)},
    ),
    "sum of a join": Shape(
        "select date_trunc('day', a.event_time) as event_time, a.k, sum(b.v) as s from a join b on a.k = b.k "
        "and b.event_time >= a.event_time - interval '2' day and b.event_time < a.event_time group by 1, 2",
        {"a": (day,), "b": (day,)},
    ),
    "not seen before": Shape(
        "select a.event_time, a.k, a.v from a left anti join b on a.k = b.k "
        "and b.event_time between a.event_time - interval '5' day and a.event_time",
        {"a": (same,), "b": (same,)},
    ),
    "equal days": Shape(
        "select a.event_time, a.v, b.v as w from a join b on a.k = b.k "
        "and date_trunc('day', a.event_time) = date_trunc('day', b.event_time)",
        {"a": (same,), "b": (day,)},
    ),
    "full outer windows": Shape(
        f"select event_time, x.s, y.s as t from ({DAILY.format('a')}) x full outer join ({DAILY.format('b')}) y "
        "using (event_time)",
        {"a": (day,), "b": (day,)},
    ),
    "self join": Shape(
        "select x.event_time, x.v, y.v as w from a x join a y on x.k = y.k "
        "and y.event_time between x.event_time and x.event_time + interval '2' day",
        {"a": (same, lambda time: time - 2 * DAY)},
    ),
    "top two": Shape(
        "select event_time, k, v from (select event_time, k, v, row_number() over "
        "(partition by time_bucket(interval '2' day, event_time), k order by v desc, event_time) as n from a) "
        "where n <= 2",
        {"a": (lambda time: time // (2 * DAY) * 2 * DAY,)},
    ),
    "running sum": Shape(
        "select event_time, k, sum(v) over (partition by k order by event_time "
        "range between interval '3' day preceding and interval '1' day following) as s from a",
        {"a": (lambda time: time - DAY,)},
    ),
    "sessions": Shape(
        "select session_window(event_time, '30 hours').end as event_time, session_window(event_time, '30 hours').start "
        "as begun, k, sum(v) as s from a group by session_window(event_time, '30 hours'), k",
        {"a": (same,)},
    ),
    "days of sessions": Shape(
        "select date_trunc('day', e) as event_time, count(*) as c, max(s) as s from ("
        "  select session_window(event_time, '3 days').end as e, sum(v) as s from a"
        "  where v % 5 <> 0 group by session_window(event_time, '3 days')) group by 1",
        {"a": (day,)},
    ),
    "local days": Shape(
        "select to_utc_timestamp(date_trunc('day', from_utc_timestamp(event_time, 'America/New_York')), "
        "'America/New_York') as event_time, sum(v) as s from a group by 1",
        {"a": (lambda time: day(time - 16 * HOUR) - 16 * HOUR,)},
    ),
}


def schedule(seed, aliases):
    rng, left, takes = random.Random(seed), dict.fromkeys(aliases, BLOCKS), []
    while any(left.values()):
        step = {alias: min(count, rng.choice([0, 1, 2, 5])) for alias, count in left.items()}
        left = {alias: count - step[alias] for alias, count in left.items()}
        takes.append(step)
    return takes


def streams_of(lab, shape, seed):
    return {
        alias: lab.stream(100 * seed + number, days=40, blocks=BLOCKS) for number, alias in enumerate(shape.lows, 1)
    }


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", SHAPES)
def test_any_schedule_gives_what_one_batch_query_gives(lab, name, seed):
    shape = SHAPES[name]
    streams = streams_of(lab, shape, seed)
    expected, late = lab.batch(shape.sql, streams, shape.lows)
    assert expected, "a history without settled rows proves nothing"
    pieces = lab.run(shape.sql, streams, schedule(seed, streams), restart=True)
    whole = lab.run(shape.sql, streams, [dict.fromkeys(streams, BLOCKS)])
    assert pieces.data() == expected
    assert whole.data() == expected
    assert pieces.state == whole.state, "state must be a function of the cut"
    assert (pieces.late, pieces.watermark) == (whole.late, whole.watermark)
    assert pieces.late == late
    assert pieces.with_data > 1


def bound_of_one_input(monkeypatch):
    bound = incremental._bound
    monkeypatch.setattr(
        incremental, "_bound", lambda paths, marks: bound([path for path in paths if path.input == "a"], marks)
    )


def open_rows_dropped(monkeypatch):
    monkeypatch.setattr(incremental, "_still_open", lambda judged, since: ())


def sessions_cut(monkeypatch):
    monkeypatch.setattr(sessions.Sessions, "oldest", lambda self, path, judged, end: end)


def sessions_without_keys(monkeypatch):
    monkeypatch.setattr(sessions, "group_codes", lambda keys: sessions.np.arange(keys.num_rows))


def one_path_only(monkeypatch):
    planned = transform.plan_step

    def mutant(query, inputs, previous, oldest):
        return planned(dataclasses.replace(query, paths=query.paths[:1]), inputs, previous, oldest)

    monkeypatch.setattr(transform, "plan_step", mutant)


@pytest.mark.parametrize(
    ("mutate", "name"),
    [
        (bound_of_one_input, "left interval join"),
        (open_rows_dropped, "running sum"),
        (one_path_only, "self join"),
        (sessions_cut, "sessions"),
        (sessions_without_keys, "days of sessions"),
    ],
)
def test_a_broken_engine_is_caught(lab, monkeypatch, mutate, name):
    shape = SHAPES[name]
    mutate(monkeypatch)
    for seed in range(3):
        streams = streams_of(lab, shape, seed)
        expected, _ = lab.batch(shape.sql, streams, shape.lows)
        try:
            if lab.run(shape.sql, streams, schedule(seed, streams)).data() != expected:
                return
        except AssertionError:
            return
    raise AssertionError("the broken engine gave the right answers")
