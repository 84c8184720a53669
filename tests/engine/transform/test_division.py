"""The law for programs over the edges of types and of time: how a log was divided shows in nothing.

Each program runs on Spark over one log, at once and piece by piece; all each night, and else some, also cut at random,
and in one block. Rows, order, late rows, state and the rule of a failure are the same. Programs are those that broke
the law once, and one of each kind beside them.
"""

from __future__ import annotations

import re
from decimal import Decimal

import pyarrow as pa
import pytest

from conformance.division import Came, Divider, Log, Program
from engines.spark.execution import inputs
from worlds.depth import stride

pytestmark = pytest.mark.engine
MOST, WIDE = 2**63 - 1, 10**38 - 1
NAN = float("nan")
ZONES = {"k": pa.string(), "v": pa.int64(), "z": pa.string()}
EAST = Log(ZONES, [
    ([("2024-03-01T05:00", "a", 1, "+18:00"), ("2024-03-01T07:00", "b", 2, "-18:00")], "2024-03-01T06:30"),
    ([("2024-03-01T06:45", "a", 4, "+18:00"), ("2024-03-02T07:30", "b", 8, "+14:00")], "2024-03-02T07:15"),
    ([("2024-03-02T07:20", "a", 16, "-18:00"), ("2024-03-03T05:59", "a", 32, "+18:00")], "2024-03-03T05:30"),
    ([("2024-03-03T05:45", "b", 64, "-18:00")], "2024-03-12"),
])  # fmt: skip
"""Zones as far from UTC as there are, beside the midnights of their days."""
NUMBERS = {"k": pa.string(), "v": pa.int64(), "n": pa.decimal128(38, 0), "f": pa.float64()}


def _numbers(*blocks: tuple[str, ...]) -> Log:
    """Signs of the greatest numbers of each type, by block and then by key."""
    pieces = []
    for day, keys in enumerate(blocks, 1):
        rows = [(f"2024-03-{day:02d}T01:00", key, sign * MOST, Decimal(sign * WIDE), sign * 1e308)
                for key, signs in zip("ab", keys, strict=False)
                for sign in (1 if each == "+" else -1 for each in signs)]  # fmt: skip
        pieces.append((rows, f"2024-03-{day:02d}T02:00"))
    return Log(NUMBERS, [*pieces, ((), "2024-05-01")])


