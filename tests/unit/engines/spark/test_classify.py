"""Which queries are taken, in which class, and by which bounds of their times."""

from __future__ import annotations

import datetime as dt
import gzip
import itertools
import json
import math
import struct
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException

from chain.errors import Invalid
from chain.model.source import SqlQueryStep, TransformSql
from engines.contract import Diagnostic, InvalidQuery, Severity, Vocab
from engines.spark.analysis.classify import classify
from engines.spark.analysis.influence import SessionWindow, VersionedInput
from engines.spark.analysis.monotone import (
    DAY,
    EARLIEST,
    LATEST,
    SECOND,
    AddMonths,
    Floor,
    FloorMonths,
    LocalFloor,
    Shift,
    Zone,
    apply,
    enclose_months,
    least,
)
from engines.spark.analysis.relation import InputReadings
from engines.spark.analysis.tree import MAX_DEPTH, build, parse_plan
from engines.spark.rows.changelog import total_order
from engines.spark.sql.diagnostics import answer_faults, refusal
from worlds.depth import share

# What is concluded from recorded plans; the plans and the expectations are in tests/golden/plans.

PLANS = Path(__file__).parents[3] / "golden" / "plans"
CASES = yaml.load((PLANS / "queries.yaml").read_text(), yaml.CSafeLoader)
TIMES = {"a": "event_time", "b": "event_time"}
UNITS = (("d", DAY), ("h", 3600 * SECOND), ("min", 60 * SECOND), ("ms", 1000), ("us", 1))


def span(micros):
    return next(f"{micros // size}{name}" for name, size in UNITS if micros % size == 0)


def written(function):
    words = []
    for step in function:
        match step:
            case Floor(size, origin):
                words.append(f"floor({span(size)}{f' from {span(origin)}' if origin else ''})")
            case FloorMonths(months):
                words.append(f"month({months})")
            case Shift(by):
                words.append(f"shift({span(by)})")
            case AddMonths(months):
                words.append(f"months({months:+d})")
    return " ".join(words)


def influence(path):
    """``input: low .. high`` without the cut to milliseconds that every path ends with."""
    low, high = (written(function).removesuffix("floor(1ms)").strip() or "t" for function in (path.low, path.high))
    words = f"{path.input}: {low}" if low == high else f"{path.input}: {low} .. {high}"
    match path.life:
        case SessionWindow(gap, (member,)):
            return f"{words} of sessions({span(gap)}: {','.join(member.keys)})"
        case SessionWindow(gap, members):
            of = "; ".join(f"{each.input}{span(each.shift)} {','.join(each.keys)}" for each in members)
            return f"{words} of sessions({span(gap)}: {of})"
        case VersionedInput(keys, clamped):
            return f"{words} of versions({','.join(keys)}{'' if clamped else ', by time'})"
    return words


def readings(case):
    """Of inputs of which the case says nothing, nothing is known."""
    changes = {alias: word == "changes" for word in ("changes", "grows") for alias in case.get(word, ())}
    operations, offsets = dict.fromkeys(TIMES, "op"), dict.fromkeys(TIMES, "offset")
    return InputReadings(operations, frozenset(case.get("logs", ())), changes, offsets)


@pytest.mark.parametrize("name", CASES)
def test_verdict(name):
    case = CASES[name]
    verdict = classify(
        gzip.decompress((PLANS / f"{name}.json.gz").read_bytes()), TIMES, Vocab(),
        {alias: tuple(keys) for alias, keys in case.get("temporal", {}).items()}, readings(case),
    )  # fmt: skip
    assert {finding.code for finding in verdict.findings} == set(case.get("codes", ()))
    if "codes" in case:
        assert verdict.classification is None
        assert all(finding.message and finding.replace for finding in verdict.findings)
        return
    found = verdict.classification
    assert found.mode.value == case["mode"]
    assert found.operation == case.get("operation")
    assert found.exact == case.get("exact", False)
    assert found.running == case.get("running", 0)
    if "keys" in case:
        table = found.table
        assert table.bare == case.get("bare", False)
        assert [list(table.keys), table.single, table.merge] == [case["keys"], case["single"], case["merge"]]
        assert {alias: list(names) for alias, names in table.grouping.items()} == case["grouping"]
    if "influence" in case:
        assert [influence(path) for path in found.paths] == case["influence"]
        return
    lows = set(case["lows"]) if "lows" in case else {case["low"]} if "low" in case else set()
    assert {written(path.low) for path in found.paths} == lows
    assert {written(path.high) for path in found.paths} == ({case["high"]} if "high" in case else lows)
    assert len(found.paths) == case.get("paths", 1 if "low" in case else 0)


