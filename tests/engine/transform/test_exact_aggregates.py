"""Aggregates over floating point: the nearest double of the exact value, however rows come, on the real Spark.

The oracle is arithmetic of fractions. What Spark itself says is not asked: it depends on the order of rows.
"""

from __future__ import annotations

import math
import random
from decimal import Context, Decimal
from fractions import Fraction

import pyarrow as pa
import pytest
from pyspark.errors import ArithmeticException

from conformance.case import Case
from conformance.coordinator import Bed
from conformance.histories import changes, grows, schedule
from conformance.oracles import day
from conformance.runs import world
from engines.spark.catalyst.exact import complete_plan, run_exactly
from engines.spark.catalyst.plans import frame_of
from engines.spark.sql import parsing
from worlds.depth import first_now, stride

pytestmark = pytest.mark.engine
EXACT = Context(prec=60)
WILD = (1e300, -1e300, 5e-324, -2.5e-310, 1e-200, 1.7e308, 3.0)
PLAIN = (0.1, 0.2, -0.3, 1e-9, 1e12, 20.05, -0.0, 0.0, 1 / 3)
KINDS = {
    "plain": PLAIN,
    "far apart": (1e17, 1.0, -1e17, 0.1, 3.3e-5),
    "beyond the grid": WILD,
    "not a number": (math.nan, 1.0),
    "infinite": (math.inf, 1.0),
    "both infinities": (math.inf, -math.inf, 2.0),
    "always the same": (2.5,),
}