WITHIN = _numbers(("++--", "-"), ("+-", "++"), ("--++", "-"))
"""Sums that leave their types on the way, and a key whose news alone do, but that are in them at each tick."""
BEYOND = _numbers(("++", ""), ("--", ""), ("+", ""))
FLOATS = {"f": pa.float64(), "s": pa.struct([("x", pa.float64())]), "l": pa.list_(pa.float64()), "v": pa.int64()}
ZEROS = Log(FLOATS, [
    ([(f"2024-03-{day:02d}", each, {"x": each}, [each], day)], f"2024-03-{day:02d}T12:00")
    for day, each in enumerate([0.0, -0.0, NAN, 1.5, NAN, -0.0, 0.0], 1)
])  # fmt: skip
CHANGING = Log(FLOATS, [
    ([*((*row, 0) for row in rows)], mark) for rows, mark in ZEROS.pieces
], changes=True)  # fmt: skip
ASKING = Log(FLOATS, [
    ([(f"2024-03-{day:02d}T06:00", each, {"x": each}, [each], -day) for each in (0.0, -0.0, NAN)],
     f"2024-03-{day:02d}T13:00") for day in range(1, 8)
])  # fmt: skip
FAR = Log({"k": pa.string(), "v": pa.int64()}, [
    ([(time, "a", at), (time, "b", -at)], time)
    for at, time in enumerate([-(2**63 // 1000), "0001-01-01", "1582-10-15", "1969-12-31T23:59:59.999", "2024-02-29",
                               "9999-12-31T23:59:59.999", 10**15, 9 * 10**15, 9200 * 10**12])
])  # fmt: skip
"""Times from 292,000 years before us to 289,000 after us, of which the first and the last two have no place."""

DAY = "select cast({} as date) as event_time, count(*) as c, sum(v) as s from a group by 1"
HOUR = "select {} as event_time, k, v, rank() over (partition by {} order by v) as r from a"
TABLE = "select max(event_time) as event_time, k, {} as x from a group by k"
WEEKS = "SET odf.late = 'apply'; select date_trunc('week', event_time) as event_time, k, {} as x from a group by 1, 2"
VERSIONS = ("select a.event_time, a.v, b.v as w from a join b on a.{0} = b.{0} "
            "and a.event_time >= b.valid_from and a.event_time < b.valid_to")  # fmt: skip
GROUPS = "select {} as event_time, k, count(*) as c from a group by {}, k"
VIENNA = "to_utc_timestamp(date_trunc('day', from_utc_timestamp(event_time, 'Europe/Vienna')), 'Europe/Vienna')"


def _zones():
    for name, zone in (("from", "'+18:00'"), ("from", "z"), ("to", "'+18:00'"), ("to", "z")):
        made = f"{name}_utc_timestamp(event_time, {zone})"
        yield Program(f"day of {made}", DAY.format(made), {"a": EAST})
    made = "from_utc_timestamp(event_time, '+18:00')"
    yield Program("instants", HOUR.format(made, made), {"a": EAST})
    near = "select a.event_time, a.v, b.v as w from a join b on cast({} as date) = cast({} as date)"
    sides = [f"from_utc_timestamp({side}.event_time, '{zone}')" for side, zone in (("a", "+18:00"), ("b", "-18:00"))]
    yield Program("days of two zones", near.format(*sides), {"a": EAST, "b": EAST})


def _sums():
    """What is computed in the same way is a column of the same query: rows show which of them differs."""
    within = "sum(v) as s, try_sum(v) as t, sum(n) as n, avg(v)"
    yield Program("table of sums", TABLE.format(within), {"a": WITHIN})
    yield Program("having", f"{TABLE.format('sum(v)')} having count(*) > 1", {"a": WITHIN})
    yield Program("weeks", WEEKS.format("sum(v) as s, try_sum(v) as t, sum(v) - sum(v)"), {"a": WITHIN})
    yield Program("beyond: sum(v)", TABLE.format("sum(v)"), {"a": BEYOND})
    over = "select event_time, k, sum(v) over (partition by k order by event_time) as x from a"
    yield Program("running sum", over, {"a": WITHIN})
    yield Program("beyond: sum(n)", TABLE.format("sum(n)"), {"a": BEYOND})
    week = "window(event_time, '7 days')"
    windows = f"select {week}.end as event_time, k, sum(v) as x from a group by {week}, k"
    yield Program("windows", f"SET odf.late = 'apply within 2 days'; {windows}", {"a": WITHIN})
    yield Program("table of some", TABLE.format("sum(v) filter (where v <> 0)"), {"a": WITHIN})
    yield Program("beyond: null", TABLE.format("try_sum(v) as t, try_avg(n)"), {"a": BEYOND})


def _keys():
    for key in ("f", "s"):
        yield Program(f"versions by {key}", VERSIONS.format(key), {"a": ASKING, "b": ZEROS}, {"b": (key,)})
    yield Program("changing versions", VERSIONS.format("f"), {"a": ASKING, "b": CHANGING}, {"b": ("f",)})
    joined = "select a.event_time, a.f, a.v, b.v as w from a join b on a.f = b.f"
    yield Program("tables joined", joined, {"a": CHANGING, "b": CHANGING})


def _far():
    for made in ("date_trunc('year', event_time)", "event_time + interval '1' month", VIENNA):
        yield Program(made, GROUPS.format(made, made), {"a": FAR})
    yield Program("week, applied", WEEKS.format("count(*)"), {"a": FAR})
    within = WEEKS.format("count(*)").replace("apply", "apply within 90 days", 1)
    yield Program("week, applied within", within, {"a": FAR})
    yield Program("ticks", f"SET odf.tick = '1 year'; {TABLE.format('sum(v)')}", {"a": FAR})


def _calendars():
    """Keys that are computed from a time, and hold no time to the engine: tables, in which no row is late."""
    for made in ("date_format(event_time, 'yyyy-MM')", "last_day(event_time)", "unix_seconds(event_time)"):
        text = f"select max(event_time) as event_time, {made} as k, count(*) as c from a group by {made}"
        yield Program(f"key {made}", text, {"a": EAST})


PROGRAMS = {"zones": _zones, "sums": _sums, "keys": _keys, "far times": _far, "calendars": _calendars}


@pytest.fixture
def divider(spark_root, analyst, tmp_path):
    return Divider(spark_root.newSession, tmp_path, analyst)


@pytest.mark.parametrize("kind", PROGRAMS)
def test_how_a_log_was_divided_shows_in_nothing(kind, divider, monkeypatch):
    """Attack T-QUERY-03: a log at the edges of zones, sums, keys and times, for which honest nodes sign different rows
    because they pulled it in other steps.

    Defence: programs over such logs are run at once, piece by piece and in one block, and compared.
    """
    rows = 0
    for number, program in enumerate(PROGRAMS[kind]()):
        in_all_ways = number % stride() == 0
        whole, *others = divider.divide(program, in_all_ways)
        for other in others:
            assert _law(other) == _law(whole), program.name
        if whole[1] == "failed":
            assert not program.name.startswith(("table", "weeks", "beyond: null")), whole
            continue
        rows += len(whole[0])
        if not in_all_ways:
            continue
        monkeypatch.setattr(inputs, "MANY", 0)
        together, apart = divider.redivide(program)
        monkeypatch.undo()
        assert together[:3] == apart[:3], program.name
    assert rows > 12


def at_once(divider: Divider, program: Program) -> Came:
    return divider.run(program, program.logs, lambda count: iter([count]))


def _law(came: Came) -> object:
    """What may not differ. Of a failure that is its rule: its rows are those before it, and it names one value."""
    rows, late, mark, state = came
    return re.findall(r"\[([a-z-]+)\]", str(mark)) if late == "failed" else (rows, late, mark, state)


def test_sums_are_those_of_whole_numbers_of_any_size(divider):
    expected = {"sum(v)": [0, -MOST, 0, MOST, 0], "try_sum(n)": [0, -WIDE, 0, WIDE, 0]}
    for made, values in expected.items():
        rows, *_ = at_once(divider, Program(made, TABLE.format(made), {"a": WITHIN}))
        shown = [re.sub(r".*, (\S+|None)\)$", r"\1", row) for row in rows]
        assert [str(each) in "".join(shown) for each in values] == [True] * len(values), rows


def test_a_sum_that_does_not_fit_is_null_until_it_fits_again(divider):
    rows, *_ = at_once(divider, Program("try", TABLE.format("try_sum(v)"), {"a": BEYOND}))
    assert [row.rsplit(", ", 1)[1] for row in rows] == ["None)", "None)", "0)", "0)", f"{MOST})"]


def test_a_sum_that_does_not_fit_is_told_in_the_words_of_the_query(divider):
    _, failed, told, _ = at_once(divider, Program("sum", TABLE.format("sum(v)"), {"a": BEYOND}))
    assert failed == "failed"
    assert "a sum does not fit its type, BIGINT [arithmetic-overflow]" in told
    assert "try_sum(x)" in told
    assert "__odf" not in told


def test_one_version_is_in_force_whichever_zero_its_key_is(divider):
    rows, *_ = at_once(divider, Program("zeros", VERSIONS.format("f"), {"a": ASKING, "b": ZEROS}, {"b": ("f",)}))
    met = [row for row in rows if "-1," in row or "-7," in row]
    assert len(rows) == 2 + 2 + 5 * 3
    assert met