@pytest.mark.parametrize("text", ["", "{}", "[]", "[1]", '[{"class":"x"}]', '[{"class":"x","num-children":2}]', "[[]]"])
def test_what_is_no_plan_is_refused(text):
    with pytest.raises(Invalid):
        parse_plan(text)


def test_depth_is_bounded():
    node = {"class": "x.Project", "num-children": 1}
    leaf = {"class": "x.Leaf", "num-children": 0}
    assert build([node] * (MAX_DEPTH - 1) + [leaf])
    with pytest.raises(Invalid, match="deeper"):
        build([node] * MAX_DEPTH + [leaf])
    verdict = classify(json.dumps([node] * MAX_DEPTH + [leaf]), TIMES, Vocab())
    assert [finding.code for finding in verdict.findings] == ["plan-too-large"]


def test_an_operator_that_nobody_knows_is_refused():
    plan = [{"class": "org.apache.spark.sql.Teleport", "num-children": 0}]
    verdict = classify(json.dumps(plan), TIMES, Vocab())
    assert "unknown-operator" in {finding.code for finding in verdict.findings}


# Functions of time never decrease, agree with the calendar, and can be turned round.

EPOCH = dt.datetime(1970, 1, 1)
MICROSECOND = dt.timedelta(microseconds=1)
times = st.datetimes(dt.datetime(1, 2, 1), dt.datetime(9998, 1, 1)).map(
    lambda t: (t - EPOCH) // dt.timedelta(microseconds=1)
)
steps = st.one_of(
    st.builds(Floor, st.integers(1, 400 * DAY), st.integers(0, DAY)),
    st.builds(FloorMonths, st.integers(1, 48)),
    st.builds(Shift, st.integers(-400 * DAY, 400 * DAY)),
    st.builds(AddMonths, st.integers(-60, 60)),
)
functions = st.lists(steps, max_size=4).map(tuple)


def moment(micros):
    return EPOCH + dt.timedelta(microseconds=micros)


def micros(moment):
    return (moment - EPOCH) // MICROSECOND


@given(functions, times, times)
def test_never_decreasing(function, one, other):
    low, high = sorted((one, other))
    assert apply(function, low) <= apply(function, high)


@given(functions, times)
def test_least_is_the_edge(function, value):
    edge = least(function, value)
    assert edge in (EARLIEST, LATEST) or apply(function, edge - 1) < value <= apply(function, edge)


