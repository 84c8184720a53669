"""Random compositions of one to three operators, each said in Spark's words, in DuckDB's, and in plain arithmetic.

Every relation has the columns event_time, k and v. ``lows`` of an operator are those of what is below it, with its own
least output time after them: the oracle's algebra, written down anew. Spec: docs/spec/engine-semantics.md#influence,
#conformance.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from conformance.case import Case, final_oracle
from conformance.cases import SESSIONS
from conformance.duck import Running
from conformance.histories import DAY, HOUR, History, grows
from conformance.oracles import Low, days, month, same
from engines.spark.catalyst.running_windows import WindowPart


@dataclass(frozen=True)
class Relation:
    spark: str
    duck: str
    lows: tuple[tuple[str, Low], ...]
    """(input, least output time) of each path."""

    def after(self, low: Low) -> tuple[tuple[str, Low], ...]:
        return tuple((alias, lambda time, f=f: low(f(time))) for alias, f in self.lows)

    def within(self, text: str, low: Low | None = None) -> Relation:
        """The same words around both; ``{}`` is this relation, ``{since}`` where DuckDB has to be told the epoch."""
        return Relation(
            text.replace("{since}", "").replace("{}", f"({self.spark})"),
            text.replace("{since}", ", timestamp '1970-01-01'").replace("{}", f"({self.duck})"),
            self.lows if low is None else self.after(low),
        )


def _base(rng: random.Random) -> Relation:
    alias = rng.choice("ab")
    kept = rng.choice(["", " where v % 3 <> 0", " where k is not null", " where v % 5 <> 0 and k <> 'k1'"])
    text = f"select event_time, k, v from {alias}{kept}"
    return Relation(text, text, ((alias, same),))


def _tumble(rng: random.Random, below: Relation) -> Relation:
    count, what = rng.choice([1, 2, 7]), rng.choice(["sum", "min", "max", "count"])
    bucket = f"time_bucket(interval '{count}' day, event_time{{since}})"
    return below.within(f"select {bucket} as event_time, k, {what}(v) as v from {{}} group by 1, 2", days(count))


def _month(rng: random.Random, below: Relation) -> Relation:
    text = "select time_bucket(interval '1' month, event_time) as event_time, k, max(v) as v from {} group by 1, 2"
    return below.within(text, month)


def _hop(rng: random.Random, below: Relation) -> Relation:
    size, slide = rng.choice([(2, 1), (3, 1), (4, 2), (6, 2)])
    end = rng.random() < 0.5
    window = f"window(event_time, '{size} days', '{slide} days')"
    spark = f"select {window}.{'end' if end else 'start'} as event_time, k, sum(v) as v from ({below.spark}) "
    first = f"time_bucket(interval '{slide} days', event_time, timestamp '1970-01-01')"
    starts = f"generate_series({first} - interval '{size - slide} days', {first}, interval '{slide} days')"
    shown = f"w + interval '{size} days'" if end else "w"
    duck = f"select {shown} as event_time, k, sum(v) as v from (select *, unnest({starts}) as w from ({below.duck})) "
    lead = slide if end else slide - size
    lows = below.after(lambda time: days(slide)(time) + lead * DAY)
    return Relation(f"{spark}group by {window}, k", f"{duck}group by w, k", lows)


def _session(rng: random.Random, below: Relation) -> Relation:
    """Of rows as they came, of one input or several, some moved in time: sessions of windows are not the engine's."""
    rows, gap = _base(rng), f"{rng.choice([5, 12, 30])} hours"
    for _ in range(rng.choice([0, 0, 1, 1, 2])):
        other = _base(rng) if rng.random() < 0.5 else _shift(rng, _base(rng))
        text = "select event_time, k, v from ({}) union all {}"
        rows = Relation(
            text.format(rows.spark, other.spark), text.format(rows.duck, other.duck), (*rows.lows, *other.lows)
        )
    window, key = f"session_window(event_time, '{gap}')", rng.choice([", k", ", k", ""])
    shown = key or ", cast(null as string) as k"
    spark = f"select {window}.end as event_time{shown}, sum(v) as v from ({rows.spark}) group by {window}{key}"
    duck = SESSIONS.format(key=key, gap=gap, rows=f"({rows.duck})")
    return Relation(spark, f"select e as event_time{shown}, s as v from ({duck})", rows.lows)


def _union(rng: random.Random, below: Relation) -> Relation:
    other = _OPERATORS[rng.randrange(3)](rng, _base(rng)) if rng.random() < 0.5 else _base(rng)
    negated = other.within("select event_time, k, -v as v from {}")
    text = "select event_time, k, v from ({}) union all {}"
    spark, duck = (text.format(one, two) for one, two in ((below.spark, negated.spark), (below.duck, negated.duck)))
    return Relation(spark, duck, (*below.lows, *negated.lows))


def _bounds(rng: random.Random) -> tuple[str, int]:
    back, ahead = rng.randrange(31), rng.randrange(41)
    return (
        f"on p.k = q.k and q.event_time >= p.event_time - interval '{back}' hour "
        f"and q.event_time <= p.event_time + interval '{ahead}' hour",
        ahead,
    )