def nearest(value):
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def root(value):
    """The nearest double, of two that are equally near the even one."""
    if not value:
        return 0.0
    shift = 2 * (140 - (value.numerator.bit_length() - value.denominator.bit_length()) // 2)
    scaled = value * Fraction(2) ** shift
    whole = math.isqrt(math.floor(scaled))
    rest = whole * whole != scaled
    return nearest(Fraction(2 * whole + rest, 2) * Fraction(2) ** (-shift // 2))


def same(one, other):
    """NaN is NaN here, and null is null."""
    if one is None or other is None:
        return one is other
    return one == other or (one != one and other != other)


def linear(numbers, divide):
    if not numbers:
        return None
    if any(x != x for x in numbers) or {math.inf, -math.inf} <= set(numbers):
        return math.nan
    infinite = [x for x in numbers if math.isinf(x)]
    if infinite:
        return infinite[0]
    return nearest(sum(map(Fraction, numbers)) / (len(numbers) if divide else 1))


def spread(xs, ys):
    n = len(xs)
    return n * sum(x * y for x, y in zip(xs, ys, strict=True)) - sum(xs) * sum(ys)


def moments(xs, ys):
    """Of finite pairs, or NaN; by name."""
    n = len(xs)
    names = ("stddev", "var_pop", "covar_samp", "corr", "slope", "intercept", "r2", "sxy")
    if not n:
        return dict.fromkeys(names)
    if not all(map(math.isfinite, (*xs, *ys))):
        found = dict.fromkeys(names, math.nan)
        return found | (dict.fromkeys(("stddev", "covar_samp", "corr", "slope", "intercept", "r2")) if n == 1 else {})
    xs, ys = ([Fraction(each) for each in side] for side in (xs, ys))
    a, b, c = spread(xs, xs), spread(ys, ys), spread(xs, ys)
    known = {"var_pop": nearest(a / n**2), "sxy": nearest(c / n)}
    known["stddev"] = root(a / (n * (n - 1))) if n > 1 else None
    known["covar_samp"] = nearest(c / (n * (n - 1))) if n > 1 else None
    known["corr"] = (root(c * c / (a * b)) if c > 0 else -root(c * c / (a * b))) if a and b and n > 1 else None
    known["slope"] = nearest(c / b) if b else None
    known["intercept"] = (
        nearest((sum(xs) * sum(y * y for y in ys) - sum(ys) * sum(x * y for x, y in zip(xs, ys, strict=True))) / b)
        if b else None
    )  # fmt: skip
    known["r2"] = None if not b else 1.0 if not a else nearest(c * c / (a * b))
    return known


def groups(seed):
    rng = random.Random(seed)
    rows = []
    for number, values in enumerate(KINDS.values()):
        for part in range(4):
            for _ in range(rng.choice((1, 2, 3, 40))):
                x, y = (rng.choice(values) if rng.random() > 0.1 else None for _ in range(2))
                rows.append((4 * number + part, x, y, rng.choice((2**63 - 1, -(2**63), 5, None))))
    rng.shuffle(rows)
    return rows


def analysed(spark, sql):
    return parsing.analyse_query(spark, parsing.parse_query(spark, sql))


def laid(spark, rows):
    columns = list(zip(*rows, strict=True))
    kinds = (pa.int64(), pa.float64(), pa.float64(), pa.int64())
    table = pa.table([pa.array(each, kind) for each, kind in zip(columns, kinds, strict=True)], names=list("gxyl"))
    spark.createDataFrame(table).repartition(3).createOrReplaceTempView("r")


def by_group(rows, at):
    found = {}
    for row in rows:
        found.setdefault(row[0], [])
        if row[at] is not None:
            found[row[0]].append(row[at])
    return found


@pytest.mark.parametrize("quick", [True, False], ids=["first quickly", "complete"])
def test_sums_and_averages_are_the_nearest_double_of_the_exact_value(spark, quick):
    rows = groups(1)
    laid(spark, rows)
    plan = analysed(spark, "select g, sum(x) as s, avg(x) as a, avg(l) as w, try_sum(l) as t, max(x) as high, "
                           "avg(x) filter (where y > 0) as f from r group by g")  # fmt: skip
    run = lambda made: frame_of(spark, made).toArrow().to_pylist()  # noqa: E731
    found = run_exactly(spark, plan, run) if quick else run(complete_plan(spark, plan))
    xs, ls = by_group(rows, 1), by_group(rows, 3)
    some = by_group([row for row in rows if row[2] is not None and (row[2] > 0 or row[2] != row[2])], 1)
    assert len(found) == 4 * len(KINDS)
    for row in found:
        mine, whole = xs[row["g"]], ls[row["g"]]
        assert same(row["s"], linear(mine, False)), row
        assert same(row["a"], linear(mine, True)), row
        assert same(row["f"], linear(some.get(row["g"], []), True)), row
        assert same(row["w"], nearest(Fraction(sum(whole), len(whole))) if whole else None), row
        assert row["t"] == (sum(whole) if whole and -(2**63) <= sum(whole) < 2**63 else None), row
        assert math.copysign(1, row["high"]) == 1 if row["high"] == 0 else True


@pytest.mark.parametrize("kinds", [("plain", "far apart", "infinite", "always the same"), tuple(KINDS)], ids=str)
def test_moments_are_the_nearest_double_of_the_exact_value(spark, kinds):
    """Without numbers beyond the grid the quick plan answers; with them the complete one."""
    among = {at for at, name in enumerate(KINDS) if name in kinds}
    rows = [row for row in groups(2) if row[0] // 4 in among]
    laid(spark, rows)
    plan = analysed(spark, "select g, stddev(x) as stddev, var_pop(x) as var_pop from r where x is not null "
                           "group by g")  # fmt: skip
    xs = by_group(rows, 1)
    for row in run_exactly(spark, plan, lambda made: frame_of(spark, made).toArrow()).to_pylist():
        wanted = moments(xs[row["g"]], xs[row["g"]])
        assert all(same(row[name], wanted[name]) for name in ("stddev", "var_pop")), (row, wanted)
    plan = analysed(spark, "select g, covar_samp(x, y) as covar_samp, corr(x, y) as corr, regr_slope(x, y) as slope, "
                           "regr_intercept(x, y) as intercept, regr_r2(x, y) as r2, regr_sxy(x, y) as sxy "
                           "from r group by g")  # fmt: skip
    pairs = [row for row in rows if row[1] is not None and row[2] is not None]
    xs, ys = by_group(pairs, 1), by_group(pairs, 2)
    for row in run_exactly(spark, plan, lambda made: frame_of(spark, made).toArrow()).to_pylist():
        wanted = moments(xs.get(row["g"], []), ys.get(row["g"], []))
        if len(xs.get(row["g"], [])) > 1 and all(map(math.isfinite, (*xs[row["g"]], *ys[row["g"]]))):
            for name in ("covar_samp", "corr", "slope", "intercept", "r2", "sxy"):
                assert same(row[name], wanted[name]), (name, row, wanted)


HALF = 2.0**-53
"""Half a unit in the last place of 1."""
BOUNDED = {
    "measured": (1, lambda rng: round(rng.gauss(100, 30), 4)),
    "about nothing": (1, lambda rng: rng.gauss(0, 1)),
    "as great as may be": (1, lambda rng: rng.choice((2.0**33 - 2.0**-20, -(2.0**33) + 0.1, 1e9 / 3))),
    "between two doubles": (1, lambda rng: rng.choice((1.0, HALF, 3 * HALF, -HALF))),
    "hardly different": (1, lambda rng: 1e6 + rng.randrange(4) * 2.0**-30),
    "beside the middle of two": (2, lambda rng: rng.choice((1.0, HALF, 2.0**-90, -(2.0**-90)))),
    "always the same": (1, lambda _: 1e-3 / 3),
    "always the same and small": (2, lambda _: 1e-5 / 3),
    "too great": (2, lambda rng: rng.choice((2.0**33, 1.5, 1e15))),
    "not a number": (2, lambda rng: rng.choice((math.nan, math.inf, 1.5))),
    "tiny": (3, lambda rng: rng.choice((1e-150, -1e-140, 3e-145))),
}
"""How many plans it takes, and numbers."""


@pytest.mark.parametrize("name", BOUNDED)
def test_a_sum_with_a_bound_is_right_or_another_plan_answers(name, spark):
    """Numbers where a value that was only near would show; the first plan has no more than it can prove."""
    plans, number = BOUNDED[name]
    rng = random.Random(4)
    rows = [(g, number(rng), None, None) for g in range(80) for _ in range(2 + g % 3 + 200 * (g == 7))]
    rng.shuffle(rows)
    laid(spark, rows)
    tried = []

    def run(made):
        tried.append(made)
        return frame_of(spark, made).toArrow().to_pylist()

    plan = analysed(spark, "select g, sum(x) as s, avg(x) as a, stddev(x) as d, var_pop(x) as v from r group by g")
    xs = by_group(rows, 1)
    for row in run_exactly(spark, plan, run):
        mine = xs[row["g"]]
        wanted = moments(mine, mine)
        assert same(row["s"], linear(mine, False)), row
        assert same(row["a"], linear(mine, True)), row
        assert same(row["d"], wanted["stddev"]), row
        assert same(row["v"], wanted["var_pop"]), row
    assert len(tried) == plans


def test_a_group_of_more_rows_than_a_bound_is_for(spark):
    """Sums of pieces may not fit then: another plan answers."""
    # Half a million rows pay back what compiling takes: 30 CPU seconds without.
    spark.conf.set("spark.sql.codegen.wholeStage", "true")
    spark.conf.set("spark.sql.codegen.factoryMode", "FALLBACK")
    rows, tried = (1 << 19) + 1, []

    def run(made):
        tried.append(made)
        return frame_of(spark, made).toArrow().to_pylist()

    for count, plans in ((rows - 1, 1), (rows, 2)):
        tried.clear()
        plan = analysed(spark, f"select sum(x) as s, avg(x) as a from (select 8589934591.9D + id * 0D as x "
                               f"from range({count}))")  # fmt: skip
        [row] = run_exactly(spark, plan, run)
        assert row == {"s": nearest(Fraction(8589934591.9) * count), "a": 8589934591.9}
        assert len(tried) == plans


def test_a_sum_of_whole_numbers_fails_by_its_value_and_not_by_its_way(spark):
    """On the way it leaves a BIGINT, at the end it does not."""
    laid(spark, [(1, None, None, each) for each in (2**63 - 1, 2**63 - 1, -(2**63), -5)])
    plan = analysed(spark, "select sum(l) as s from r")
    [row] = run_exactly(spark, plan, lambda made: frame_of(spark, made).toArrow(), exact=False).to_pylist()
    assert row["s"] == 2**63 - 7


WIDE = ("9" * 36 + ".99", "-" + "9" * 36 + ".99", "0.01", "-0.01", "1234567.89", "5" * 36 + ".55")
FITS = 10**38


def averaged(total, count, scale):
    """As Spark divides: to 39 digits behind the point, then to those of the result; half away from zero."""

    def half_up(number):
        return (abs(number) + Fraction(1, 2)).__floor__() * (1 if number >= 0 else -1)

    return half_up(Fraction(half_up(Fraction(total, count) * 10**39), 10 ** (39 - scale)))


@pytest.mark.parametrize("quick", [True, False], ids=["first quickly", "complete"])
@pytest.mark.parametrize("seed", first_now([1, 2, 3]))
def test_sums_of_wide_decimals_are_null_or_fail_by_their_value_and_not_by_their_way(seed, quick, spark):
    rng = random.Random(seed)
    rows = [(g, rng.choice((*WIDE, None)), g % 2 == 1 or rng.random() < 0.5) for g in range(60) for _ in range(g % 7)]
    rng.shuffle(rows)
    table = pa.table([pa.array([row[0] for row in rows]), pa.array([row[1] for row in rows], pa.string()),
                      pa.array([row[2] for row in rows])], names=["g", "x", "y"])  # fmt: skip
    spark.createDataFrame(table).selectExpr("g", "cast(x as decimal(38, 2)) as x", "y").repartition(3) \
        .createOrReplaceTempView("r")  # fmt: skip
    run = lambda made: frame_of(spark, made).toArrow().to_pylist()  # noqa: E731
    ask = lambda sql: (run_exactly(spark, analysed(spark, sql), run) if quick  # noqa: E731
                       else run(complete_plan(spark, analysed(spark, sql))))  # fmt: skip
    numbers = {}
    for g, x, y in rows:
        if x is not None and y:
            numbers.setdefault(g, []).append(int(x.replace(".", "")))
    tried = ask("select g, try_sum(x) filter (where y) as s, try_avg(x) filter (where y) as a, "
                "count(*) over () as n from r group by g")  # fmt: skip
    fitting = []
    for row in tried:
        mine = numbers.get(row["g"], [])
        total = sum(mine) if mine else None
        mean = averaged(Fraction(total, 100), len(mine), 6) if mine else None
        assert row["s"] == (None if total is None or abs(total) >= FITS else Decimal(total).scaleb(-2, EXACT)), row
        assert row["a"] == (None if mean is None or abs(mean) >= FITS else Decimal(mean).scaleb(-6, EXACT)), row
        fitting += [row] if mine and row["s"] is not None and row["a"] is not None else []
    assert 5 < len(fitting) < len(numbers)
    among = ", ".join(str(row["g"]) for row in fitting)
    sure = ask(f"select g, sum(x) as s, avg(x) as a from r where y and g in ({among}) group by g")
    wanted = {row["g"]: (row["s"], row["a"]) for row in fitting}
    assert {row["g"]: (row["s"], row["a"]) for row in sure} == wanted
    with pytest.raises(ArithmeticException):
        ask(f"select g, sum(x) as s from r where y and g not in ({among}) group by g")


def test_over_a_range_of_time(spark):
    spark.createDataFrame(
        pa.table({"t": [1, 2, 3, 4], "x": [0.1, 1e17, -1e17, 0.2], "k": ["a"] * 4})
    ).createOrReplaceTempView("r")  # fmt: skip
    sql = (
        "select t, avg(x) over (order by t range between 2 preceding and current row) as m, count(*) over () as c "
        "from r"
    )
    made = run_exactly(spark, analysed(spark, sql), lambda plan: frame_of(spark, plan).toArrow())
    rows = sorted(made.to_pylist(), key=lambda row: row["t"])
    assert [row["m"] for row in rows] == [0.1, nearest((Fraction(0.1) + 10**17) / 2), nearest(Fraction(0.1) / 3),
                                          nearest(Fraction(0.2) / 3)]  # fmt: skip
    assert made.column_names == ["t", "m", "c"]


def wide(size):
    """Of either sign."""
    return f"cast((v % 3 - 1) * cast('{size}.5' as decimal(38, 2)) + v as decimal(38, 2))"


SOME, FEW = wide(3 * 10**34), wide(9 * 10**35)
"""Numbers of which dozens have a sum, and of which two may have none."""
X = "cast(v as double) * 0.1 + 1e15 * (v % 2)"


def number(v):
    return v * 0.1 + 1e15 * math.fmod(v, 2)


CASES = {
    "days": Case("exact-days", "select time_bucket(interval '1' day, event_time) as event_time, k, "
                 f"avg({X}) as m, sum({X}) as s, stddev({X}) as d, max({X}) as h from a group by 1, 2",
                 {"a": grows}, lambda *_: None),
    "a table over what grows": Case(
        "exact-table",
        f"select k, max(event_time) as event_time, avg({X}) as m, avg(v) as w, sum(v) as t from a group by k",
        {"a": grows}, lambda *_: None),
    "a table of decimals": Case(
        "exact-decimals", "select k, max(event_time) as event_time, avg(cast(v as decimal(20, 2))) as m, "
        f"try_sum({FEW}) as t, try_avg({FEW}) as a from a group by k",
        {"a": grows}, lambda *_: None),
    "days of decimals": Case(
        "exact-decimal-days", "select time_bucket(interval '1' day, event_time) as event_time, k, "
        f"sum({SOME}) as w, try_sum({FEW}) as t, try_avg({FEW}) as a from a group by 1, 2",
        {"a": grows}, lambda *_: None),
    "a table over a changelog": Case(
        "exact-changes", f"select k, max(event_time) as event_time, avg({X}) as m, corr({X}, v) as c from a group by k",
        {"a": changes}, lambda *_: None, changelogs=("a",)),
    "running": Case(
        "exact-running",
        f"select event_time, k, v, max({X}) over (partition by k order by event_time, v rows between 3 preceding and "
        f"current row) as h, avg({X}) over (partition by k order by event_time) as m, sum({SOME}) over (order by "
        "event_time) as t from a", {"a": grows}, lambda *_: None),
    "corrected days": Case(
        "exact-late", "select time_bucket(interval '1' day, event_time) as event_time, k, "
        f"avg({X}) as m from a group by 1, 2", {"a": grows}, lambda *_: None,
        head="SET odf.late = 'apply within 90 days'; "),
}  # fmt: skip


BRIEF = {"a table over what grows": 2, "a table of decimals": 0, "days of decimals": 4}
"""Numbers of runs in three or four pieces, where the first has up to ten."""
BY_BLOCK = tuple(CASES) if stride() == 1 else ("days",)
"""Also cut into single blocks, which takes Spark a transaction each."""


@pytest.mark.parametrize("name", CASES)
def test_however_the_input_is_cut(name, spark_root, analyst, tmp_path):
    case = CASES[name]
    here = world(case, BRIEF.get(name, 1), Bed(spark_root.newSession, analyst), tmp_path)
    whole = here.at_once()
    assert len(whole.rows) > 5
    pieces = here.coordinator("pieces").run([(takes, None) for takes in schedule(here.rng, here.sizes)], here.rng, None)
    for got in (pieces, here.block_by_block("a")) if name in BY_BLOCK else (pieces,):
        assert (got.rows, got.state, got.watermark) == (whole.rows, whole.state, whole.watermark)
    if "decimals" in name:
        assert any(None in row[-2:] for row in whole.rows)
    if name == "running":
        for _, time, k, _, _, mean, _ in whole.rows:
            earlier = [number(row[3]) for row in whole.rows if row[1] <= time and row[2] == k]
            assert mean == linear(earlier, True)
    if name == "days":
        assert _days_checked(here, whole) > 3


def _days_checked(here, whole):
    """How many days had all their rows in time, whose values are what fractions say."""
    found = {}
    for row in (row for block in here.histories["a"] for row in block.rows if row.time is not None):
        found.setdefault((day(row.time), row.k), []).append(number(row.v))
    checked = 0
    for _, time, k, mean, total, _, high in whole.rows:
        numbers = found[time, k]
        if len(numbers) > 1 and linear(numbers, False) == total:
            assert mean == linear(numbers, True)
            assert high == max(numbers)
            checked += 1
    return checked
