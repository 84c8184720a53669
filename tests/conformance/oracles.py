"""What must come out, worked out from the statements alone: nothing here is shared with the engine but a query's text.

Final mode: one batch query of DuckDB over the rows that were in time. Log mode: the image of every row. Table mode: the
whole table at every tick, then differences. Versions: the statements one by one.
Spec: docs/spec/engine-semantics.md#modes, #changelogs, #conformance.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from conformance.duck import MICROS, Duck
from conformance.histories import (
    ADDED,
    CORRECT_FROM,
    CORRECT_TO,
    DAY,
    NO_MARK,
    RETRACTED,
    Histories,
    History,
    Said,
    final_mark,
    said,
)

FAR: Final = 2**62
Low: TypeAlias = Callable[[int], int]
"""Least output time (milliseconds) that a row of a time, or a watermark, reaches."""
Expected: TypeAlias = tuple[list[tuple[Any, ...]], int | None]
"""Rows (op, event time, columns) in order, and how many were late; ``None`` where none is counted."""


def same(time: int) -> int:
    return time


def day(time: int) -> int:
    return time // DAY * DAY


def local_day(time: int) -> int:
    """Midnight in New York, where clocks were never changed at midnight."""
    moment = dt.datetime.fromtimestamp(time / 1000, ZoneInfo("America/New_York"))
    return int(moment.replace(hour=0, minute=0, second=0, microsecond=0).timestamp() * 1000)


def days(count: int) -> Low:
    return lambda time: time // (count * DAY) * count * DAY


def month(time: int, step: int = 1) -> int:
    months = int(np.datetime64(time, "ms").astype("datetime64[M]").astype(int))
    return int(np.datetime64(months - months % step, "M").astype("datetime64[ms]").astype(int))


def next_month(time: int) -> int:
    """Midnight of the same day of the next month, or of its last: late on the 30th comes after early on the 31st."""
    date = (dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=time)).date()
    first = (date.replace(day=1) + dt.timedelta(days=32)).replace(day=1)
    last = (first + dt.timedelta(days=32)).replace(day=1) - dt.timedelta(days=1)
    return (first.replace(day=min(date.day, last.day)) - dt.date(1970, 1, 1)).days * DAY


def in_time(row: Said, lows: Sequence[Low], lateness: int = 0) -> bool:
    """Whether nothing that a row can change was settled when its block was written."""
    if row.time is None:
        return False
    return row.before == NO_MARK or all(low(row.time) >= low(row.before - lateness) for low in lows)


def bound(histories: Histories, lows: Mapping[str, Sequence[Low]], lateness: int = 0) -> int | None:
    reached = []
    for alias, blocks in histories.items():
        mark = final_mark(blocks)
        if mark is None:
            return None
        reached += [low(mark - lateness) for low in lows[alias]]
    return min(reached)


def sort_key(values: Iterable[Any]) -> tuple[tuple[bool, Any], ...]:
    """Ascending, nulls first."""
    return tuple((value is not None, value) for value in values)


def final(
    duck: Duck,
    texts: Sequence[tuple[str, str]],
    histories: Histories,
    lows: Mapping[str, Sequence[Low]],
    lateness: int = 0,
) -> Expected:
    """The queries over all rows in time; those settled; by event time, then all other columns."""
    duck.newSession()
    late = 0
    for alias, blocks in histories.items():
        rows = [row for row in said(blocks) if row.time is not None]
        kept = [row for row in rows if in_time(row, lows[alias], lateness)]
        late += len(rows) - len(kept)
        duck.name(alias, _table(netted(kept)))
    reached = bound(histories, lows, lateness)
    result = duck.query(texts)
    names = [name for name in result.column_names if name != "event_time"]
    columns = [result["event_time"].cast(pa.int64()), *(_numbers(result[name]) for name in names)]
    found = zip(*(column.to_pylist() for column in columns), strict=True)
    settled = [(time // 1000, *rest) for time, *rest in found if reached is not None and time // 1000 < reached]
    return [(ADDED, *row) for row in sorted(settled, key=sort_key)], late


def _numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array([[None if t is None else t // 1000 for t in column.cast(pa.int64()).to_pylist()]],
                            pa.int64()) if column.type == MICROS else column  # fmt: skip


def netted(rows: Sequence[Said]) -> list[Said]:
    """Rows asserted and not taken back; a retraction takes the first equal one, or nothing."""
    standing: list[Said] = []
    for row in rows:
        if row.op in (ADDED, CORRECT_TO):
            standing.append(row)
        else:
            gone = next((each for each in standing if each[:3] == row[:3]), None)
            if gone is not None:
                standing.remove(gone)
    return standing


def _table(rows: Sequence[Said]) -> pa.Table:
    return pa.table({
        "event_time": pa.array([row.time for row in rows], pa.timestamp("ms", "UTC")).cast(MICROS),
        "k": pa.array([row.k for row in rows], pa.string()),
        "v": pa.array([row.v for row in rows], pa.int64()),
        "offset": pa.array([row.offset for row in rows], pa.int64()),
    })  # fmt: skip


Image: TypeAlias = Callable[[Said], "tuple[Any, ...] | None"]


def log(histories: Histories, images: Mapping[str, Image]) -> Expected:
    """The image of every row; several inputs by the watermark before the block, up to the slowest; pairs mended."""
    placed = [
        (row.before, number, offset, row)
        for number, (_, blocks) in enumerate(histories.items())
        for offset, row in enumerate(said(blocks))
    ]
    if len(histories) > 1:
        marks = [final_mark(blocks) for blocks in histories.values()]
        gate = NO_MARK if None in marks else min(mark for mark in marks if mark is not None)
        placed = sorted(each for each in placed if each[0] < gate)
    image = list(images.values())
    shown = {(number, offset): image[number](row) for _, number, offset, row in placed}
    out = []
    for _, number, offset, row in placed:
        values, op = shown[number, offset], row.op
        if values is None:
            continue
        if op in (CORRECT_FROM, CORRECT_TO):
            other = shown.get((number, offset + (1 if op == CORRECT_FROM else -1)))
            if other == values:
                continue
            op = op if other is not None else RETRACTED if op == CORRECT_FROM else ADDED
        out.append((op, *values))
    return out, None


Fact: TypeAlias = tuple[int, "str | None", int]
Tabulate: TypeAlias = Callable[[Sequence[Fact]], "dict[Any, list[tuple[Any, ...]]]"]
"""Rows that stand to the table's rows by key."""


