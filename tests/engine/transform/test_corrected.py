"""Late rows and corrections of windows that have closed: the output is the history of what was settled.

The oracle evaluates every closed window at every tick in Python, from the statements alone.
Spec: docs/spec/engine-semantics.md#late-rows.
"""

from __future__ import annotations

import dataclasses
import os
import random

import numpy as np
import pytest

import engines.spark.execution.tables as tables
import engines.spark.execution.transform as transform
import engines.spark.planning.table_transaction as windowed
from conformance.histories import few_at_a_time
from worlds.depth import first_now

pytestmark = pytest.mark.engine
DAY = 86_400_000
SEEDS = range(int(os.environ.get("ODF_SOAK", "1")))
BLOCKS = 10
FAR = 2**62
START = 1_704_067_200_000
DAILY = (
    "select time_bucket(interval '1' day, event_time) as event_time, k, {} as s, count(*) as c from {} group by 1, 2"
)
SUMS, KINDS = DAILY.format("sum(v)", "a"), DAILY.format("count(distinct v % 3)", "a")
ENDS = "select window(event_time, '1 day').end - interval '1' millisecond as event_time, k, sum(v) as s, count(*) as c "
ENDS += "from a group by window(event_time, '1 day'), k"
HAVING = SUMS + " having count(*) > 1"
OF_TWO = DAILY.format("sum(v)", "(select event_time, k, v from a union all select event_time, k, v from b)")
TOP = """select event_time, k, v from (select event_time, k, v, row_number() over
  (partition by time_bucket(interval '1' day, event_time), k order by v desc, event_time) as n from a) where n <= 2"""
MONTHS = "select date_trunc('month', event_time) as event_time, k, sum(v) as s, count(*) as c from a group by 1, 2"


def day(time):
    return time // DAY * DAY


def month(time):
    return int(np.datetime64(time, "ms").astype("datetime64[M]").astype("datetime64[ms]").astype(int))


def grouped(value, shown=lambda time: time, least=1):
    def of(start, rows):
        by_key = {}
        for _, key, number in rows:
            by_key.setdefault(key, []).append(number)
        return {(shown(start), key): [(shown(start), key, value(found), len(found))]
                for key, found in by_key.items() if len(found) >= least}  # fmt: skip

    return of


def best(start, rows):
    by_key = {}
    for row in rows:
        by_key.setdefault((start, row[1]), []).append(row)
    return {key: sorted(sorted(found, key=lambda row: (-row[2], row[0]))[:2]) for key, found in by_key.items()}


def kinds(numbers):
    return len({number % 3 for number in numbers})


def standing(lab, stream, start, within, lateness):
    """[row, from, until] of accepted rows by the rules of 5.1 and 5.2; how many were dropped as too late."""
    said = [
        (*each[:4], *(mark - lateness for mark in each[4:])) for each in lab.statements(stream) if each[0] is not None
    ]
    found, open_rows, dropped = [], {}, 0
    for position, (time, key, value, op, before, after) in enumerate(said):
        row = (time, key, value)
        if before > -FAR and start(time) < start(max(before - within, START - 100 * DAY)):
            dropped += 1
        elif op in (0, 3):
            found.append([row, max(time, before), FAR])
            open_rows.setdefault(row, []).append(found[-1])
        elif open_rows.get(row):
            gone = open_rows[row].pop(0)
            gone[2] = max(gone[1], max(said[position + 1][0], before) if op == 2 else max(time, before, after))
    return found, dropped