def _join(rng: random.Random, below: Relation) -> Relation:
    side = _base(rng)
    on, ahead = _bounds(rng)
    kind = rng.choice(["join", "left join", "left semi join", "left anti join"])
    shown = "p.v + coalesce(q.v, 1)" if kind in ("join", "left join") else "p.v"
    text = f"select p.event_time, p.k, {shown} as v from ({{}}) p {{}} ({{}}) q {on}"
    lows = (*below.lows, *side.after(lambda time: time - ahead * HOUR))
    ducks = kind.removeprefix("left ") if kind.endswith(("semi join", "anti join")) else kind
    return Relation(text.format(below.spark, kind, side.spark), text.format(below.duck, ducks, side.duck), lows)


def _top(rng: random.Random, below: Relation) -> Relation:
    order = "order by v desc nulls last, k nulls first"
    daily = "select time_bucket(interval '1' day, event_time) as event_time, k, v from {}"
    ranked = f"row_number() over (partition by event_time {order}) as n from ({daily})"
    return below.within(f"select event_time, k, v from (select event_time, k, v, {ranked}) where n <= 2", days(1))


def _distinct(rng: random.Random, below: Relation) -> Relation:
    return below.within("select distinct event_time, k, v % 7 as v from {}")


def _shift(rng: random.Random, below: Relation) -> Relation:
    by = rng.randrange(1, 31) * rng.choice([-1, 1])
    sign = "-" if by < 0 else "+"
    text = f"select event_time {sign} interval '{abs(by)}' hour as event_time, k, v from {{}}"
    return below.within(text, lambda time: time + by * HOUR)


def _count(rng: random.Random, below: Relation) -> Relation:
    return below.within("select event_time, k, count(*) as v from {} group by event_time, k")


def _running(rng: random.Random, below: Relation) -> Relation:
    back, ahead = rng.randrange(1, 50), rng.choice([0, 0, 20])
    frame = f"range between interval '{back}' hour preceding and interval '{ahead}' hour following"
    text = f"select event_time, k, sum(v) over (partition by k order by event_time {frame}) as v from {{}}"
    return below.within(text, lambda time: time - ahead * HOUR)


_OPERATORS: tuple[Callable[[random.Random, Relation], Relation], ...] = (
    _tumble, _month, _shift, _hop, _session, _union, _join, _top, _distinct, _count, _running,
)  # fmt: skip


def _over_history(rng: random.Random, below: Relation) -> tuple[Relation, Running]:
    """Over all rows of a key so far, or its last few, and how DuckDB goes through them in steps.

    By RANGE rows of one time see each other. By ROWS the order has to tell rows apart: by time, v and k.
    """
    keys = rng.choice([["k"], []])
    order = [("event_time", "asc nulls first")]
    functions = {"sum": ("v", "sum"), "min": ("v", "min"), "max": ("v", "max"), "count": ("if(v is null, 0, 1)", "sum")}
    made = rng.sample(sorted(functions), 2)
    if by_range := rng.random() < 0.4:
        frames = [("range unbounded preceding", (None, 0))] * 2
    else:
        order += [("v", "desc nulls last"), *([] if keys else [("k", "asc nulls first")])]
        reaches = [rng.choice([(None, 0), (None, 1), (None, 4), (1, 0), (3, 0), (3, 2), (8, 0)]) for _ in made]
        frames = [
            (f"rows between {count or 'unbounded'} preceding and {f'{until} preceding' if until else 'current row'}",
             (count, until))
            for count, until in reaches
        ]  # fmt: skip
    by = f"{'partition by k ' if keys else ''}order by {', '.join(' '.join(each) for each in order)}"
    framed = list(zip(made, frames, strict=True))
    values = [f"{name}(v) over ({by} {frame}) as v{at}" for at, (name, (frame, _)) in enumerate(framed)]
    kept = rng.choice(["", " where coalesce(v0, 0) % 3 <> 1"])
    text = f"select event_time, k, v0 - v1 as v from (select event_time, k, {', '.join(values)} from {{}}){kept}"
    given = [*(f"{name} as __odf_key{at}" for at, name in enumerate(keys)),
             *(f"{name} as __odf_order{at}" for at, (name, _) in enumerate(order)),
             *(f"{functions[name][0]} as __odf_part{at}" for at, name in enumerate(made)),
             "event_time as __odf_column0", "k as __odf_column1"]  # fmt: skip
    above = "select __odf_column0 as event_time, __odf_column1 as k, __odf_value0 - __odf_value1 as v from these"
    parts = [
        WindowPart(functions[name][1], "bigint", by_range, *reach, counts=name == "count")
        for name, (_, reach) in framed
    ]
    steps = Running(
        f"select {', '.join(given)} from ({below.duck})",
        above + kept.replace("v0", "__odf_value0"),
        tuple(parts),
        tuple(direction for _, direction in order),
    )
    return below.within(text), steps


OVER_HISTORY = 4
"""One in so many compositions looks at all history above the rest."""


def composition(number: int) -> Case:
    """The query of a number, and its oracle. Not every one is a transform: judging that is the engine's."""
    rng = random.Random(f"composition {number}")
    made, running = _base(rng), None
    for _ in range(rng.choice([1, 2, 2, 3])):
        made = rng.choice(_OPERATORS)(rng, made)
    if number % OVER_HISTORY == 1:
        made, running = _over_history(rng, made)
    lows: dict[str, list[Low]] = {}
    for alias, low in made.lows:
        lows.setdefault(alias, []).append(low)
    inputs = dict.fromkeys(sorted(lows), _short)
    return Case(f"composition-{number}", made.spark, inputs, final_oracle, made.duck, lows=lows, running=running)


def _short(rng: random.Random) -> History:
    return grows(rng, blocks=10, days=rng.choice([12, 30, 70]))