def standing(blocks: History, counts: Callable[[Said], bool] = lambda _: True) -> list[tuple[Fact, int, int]]:
    """(row, from, until) by the rules of 5.1 and 5.2, statement by statement; only of those that count."""
    rows = [row for row in said(blocks) if row.time is not None]
    found: list[list[Any]] = []
    open_rows: dict[Fact, list[list[Any]]] = {}
    for position, row in enumerate(rows):
        assert row.time is not None
        fact = (row.time, row.k, row.v)
        if not counts(row):
            continue
        if row.op in (ADDED, CORRECT_TO):
            found.append([fact, max(row.time, row.before), FAR])
            open_rows.setdefault(fact, []).append(found[-1])
        elif open_rows.get(fact):
            gone = open_rows[fact].pop(0)
            after = rows[position + 1].time if row.op == CORRECT_FROM else max(row.time, row.after)
            assert after is not None
            gone[2] = max(gone[1], after, row.before)
    return [(fact, since, until) for fact, since, until in found]


def table(histories: Histories, tabulate: Tabulate, single: bool = True) -> Expected:
    """The table at every tick, then differences; ``single``: a key has one row, so its change is a correction."""
    rows = [each for blocks in histories.values() for each in standing(blocks)]
    return _at_every_tick(histories, rows, tabulate, single), None


def corrected(histories: Histories, tabulate: Tabulate, within: int | None = None) -> Expected:
    """What is settled of daily windows, at every tick, then differences: late rows correct their days.

    ``within``: how far behind the watermark they may come, milliseconds.
    """

    return corrections(histories, tabulate, day, {alias: Way() for alias in histories}, within)


@dataclass(frozen=True)
class Way:
    """Of an input's rows into windows."""

    image: Callable[[Fact], Fact | None] = lambda fact: fact
    """``None``: into none."""
    by: int = 0
    """Milliseconds that the image's time is later."""


def corrections(
    histories: Histories, tabulate: Tabulate, start: Low, ways: Mapping[str, Way], within: int | None,
    single: bool = True,
) -> Expected:  # fmt: skip
    """As ``corrected``, of windows that begin at ``start`` of a row's image; its table is of images."""
    rows: list[tuple[Fact, int, int]] = []
    late = 0
    for alias, blocks in histories.items():
        way = ways[alias]

        def counts(row: Said, by: int = way.by) -> bool:
            assert row.time is not None
            floor = NO_MARK if within is None or row.before == NO_MARK else start(row.before - within + by)
            return floor == NO_MARK or start(row.time + by) >= floor

        late += sum(not counts(row) for row in said(blocks) if row.time is not None)
        for fact, since, until in standing(blocks, counts):
            image = way.image(fact)
            if image is not None:
                rows.append((image, max(since, _end(start, start(image[0])) - way.by - 1), until))
    return _at_every_tick(histories, rows, tabulate, single), late