@given(times, st.sampled_from([1, 3, 12]))
def test_months_are_the_calendar_s(time, size):
    start = moment(time)
    expected = dt.datetime(start.year, (start.month - 1) // size * size + 1, 1)
    assert FloorMonths(size)(time) == micros(expected)


@given(times.filter(lambda time: 3 < moment(time).year < 9996), st.integers(-24, 24))
def test_adding_months_stops_at_the_end_of_the_month(time, months):
    start = moment(time).date()
    index = start.year * 12 + start.month - 1 + months
    first = dt.date(index // 12, index % 12 + 1, 1)
    last = dt.date((index + 1) // 12, (index + 1) % 12 + 1, 1) - dt.timedelta(days=1)
    expected = min(last, first + dt.timedelta(days=start.day - 1))
    assert AddMonths(months)(time) == (expected - EPOCH.date()).days * DAY
    low, high = enclose_months(months)
    exact = AddMonths(months)(time) + time % DAY
    assert apply(low, time) <= exact <= apply(high, time)


def test_weeks_begin_on_monday():
    week = Floor(7 * DAY, origin=4 * DAY)
    assert moment(week(micros(dt.datetime(2024, 2, 29, 13)))) == dt.datetime(2024, 2, 26)


def test_before_the_epoch():
    assert Floor(DAY)(-1) == -DAY
    assert moment(FloorMonths(1)(-1)) == dt.datetime(1969, 12, 1)


# The total order against Python's: rows as tuples, element by element.

SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("l", pa.list_(pa.int32())),
        ("o", pa.struct([("x", pa.float32()), ("y", pa.string())])),
    ]
)
small = st.sampled_from([None, -1, 0, 1])
numbers = st.sampled_from([None, -math.inf, -1.5, -0.0, 0.0, 2.5, math.inf, math.nan])
words = st.sampled_from([None, "", "a", "A", "é", "z", "\U0001f600", "￿"])
rows = st.fixed_dictionaries(
    {
        "i": small,
        "f": numbers,
        "s": words,
        "l": st.none() | st.lists(small, max_size=3),
        "o": st.none() | st.fixed_dictionaries({"x": numbers, "y": words}),
    }
)


def number(value):
    if value is None:
        return (0,)
    if math.isnan(value):
        return (2,)
    return (1, value, not struct.pack(">d", value)[0] & 0x80)


def word(value):
    return (0,) if value is None else (1, value.encode())


def plain(value):
    return (0,) if value is None else (1, value)


def key(row):
    items = row["l"]
    of = row["o"]
    return (
        plain(row["i"]),
        number(row["f"]),
        word(row["s"]),
        (0,) if items is None else (1, tuple(plain(item) for item in items)),
        (0,) if of is None else (1, number(of["x"]), word(of["y"])),
    )


@pytest.mark.slow
@given(st.lists(rows, max_size=12))
def test_order_is_that_of_tuples(listed):
    table = pa.Table.from_pylist(listed, SCHEMA)
    got = [listed[i] for i in total_order(table, SCHEMA.names).to_pylist()]
    assert list(map(key, got)) == sorted(map(key, listed))


def test_no_order_for_maps():
    table = pa.table({"m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))})
    with pytest.raises(Invalid, match="no order"):
        total_order(table, ["m"])


# What is wrong with a query or a row is told in parts: rule, place and hint are no part of the message.

ONE = TransformSql(engine="spark", queries=(SqlQueryStep(query="select a / b as c from input"),))
TWO = TransformSql(
    engine="spark",
    queries=(SqlQueryStep(alias="x", query="select *\nfrom input"), SqlQueryStep(query="select 1,\n  a / b from x")),
)


class Fragment:
    def fragment(self) -> str:
        return "a / b"


class OfSpark(PySparkException):
    """As the JVM tells it."""

    def __init__(self, text: str, condition: str, state: str) -> None:
        super().__init__(text)
        self.said, self.condition, self.state = text, condition, state

    def __str__(self) -> str:
        return self.said

    def getCondition(self) -> str:
        return self.condition

    def getSqlState(self) -> str:
        return self.state

    def getQueryContext(self) -> list[Fragment]:  # type: ignore[override]
        return [Fragment()]


def by_zero(line: int, column: int) -> OfSpark:
    return OfSpark(
        "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to tolerate divisor being 0 and return NULL instead. If "
        'necessary set "spark.sql.ansi.enabled" to "false" to bypass this error. SQLSTATE: 22012\n'
        f"== SQL (line {line}, position {column}) ==\nselect a / b\n       ^^^^^\n\nJVM stacktrace:\n\tat x.y(Z.java)",
        "DIVIDE_BY_ZERO",
        "22012",
    )


def told(fault: Exception, transform: TransformSql) -> InvalidQuery:
    def work() -> None:
        raise fault

    answer = answer_faults(work, transform)
    assert isinstance(answer, InvalidQuery)
    return answer


def test_a_row_that_an_expression_cannot_take() -> None:
    answer = told(by_zero(1, 8), ONE)
    assert (answer.message, answer.rule) == ("Division by zero in: a / b", "divide-by-zero")
    assert answer.place == "line 1, column 8"
    assert "try_divide(a, b)" in (answer.hint or "")


def test_of_several_queries_the_one_is_named() -> None:
    assert told(by_zero(2, 3), TWO).place == "query 1, line 2, column 3"
    assert told(by_zero(1, 8), TWO).place == "line 1, column 8"


def test_what_spark_cannot_analyse() -> None:
    text = (
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `x` cannot be resolved. SQLSTATE: 42703; line 1 pos 7;\n'Project"
    )
    answer = told(OfSpark(text, "UNRESOLVED_COLUMN.WITH_SUGGESTION", "42703"), ONE)
    assert answer.message.startswith("A column `x` cannot be resolved")
    assert (answer.rule, answer.place) == ("unresolved-column", "line 1, column 8")


def test_a_fault_of_the_engine_is_no_answer() -> None:
    with pytest.raises(OfSpark):
        told(OfSpark("[INTERNAL_ERROR] oh", "INTERNAL_ERROR", "XX000"), ONE)


def finding(code: str, line: int | None = None, replace: str | None = None) -> Diagnostic:
    return Diagnostic(
        code=code, severity=Severity.ERROR, message=f"no {code}", query=1, line=line, column=line, replace=replace
    )


def test_one_finding_has_its_parts_and_several_a_line_each() -> None:
    one = refusal([finding("rand", 3, "leave it out")], 1)
    assert (one.message, one.rule, one.hint, one.place) == ("no rand", "rand", "leave it out", "line 3, column 3")
    assert refusal([finding("rand", 3)], 2).place == "query 1, line 3, column 3"
    both = refusal([finding("rand", 3, "leave it out"), finding("now", None, "say when")], 1)
    assert (both.message, both.rule) == ("line 3, column 3: no rand\nno now [now]", "rand")
    assert (both.hint, both.place) == ("leave it out; say when", "")


# Starts of local days as functions of time: never decreasing, round what is true, and exact but near odd changes.

MINUTE, HOUR = 60 * SECOND, 3600 * SECOND
UNTIL = 4000 * DAY
STEPS = st.sampled_from([Floor(DAY), Floor(7 * DAY, 4 * DAY), FloorMonths(1), FloorMonths(12)])


@st.composite
def zones(draw):
    gaps = draw(st.lists(st.integers(40 * 1440, 400 * 1440), max_size=8))
    offsets = [draw(st.integers(-12 * 60, 12 * 60))]
    for _ in gaps:
        low, high = max(-14 * 60, offsets[-1] - 1440), min(14 * 60, offsets[-1] + 1440)
        near = st.sampled_from([-60, -30, 30, 60]).map(lambda by, last=offsets[-1]: last + by)
        offsets.append(draw(near.filter(lambda x: abs(x) <= 14 * 60) | st.integers(low, high)))
    moments, at = [], 0
    for gap in gaps:
        at += gap
        moments.append(at * MINUTE)
    return Zone("x", tuple(moments), tuple(each * MINUTE for each in offsets), UNTIL)


def true_start(zone, step, time):
    return zone.instant(step(zone.local(time)))


@pytest.mark.slow
@settings(max_examples=share(300))
@given(zones(), STEPS, st.data())
def test_bounds_hold_never_decrease_and_are_exact_far_from_changes(zone, step, data):
    near = [moment + by * MINUTE for moment in zone.moments for by in (-1500, -61, -1, 0, 1, 59, 1500)]
    moment = st.integers(-100 * 1440, 3999 * 1440).map(lambda minute: minute * MINUTE)
    times = sorted(data.draw(st.lists(moment | st.sampled_from(near) if near else moment, min_size=2, max_size=8)))
    low, high = (LocalFloor(zone, step, high) for high in (False, True))
    for one, other in itertools.pairwise(times):
        assert low(one) <= low(other)
        assert high(one) <= high(other)
    for time in times:
        assert low(time) <= true_start(zone, step, time) <= high(time)
        if all(abs(moment - time) > 27 * HOUR for moment in zone.moments):
            assert low(time) == true_start(zone, step, time) == high(time)


def test_a_day_that_goes_back_over_midnight():
    """St. John's until 2011: at one minute past midnight clocks went back by an hour."""
    change = 100 * DAY + MINUTE
    zone = Zone("x", (change,), (0, -HOUR), UNTIL)
    step = Floor(DAY)
    low, high = (LocalFloor(zone, step, high) for high in (False, True))
    before, after = change - 1, change
    assert (true_start(zone, step, before), true_start(zone, step, after)) == (100 * DAY, 99 * DAY)
    assert [low(before), low(after)] == [99 * DAY, 99 * DAY]
    assert [high(before), high(after)] == [100 * DAY, 100 * DAY]
    assert low(change + DAY) == high(change + DAY) == 100 * DAY, "the first of two midnights"
    assert low(change + 2 * DAY) == high(change + 2 * DAY) == 101 * DAY + HOUR


def test_a_midnight_that_there_was_not():
    """São Paulo in spring: the day began at one o'clock."""
    change = 100 * DAY
    zone = Zone("x", (change,), (0, HOUR), UNTIL)
    for high in (False, True):
        start = LocalFloor(zone, Floor(DAY), high)
        assert [start(change - 1), start(change), start(change + 5 * HOUR)] == [99 * DAY, change, change]


@given(st.integers(3990, 4020), STEPS)
def test_what_is_not_known_yet_is_enclosed(day, step):
    zone = Zone("x", (), (HOUR,), UNTIL)
    low, high = (LocalFloor(zone, step, high) for high in (False, True))
    time = day * DAY
    assert low(time - 1) <= low(time) <= true_start(zone, step, time) <= high(time)
    assert high(time - 1) <= high(time)