def history(lab, streams, query, start=day, end=lambda start: start + DAY, within=FAR, single=True, lateness=0):
    """(op, *row) in order, the bound of the watermark, and how many rows were dropped."""
    rows, dropped = [], 0
    for alias, stream in streams.items():
        found, late = standing(lab, stream, start, within[alias] if isinstance(within, dict) else within, lateness)
        rows, dropped = rows + found, dropped + late
    marks = {b.watermark_after // 10**6 - lateness for s in streams.values() for b in s.blocks if b.watermark_after}
    reached = min(stream.blocks[-1].watermark_after // 10**6 - lateness for stream in streams.values())
    known, out = {}, []
    for tick in sorted(mark for mark in marks if mark <= reached):
        windows = {}
        for row, since, until in rows:
            if end(start(row[0])) <= tick and since < tick <= until:
                windows.setdefault(start(row[0]), []).append(row)
        now = {key: found for first, inside in windows.items() for key, found in query(first, inside).items()}
        changes = []
        for key in set(known) | set(now):
            old, new = list(known.get(key, [])), list(now.get(key, []))
            for row in [row for row in old if row in new]:
                old.remove(row)
                new.remove(row)
            paired = single and old and new
            gone = [(*_key(row, single), 0, row, 2 if paired else 1) for row in old]
            changes += gone + [(*_key(row, single), 1, row, 3 if paired else 0) for row in new]
        changes.sort(key=lambda change: (*change[:-2], tuple(_null_first(part) for part in change[-2])))
        out += [(change[-1], *change[-2]) for change in changes]
        known = now
    return out, start(reached), dropped


def _null_first(part):
    return part is not None, 0 if part is None else part


def _key(row, single):
    return row[0], row[1] is not None, row[1] or ""


def growing(lab, name, seed, blocks, days=1):
    """Rows a week late, equal ones among them, some without a time; the first blocks may have no watermark."""
    rng, parts, clock, mark = random.Random(seed), [], START, None
    for _ in range(blocks):
        clock += rng.randrange(0, 2 * days * DAY)
        rows = []
        for _ in range(rng.choice([0, 4, 8, 12])):
            time = clock + DAY // 4 * rng.randrange(-16 * days if rng.random() < 0.7 else -4, 4)
            key = rng.choice(["k0", "k0", "k1", None])
            rows.append((None if rng.random() < 0.05 else time, key, rng.randrange(9)))
        if rng.random() < 0.8:
            stated = clock - rng.randrange(0, DAY)
            mark = stated if mark is None else max(mark, stated)
        parts.append((rows, mark))
    return lab.given(name, parts)


def seen(got, names=("k", "s", "c")):
    got.data()
    return [(row["op"], int(row["event_time"].timestamp() * 1000), *(row[name] for name in names)) for row in got.rows]


APPLY, THREE = "set odf.late = 'apply';\n", "set odf.late = 'apply within 3 days';\n"
CASES = {
    "grows": (APPLY + SUMS, "a", "", grouped(sum), {}),
    "window ends": (APPLY + ENDS, "a", "", grouped(sum, lambda start: start + DAY - 1), {}),
    "grows, three days": (THREE + SUMS, "a", "", grouped(sum), {"within": 3 * DAY}),
    "not mergeable": (THREE + KINDS, "a", "", grouped(kinds), {"within": 3 * DAY}),
    "having": (THREE + HAVING, "a", "", grouped(sum, least=2), {"within": 3 * DAY}),
    "changes": (APPLY + SUMS, "a", "a", grouped(sum), {}),
    "changes, two days": (
        "set odf.late.a = 'apply within 2 days';\n" + KINDS, "a", "a", grouped(kinds), {"within": 2 * DAY},
    ),
    "of two": (APPLY + OF_TWO, "ab", "b", grouped(sum), {}),
    "of two, one drops": (
        "set odf.late.a = 'apply'; set odf.late.b = 'drop';\n" + OF_TWO, "ab", "", grouped(sum),
        {"within": {"a": FAR, "b": 0}},
    ),
    "patient": (
        "set odf.lateness = '36 hours'; set odf.late = 'apply within 1 day';\n" + OF_TWO, "ab", "b", grouped(sum),
        {"within": DAY, "lateness": 3 * DAY // 2},
    ),
    "top two": (THREE + TOP, "a", "", best, {"within": 3 * DAY, "single": False}),
    "top two of changes": (APPLY + TOP, "a", "a", best, {"single": False}),
    "months": (
        APPLY + MONTHS, "a", "", grouped(sum), {"start": month, "end": lambda start: month(start + 31 * DAY)},
    ),
}  # fmt: skip


def case(lab, name, seed):
    sql, aliases, changing, query, rest = CASES[name]
    streams = {
        alias: lab.changing(f"{alias}{seed}", seed + at, BLOCKS)
        if alias in changing
        else growing(lab, f"{alias}{seed}", 100 * seed + at, BLOCKS, days=5 if name == "months" else 1)
        for at, alias in enumerate(aliases, 1)
    }
    names = ("k", "v") if name.startswith("top two") else ("k", "s", "c")
    return sql, streams, changing, names, history(lab, streams, query, **rest)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_closed_windows_are_corrected_in_place(lab, name, seed):
    sql, streams, changing, names, (expected, mark, dropped) = case(lab, name, seed)
    pieces = lab.run(sql, streams, few_at_a_time(BLOCKS, seed, streams), restart=True, changelogs=changing)
    whole = lab.run(sql, streams, [dict.fromkeys(streams, BLOCKS)], changelogs=changing)
    assert seen(pieces, names) == expected
    assert seed or any(op for op, *_ in expected), "histories without corrections prove nothing"
    assert whole.rows == pieces.rows
    assert whole.state == pieces.state, "state must be a function of the cut"
    assert pieces.watermark == whole.watermark == (mark + (DAY - 1 if name == "window ends" else 0)) * 10**6
    assert pieces.late == whole.late == dropped


@pytest.mark.parametrize("seed", SEEDS)
def test_an_input_that_may_be_a_changelog_is_taken_for_one(lab, seed):
    """Chains of derived inputs do not say what they are."""
    sql, streams, _, names, (expected, *_) = case(lab, "changes", seed)
    assert seen(lab.run(sql, streams, few_at_a_time(BLOCKS, seed, streams), changelogs=None), names) == expected


def at(days):
    return START + int(days * DAY)


def said(got):
    return [(op, (time - START) / DAY, *rest) for op, time, *rest in seen(got)]


EVERY = ([4], [1, 1, 1, 1], [2, 2], [1, 3])


def histories(lab, name, parts, sql, changelog=False):
    stream = lab.given(name, parts)
    for groups in EVERY:
        yield lab.run(sql, {"a": stream}, [{"a": size} for size in groups], changelogs="a" if changelog else ())


def test_a_correction_to_an_earlier_time_moves_a_row_between_closed_windows(lab):
    """``correction-to-earlier-time``, ``correction-moves-group``."""
    parts = [
        ([(at(0), "x", 1), (at(2.5), "x", 4)], at(1)),
        ([], at(3)),
        ([(at(2.5), "x", 4, 2), (at(0.5), "y", 5, 3)], at(4)),
        ([], at(5)),
    ]
    for got in histories(lab, "earlier", parts, APPLY + SUMS, changelog=True):
        assert said(got) == [(0, 0, "x", 1, 1), (0, 2, "x", 4, 1), (0, 0, "y", 5, 1), (1, 2, "x", 4, 1)]
        assert got.watermark == at(5) * 10**6


def test_a_correction_of_the_last_row_of_a_group_retracts_it(lab):
    """``correction-of-last-row-of-group``; a correction that comes before the window is settled is netted."""
    parts = [
        ([(at(0), "x", 1), (at(0), "y", 2), (at(1.5), "x", 8)], at(1)),
        ([(at(0), "x", 1, 1), (at(1.5), "x", 8, 2), (at(1.5), "x", 9, 3)], at(2)),
        ([(at(0), "y", 2, 2), (at(0), "y", 3, 3)], at(3)),
        ([(at(0), "x", 7)], at(4)),
    ]
    for got in histories(lab, "last", parts, APPLY + SUMS, changelog=True):
        assert said(got) == [
            (0, 0, "x", 1, 1), (0, 0, "y", 2, 1),  # the first tick
            (0, 1, "x", 9, 1),  # the second: of 8 nobody ever hears
            (1, 0, "x", 1, 1), (2, 0, "y", 2, 1), (3, 0, "y", 3, 1),  # the third: -R counts from when its block ends
            (0, 0, "x", 7, 1),
        ]  # fmt: skip


def test_a_row_that_is_late_on_one_path_only_is_dropped_on_both(lab):
    """``late-on-one-path-only``: half a row would be an answer to no question."""
    sql = """select event_time, sum(v) as s from (
      select time_bucket(interval '1' day, event_time) as event_time, v from a union all
      select time_bucket(interval '2' day, event_time) as event_time, v from a) group by 1"""
    stream = lab.given("one-path", [([(at(1), "x", 1)], at(2)), ([(at(1.5), "x", 10), (at(2), "x", 4)], at(4))])
    for groups in ([2], [1, 1]):
        got = lab.run(sql, {"a": stream}, [{"a": size} for size in groups])
        assert [(row["event_time"].day, row["s"]) for row in got.data()] == [(2, 1 + 5), (3, 4)]
        assert got.late == 1


def test_rows_later_than_what_was_declared_are_dropped_and_their_windows_forgotten(lab):
    sql = "set odf.late = 'apply within 2 days';\n" + KINDS
    parts = [
        ([(at(0), "x", 1), (at(3), "x", 2)], at(4)),
        ([(at(1.9), "x", 9), (at(2), "x", 3)], at(4)),
        ([(at(3), "x", 4)], at(9)),
        ([(at(3), "x", 5)], at(9)),
    ]
    for got in histories(lab, "reach", parts, sql):
        assert said(got)[:3] == [(0, 0, "x", 1, 1), (0, 3, "x", 1, 1), (0, 2, "x", 1, 1)]
        assert said(got)[3:] == [(2, 3, "x", 1, 1), (3, 3, "x", 2, 2)]
        assert got.late == 2
        assert b'"arranged":[' not in got.state, "no row can change anything any more"


def not_before_settled(monkeypatch):
    monkeypatch.setattr(windowed.InputWindows, "last_instants", lambda self, times: times)


def everything_forgotten(monkeypatch):
    kept = transform.accumulate
    monkeypatch.setattr(transform, "accumulate", lambda *given: dataclasses.replace(kept(*given), state={}))


def forgotten_too_soon(monkeypatch):
    kept = windowed.InputWindows.open_from
    monkeypatch.setattr(
        windowed.InputWindows, "open_from",
        lambda self, reached: kept(self, None if reached is None else reached + 5000 * DAY),
    )  # fmt: skip


def any_lateness(monkeypatch):
    monkeypatch.setattr(windowed.InputWindows, "accepted_from", lambda self, before: -(2**62))


def watermark_of_ticks(monkeypatch):
    monkeypatch.setattr(windowed, "apply", lambda function, time: time)


def no_cancellation(monkeypatch):
    monkeypatch.setattr(tables, "cancelled_by", lambda codes, ops: (tables.np.full(len(ops), -1), None))


@pytest.mark.parametrize(
    ("mutate", "name"),
    first_now(
        [
            (not_before_settled, "grows"),
            (everything_forgotten, "grows"),
            (forgotten_too_soon, "not mergeable"),
            (any_lateness, "grows, three days"),
            (watermark_of_ticks, "grows"),
            (no_cancellation, "changes"),
        ]
    ),
)
def test_a_broken_engine_is_caught(lab, monkeypatch, mutate, name):
    mutate(monkeypatch)
    for seed in range(3):
        sql, streams, changing, names, (expected, mark, dropped) = case(lab, name, seed)
        try:
            got = lab.run(sql, streams, few_at_a_time(BLOCKS, seed, streams), changelogs=changing)
            if (seen(got, names), got.watermark, got.late) != (expected, mark * 10**6, dropped):
                return
        except AssertionError:
            return
    raise AssertionError("the broken engine gave the right answers")