def _end(start: Low, window: int) -> int:
    """When the next window begins: none is longer than a month."""
    return next(time for time in range(window + DAY, window + 32 * DAY, DAY) if start(time) > window)


def _at_every_tick(
    histories: Histories, rows: Sequence[tuple[Fact, int, int]], tabulate: Tabulate, single: bool
) -> list[tuple[Any, ...]]:
    """Differences of the table of the rows (row, from, until) that stand."""
    marks = {block.after for blocks in histories.values() for block in blocks if block.after is not None}
    slowest = [final_mark(blocks) for blocks in histories.values()]
    reached = NO_MARK if None in slowest else min(mark for mark in slowest if mark is not None)
    known: dict[Any, list[tuple[Any, ...]]] = {}
    out: list[tuple[Any, ...]] = []
    for tick in sorted(mark for mark in marks if mark <= reached):
        now = tabulate([fact for fact, since, until in rows if since < tick <= until])
        for key in sorted(set(known) | set(now), key=sort_key):
            old, new = list(known.get(key, [])), list(now.get(key, []))
            for row in list(old):
                if row in new:
                    old.remove(row)
                    new.remove(row)
            paired = single and old and new
            out += [(CORRECT_FROM if paired else RETRACTED, *row) for row in sorted(old, key=sort_key)]
            out += [(CORRECT_TO if paired else ADDED, *row) for row in sorted(new, key=sort_key)]
        known = now
    return out


Version: TypeAlias = tuple["str | None", int, int, int]
"""(k, v, from, until)."""


def versions(blocks: History, changelog: bool) -> list[Version]:
    """All versions of a temporal table by the formulas of 5.4 and 5.2."""
    rows = [row for row in said(blocks) if row.time is not None]
    current: dict[str | None, tuple[int, int]] = {}
    taus = []
    for position, row in enumerate(rows):
        assert row.time is not None
        if row.op in (ADDED, CORRECT_TO):
            tau = max(row.time, row.before)
            current[row.k] = (row.time, tau)
        elif row.op == CORRECT_FROM:
            following = rows[position + 1].time
            assert following is not None
            tau = max(following, row.before)
        else:
            known, since = current.pop(row.k, (-FAR, -FAR))
            own = max(row.time, row.before) if row.time > known else max(row.time, row.before, row.after)
            tau = max(own, since)
        taus.append(tau)
    rank = [at if changelog else (row.time, at) for at, row in enumerate(rows)]
    found = []
    for at, row in enumerate(rows):
        if row.op in (ADDED, CORRECT_TO):
            later = [taus[j] for j, other in enumerate(rows)
                     if other.op != CORRECT_FROM and other.k == row.k and rank[j] > rank[at]]  # fmt: skip
            found.append((row.k, row.v, taus[at], max(taus[at], min(later, default=FAR))))
    return found


def latest(blocks: History) -> list[Version]:
    """For an as-of join with an input that only grows: the greatest time, of equal ones the last said."""
    rows = [(at, row) for at, row in enumerate(said(blocks)) if in_time(row, [same])]
    found = []
    for at, row in rows:
        assert row.time is not None
        later = [o.time for j, o in rows if o.k == row.k and o.time is not None and (o.time, j) > (row.time, at)]
        found.append((row.k, row.v, row.time, min(later, default=FAR)))
    return found


def enriched(histories: Histories, known: Sequence[Sequence[Version]], late_too: bool = False) -> Expected:
    """Rows of the first input that were in time and are settled, each with the version in force of every other.

    ``late_too``: late ones come out when they begin to count, with the version in force at their own time.
    """
    ledger = next(iter(histories.values()))
    marks = [final_mark(blocks) for blocks in histories.values()]
    until = NO_MARK if None in marks else min(mark for mark in marks if mark is not None)
    rows, late = [], 0
    for row in said(ledger):
        if row.time is None:
            continue
        since = max(row.time, row.before)
        if row.time < since and not late_too:
            late += 1
        elif since < until:
            found = []
            for side in known:
                valid = [v for k, v, first, end in side if k == row.k is not None and first <= row.time < end]
                assert len(valid) < 2
                found.append(valid[0] if valid else None)
            rows.append((since, row.time, row.k, row.v, *found))
    return [(ADDED, *row[1:]) for row in sorted(rows, key=sort_key)], late
