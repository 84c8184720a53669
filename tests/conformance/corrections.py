"""Random compositions whose closed windows late rows correct: ``SET odf.late = 'apply'``, also within so many days.

One grouping, distinct or ranking by windows that do not overlap, over one or two inputs that are filtered, shifted in
time and read once, some of them changelogs. Every part is said in Spark's words, in DuckDB's and in plain arithmetic,
as in ``compositions``. Spec: docs/spec/engine-semantics.md#late-rows, #conformance.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from conformance import oracles
from conformance.case import Case
from conformance.duck import Grouping
from conformance.histories import DAY, HOUR, History, grows, moves
from conformance.oracles import Expected, Fact, Low, days, month

Rows: TypeAlias = list[tuple[Any, ...]]


@dataclass(frozen=True)
class _Side:
    text: str
    image: Callable[[Fact], Fact | None]
    by: int
    """Milliseconds that its rows are shifted by."""


_KEPT: tuple[tuple[str, Callable[[Fact], bool]], ...] = (
    ("", lambda _: True),
    (" where v % 3 <> 0", lambda row: row[2] % 3 != 0),
    (" where k is not null", lambda row: row[1] is not None),
    (" where v % 5 <> 0 and k <> 'k1'", lambda row: row[2] % 5 != 0 and row[1] not in (None, "k1")),
)


def _side(rng: random.Random, alias: str) -> _Side:
    kept, holds = rng.choice(_KEPT)
    hours = rng.choice([0, 0, rng.randrange(-30, 31)])
    time = (
        f"event_time {'-' if hours < 0 else '+'} interval '{abs(hours)}' hour as event_time" if hours else "event_time"
    )
    by = hours * HOUR

    def image(row: Fact) -> Fact | None:
        return (row[0] + by, row[1], row[2]) if holds(row) else None

    return _Side(f"select {time}, k, v{{h}} from {alias}{kept}", image, by)


@dataclass(frozen=True)
class _Windows:
    spark: str
    duck: str
    start: Low


def _windows(rng: random.Random) -> _Windows:
    if rng.random() < 0.25:
        text = "time_bucket(interval '1' month, event_time)"
        return _Windows(text, text, month)
    count = rng.choice([1, 2, 7])
    text = f"time_bucket(interval '{count}' day, event_time"
    return _Windows(f"{text})", f"{text}, timestamp '1970-01-01')", days(count))


_SUMS: dict[str, Callable[[Sequence[int]], int]] = {"sum": sum, "min": min, "max": max, "count": len}
Tabulate: TypeAlias = Callable[[Sequence[Fact]], "dict[Any, Rows]"]


def _grouped(rng: random.Random, windows: _Windows) -> tuple[Grouping, Tabulate]:
    """The grouping, with ``{w}`` for the window and ``{}`` for the rows, and its arithmetic."""
    what, by_key, later = rng.choice(list(_SUMS)), rng.random() < 0.7, rng.choice([0, 1])
    least = rng.choice([None, 3])
    keys, key = ({"k": "k"}, ", k") if by_key else ({}, "")
    around = "{}" if least is None else f"select * from {{}} where v >= {least}"
    if later:
        groups = "{}" if least is None else f"({around})"
        around = f"select event_time + interval '{later}' day as event_time{key}, v{{h}} from {groups}"

    def tabulate(rows: Sequence[Fact]) -> dict[Any, Rows]:
        groups: dict[Any, list[int]] = {}
        for time, k, v in rows:
            group = (windows.start(time) + later * DAY, *((k,) if by_key else ()))
            groups.setdefault(group, []).append(v)
        made = {group: _SUMS[what](values) for group, values in groups.items()}
        return {group: [(*group, value)] for group, value in made.items() if least is None or value >= least}

    return Grouping({"event_time": "{w}", **keys}, {"v": f"{what}(v)"}, "{}", around), tabulate


def _distinct(windows: _Windows) -> tuple[str, Tabulate]:
    def tabulate(rows: Sequence[Fact]) -> dict[Any, Rows]:
        found = {(windows.start(time), k, v % 7) for time, k, v in rows}
        return {row: [row] for row in found}

    return "select distinct {w} as event_time, k, v % 7 as v{h} from {}", tabulate


def _top(windows: _Windows) -> tuple[str, Tabulate]:
    ranked = "row_number() over (partition by {w}, k{h} order by v desc, event_time) as n"

    def tabulate(rows: Sequence[Fact]) -> dict[Any, Rows]:
        groups: dict[Any, list[Fact]] = {}
        for row in rows:
            groups.setdefault((windows.start(row[0]), row[1]), []).append(row)
        found: dict[Any, Rows] = {}
        for group in groups.values():
            for row in sorted(group, key=lambda row: (-row[2], row[0]))[:2]:
                found.setdefault(row[:2], []).append(row)
        return found

    return (
        f"select event_time, k, v{{h}} from (select event_time, k, v{{h}}, {ranked} from {{}}) where n <= 2",
        tabulate,
    )


def corrected_composition(number: int) -> Case:
    """The query of a number, with its oracle."""
    rng = random.Random(f"corrected composition {number}")
    aliases = rng.choice(["a", "a", "ab"])
    changing = tuple(alias for alias in aliases if rng.random() < 0.4)
    sides = {alias: _side(rng, alias) for alias in aliases}
    windows = _windows(rng)
    kind = rng.choice(["group", "group", "group", "distinct", "top"])
    # What cannot be merged is kept whole, and only where windows close for good, or rows are taken back.
    within = rng.choice([None, 2, 9]) if kind == "group" or changing else rng.choice([2, 9])
    rows, grouping = "(" + " union all ".join(side.text for side in sides.values()) + ")", None
    if kind == "group":
        made, tabulate = _grouped(rng, windows)
        text, grouping = made.text, replace(made, keys={**made.keys, "event_time": windows.duck}, rows=rows)
    else:
        text, tabulate = _distinct(windows) if kind == "distinct" else _top(windows)
    span = "" if within is None else f" within {within} days"
    ways = {alias: oracles.Way(side.image, side.by) for alias, side in sides.items()}

    def oracle(_duck: object, _case: Case, histories: oracles.Histories) -> Expected:
        return oracles.corrections(
            histories, tabulate, windows.start, ways, None if within is None else within * DAY, single=kind != "top"
        )

    return Case(
        f"corrected-composition-{number}",
        text.replace("{w}", windows.spark).replace("{}", rows),
        {alias: _moving if alias in changing else _late for alias in aliases},
        oracle,
        text.replace("{w}", windows.duck).replace("{}", rows),
        f"set odf.late = 'apply{span}';\n",
        changelogs=changing,
        grouping=grouping,
    )


def _late(rng: random.Random) -> History:
    return grows(rng, blocks=10, days=rng.choice([12, 30]), late=0.3)


def _moving(rng: random.Random) -> History:
    return moves(rng, blocks=10)
