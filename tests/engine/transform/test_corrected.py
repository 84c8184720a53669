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
from worlds.depth import caught, first_now
from worlds.table_history import seen

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

    def wrong(seed):
        sql, streams, changing, names, (expected, mark, dropped) = case(lab, name, seed)
        got = lab.run(sql, streams, few_at_a_time(BLOCKS, seed, streams), changelogs=changing)
        return (seen(got, names), got.watermark, got.late) != (expected, mark * 10**6, dropped)

    caught(wrong, range(3))
