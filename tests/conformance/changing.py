"""Shapes whose inputs change or come late, and those that are no windows: versions, corrections, logs, tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import xor
from typing import Any

from conformance import oracles
from conformance.case import DAYS, Case, Oracle, final_oracle
from conformance.duck import Duck, Grouping
from conformance.histories import DAY, Block, Histories, Row, Said, careless, changes, grows, moves
from conformance.oracles import Expected, Fact, day


def _patient(duck: Duck, case: Case, histories: Histories) -> Expected:
    return oracles.final(duck, case.ducks, histories, case.lows, 5 * DAY)


def _enriched(duck: Duck, case: Case, histories: Histories) -> Expected:
    sides = [oracles.versions(histories[alias], alias in case.changelogs) for alias in case.temporal]
    return oracles.enriched(histories, sides)


def _only_met(expected: Expected) -> Expected:
    rows, late = expected
    return [row for row in rows if row[-1] is not None], late


def _latest(duck: Duck, case: Case, histories: Histories) -> Expected:
    rows, late = oracles.enriched(histories, [oracles.latest(histories["b"])])
    dropped = [row for row in oracles.said(histories["b"]) if row.time is not None and row.time < row.before]
    return rows, (late or 0) + len(dropped)


def _enriched_late(duck: Duck, case: Case, histories: Histories) -> Expected:
    sides = [oracles.versions(histories[alias], alias in case.changelogs) for alias in case.temporal]
    return oracles.enriched(histories, sides, late_too=True)


def _corrected(within: int | None = None) -> Oracle:
    def tabulate(rows: Sequence[Fact]) -> dict[Any, list[tuple[Any, ...]]]:
        groups: dict[Any, list[int]] = {}
        for time, key, value in rows:
            groups.setdefault((day(time), key), []).append(value)
        return {key: [(*key, sum(values), len(values))] for key, values in groups.items()}

    return lambda duck, case, histories: oracles.corrected(histories, tabulate, within)


_VALID = "{0}.event_time >= {1}.valid_from and {0}.event_time < {1}.valid_to"
_ENRICH = "select a.event_time, a.k, a.v, b.v as w from a left join b on a.k = b.k and " + _VALID.format("a", "b")
_DROP, _APPLY = "set odf.late = 'drop';\n", "set odf.late = 'apply';\n"
_CORRECTED = Grouping(
    {"event_time": "time_bucket(interval '1' day, event_time)", "k": "k"}, {"s": "sum(v)", "c": "count(*)"}
)
_WITHIN = "set odf.late = 'apply within 3 days';\n"
_UNSURE = {"a": grows, "b": lambda rng: grows(rng, late=0.25)}
CHANGING = (
    Case("patient-days", DAYS, {"a": grows}, _patient, head="set odf.lateness = '5 days';\n", lows={"a": (day,)}),
    Case("versions", _ENRICH, {"a": grows, "b": changes}, _enriched, "", _DROP, changelogs=("b",), temporal=("b",)),
    Case(
        "versions-in-where",
        "select a.event_time, a.k, a.v, b.v as w from a, b where a.k = b.k and " + _VALID.format("a", "b"),
        {"a": grows, "b": changes},
        lambda duck, case, histories: _only_met(_enriched(duck, case, histories)),
        head=_DROP,
        changelogs=("b",),
        temporal=("b",),
    ),
    Case(
        "versions-as-of",
        "select a.event_time, a.k, a.v, b.v as w from a left asof join b "
        "match_condition (a.event_time >= b.valid_from) on a.k = b.k and a.event_time < b.valid_to",
        {"a": grows, "b": changes},
        _enriched,
        _ENRICH,
        _DROP,
        changelogs=("b",),
        temporal=("b",),
    ),
    Case(
        "late-facts",
        _ENRICH.replace(" as w ", " as w{h} "),
        {"a": lambda rng: grows(rng, late=0.25), "b": changes},
        _enriched_late,
        head=_APPLY,
        changelogs=("b",),
        temporal=("b",),
    ),
    Case("corrected-days", _CORRECTED.text, {"a": grows}, _corrected(), head=_APPLY, grouping=_CORRECTED),
    Case(
        "corrected-for-three-days",
        _CORRECTED.text,
        {"a": grows},
        _corrected(3 * DAY),
        head=_WITHIN,
        grouping=_CORRECTED,
    ),
    Case("corrected-days-of-changes", _CORRECTED.text, {"a": moves}, _corrected(), head=_APPLY, changelogs=("a",)),
    Case("versions-that-only-grow", _ENRICH, _UNSURE, _enriched, "", _DROP, temporal=("b",)),
    Case(
        "two-dimensions",
        "select a.event_time, a.k, a.v, b.v as w, c.v as x from a "
        f"left join b on a.k = b.k and {_VALID.format('a', 'b')} "
        f"left join c on a.k = c.k and {_VALID.format('a', 'c')}",
        {"a": grows, "b": changes, "c": changes},
        _enriched,
        head=_DROP,
        changelogs=("b", "c"),
        temporal=("b", "c"),
    ),
    Case(
        "latest-as-of",
        "select a.event_time, a.k, a.v, b.v as w from a left asof join b "
        "match_condition (a.event_time >= b.event_time) on a.k = b.k",
        _UNSURE,
        _latest,
        "select a.event_time, a.k, a.v, b.v as w from (select *, row_number() over () as n from a) a left join b "
        "on a.k = b.k and a.event_time >= b.event_time "
        "qualify row_number() over (partition by a.n order by b.event_time desc) = 1",
        _DROP,
    ),
    Case(
        "days-of-changes",
        DAYS,
        {"a": moves},
        final_oracle,
        head=_DROP,
        changelogs=("a",),
        lows={"a": (day,)},
    ),
    Case(
        "days-of-careless-changes",
        DAYS,
        {"a": careless},
        final_oracle,
        head="set odf.late.a = 'drop';\n",
        changelogs=("a",),
        lows={"a": (day,)},
    ),
)


def _log(**images: oracles.Image) -> Oracle:
    return lambda duck, case, histories: oracles.log(histories, images)


def _whole(row: Said) -> tuple[Any, ...]:
    return row.time, row.k, row.v


_MERGED = "select event_time, k, v{h} from a where v % 7 <> 0 union all select event_time, k, v % 4{h} from b"
_of_a, _of_b = (
    lambda row: _whole(row) if row.v % 7 else None,
    lambda row: (row.time, row.k, row.v % 4),
)
LOG = (
    Case(
        "map",
        "select event_time, upper(k) as k, v * 2 as v{h} from a",
        {"a": grows},
        _log(a=lambda row: (row.time, row.k and row.k.upper(), row.v * 2)),
    ),
    Case(
        "filter",
        "select event_time, v{h} from a where v % 3 <> 0 and k is not null",
        {"a": grows},
        _log(a=lambda row: (row.time, row.v) if row.v % 3 and row.k is not None else None),
    ),
    Case(
        "map-of-changes",
        "select event_time, k, v % 3 as w{h} from a where v % 5 <> 0",
        {"a": moves},
        _log(a=lambda row: (row.time, row.k, row.v % 3) if row.v % 5 else None),
        changelogs=("a",),
    ),
    Case("union-log", _MERGED, {"a": grows, "b": grows}, _log(a=_of_a, b=_of_b)),
    Case("union-of-changes", _MERGED, {"a": moves, "b": moves}, _log(a=_of_a, b=_of_b), changelogs=("a", "b")),
)


def _grouped(
    make: Callable[[list[Fact]], tuple[Any, ...]], key: Callable[[Fact], tuple[Any, ...]] | None = None
) -> Any:
    def tabulate(rows: Sequence[Fact]) -> dict[Any, list[tuple[Any, ...]]]:
        groups: dict[Any, list[Fact]] = {}
        for row in rows:
            groups.setdefault((row[1],) if key is None else key(row), []).append(row)
        return {key: [(max(row[0] for row in group), *make(group))] for key, group in groups.items()}

    return tabulate


def _best(rows: Sequence[Fact]) -> dict[Any, list[tuple[Any, ...]]]:
    groups: dict[Any, list[Fact]] = {}
    for row in rows:
        groups.setdefault((row[1],), []).append(row)
    return {key: sorted(group, key=lambda row: (-row[2], row[0]))[:2] for key, group in groups.items()}


def _ranks(rows: Sequence[Fact]) -> dict[Any, list[tuple[Any, ...]]]:
    groups: dict[Any, list[Fact]] = {}
    for row in rows:
        groups.setdefault((row[1],), []).append(row)
    found = {}
    for key, group in groups.items():
        places = {w: place + 1 for place, w in enumerate(sorted({row[2] % 5 for row in group}))}
        shown = [(row[0], row[1], row[2] % 5, places[row[2] % 5]) for row in group]
        found[key] = [row for row in shown if row[-1] < 3]
    return found


def _last_of_two(duck: Duck, case: Case, histories: Histories) -> Expected:
    def tabulate(rows: Sequence[Fact]) -> dict[Any, list[tuple[Any, ...]]]:
        found: dict[Any, Fact] = {}
        for row in rows:
            best = found.get((row[1],))
            if best is None or (row[0], row[2]) > (best[0], best[2]):
                found[(row[1],)] = row
        return {key: [row] for key, row in found.items()}

    def image(row: Row, alias: str) -> Row | None:
        if alias == "b":
            return row._replace(v=row.v + 1)
        return row if row.v % 3 else None

    images = {
        alias: tuple(
            Block(tuple(made for row in block.rows if (made := image(row, alias))), block.before, block.after)
            for block in blocks
        )
        for alias, blocks in histories.items()
    }
    return oracles.table(images, tabulate, single=False)


def _table(tabulate: Any, single: bool = True) -> Oracle:
    return lambda duck, case, histories: oracles.table(histories, tabulate, single)


def _values(group: Sequence[Fact]) -> list[int]:
    return [row[2] for row in group]


_sums = _grouped(lambda group: (group[0][1], sum(_values(group)), len(group)))
_BOTH = "(select event_time, k, v{h} from a union all select event_time, k, v{h} from b)"
_TOTALS = {"event_time": "max(event_time)", "s": "sum(v)", "c": "count(*)"}
_OF_ONE, _OF_TWO = (Grouping({"k": "k"}, _TOTALS, rows) for rows in ("a", _BOTH))
_TOP = (
    "select event_time, k, v{h}{r} from (select event_time, k, v{h}{r}, row_number() over "
    "(partition by k{h} order by v desc, event_time{r}) as n from a) where n <= 2"
)


def _extremes(group: Sequence[Fact]) -> tuple[Any, ...]:
    values = _values(group)
    return group[0][1], min(values), max(values), any(v % 11 == 0 for v in values), reduce(xor, values)


def _aggregate(what: str, keys: str = "k") -> str:
    return f"select {keys}, max(event_time) as event_time, {what}{{h}} from a group by {keys}{{h}}"


_KINDS = _aggregate("count(distinct v % 3) as s, count(*) as c")
_kinds = _grouped(lambda group: (group[0][1], len({v % 3 for v in _values(group)}), len(group)))
TABLE = (
    Case("group-grows", _OF_ONE.text, {"a": grows}, _table(_sums), grouping=_OF_ONE),
    Case(
        "group-extremes",
        _aggregate("min(v) as low, max(v) as high, bool_or(v % 11 = 0) as any, bit_xor(v) as x"),
        {"a": grows},
        _table(_grouped(_extremes)),
    ),
    Case("group-of-two", _OF_TWO.text, {"a": grows, "b": grows}, _table(_sums), grouping=_OF_TWO),
    Case("group-changes", _KINDS, {"a": moves}, _table(_kinds), changelogs=("a",)),
    Case("group-careless-changes", _KINDS, {"a": careless}, _table(_kinds), changelogs=("a",)),
    Case("one-of-two-changes", _OF_TWO.text, {"a": grows, "b": moves}, _table(_sums), changelogs=("b",)),
    Case("top-of-a-key-that-grows", _TOP, {"a": grows}, _table(_best, single=False)),
    Case(
        "last-of-a-key",
        "select event_time, k, v{h}{r} from (select event_time, k, v{h}{r}, row_number() over (partition by k{h} "
        "order by event_time desc, v desc{r}) as n from (select event_time, k, v{h}{r} from a where v % 3 <> 0 "
        "union all select event_time, k, v + 1{h}{r} from b)) where n = 1",
        {"a": grows, "b": grows},
        _last_of_two,
    ),
    Case(
        "ranks-of-a-key",
        "select event_time, k, v % 5 as w, n{h}{r} from (select event_time, k, v{h}{r}, dense_rank() over "
        "(partition by k{h} order by v % 5) as n from a) where 3 > n",
        {"a": grows},
        _table(_ranks, single=False),
    ),
    Case("top-of-a-key", _TOP, {"a": moves}, _table(_best, single=False), changelogs=("a",)),
    Case(
        "group-by-expression",
        "select v % 4 as r, max(event_time) as event_time, count(*) as c{h} from a group by v % 4{h}",
        {"a": moves},
        _table(_grouped(lambda group: (group[0][2] % 4, len(group)), lambda row: (row[2] % 4,))),
        changelogs=("a",),
    ),
)
