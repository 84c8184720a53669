"""Makes JVM plans that compute aggregates exactly, whatever the order of the rows, and round them once.

Spark adds floating point in whatever order rows come, so the last digits of ``avg`` would depend on how an input was
cut into files. Here every number is split into whole numbers on a fixed grid of powers of two (``analysis.exact``).
Those are added as BIGINT, which is exact, needs no order, and can be merged. The aggregate is computed from these sums
once per group, with whole numbers of any size, and rounded once to the nearest double. ``sum`` over BIGINT and over
decimals of 29 digits and more is exact in the same way.

Numbers that are not on the grid are rare: below about 1e-13 with all their digits, or beyond 1.8e19. The quick plan
only notices them (or a sum that leaves its BIGINT), and then the complete plan runs instead, which collects them.
Before both, sums, means and variances are tried with fewer sums and a bound of their error (``certified``). All give
the same value for every group, so the result does not show which of them ran. ADR 20.

The expressions of one aggregate (projections below it, sums, and their combination) are SQL texts where SQL suffices,
``BigIntegers`` where it does not. Made once for a JVM and a kind of call, over columns with ids of their own, and then
used in any plan.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from engines.spark.analysis.exact import (
    BOUNDED,
    COMPLETE,
    EXTREMES,
    FINEST,
    FLOATS,
    MEANS,
    MOMENTS,
    QUICK,
    ROOM,
    AggregateCall,
    Grids,
    digits_of,
)
from engines.spark.catalyst import certified
from engines.spark.catalyst.bignum import BigIntegers
from engines.spark.catalyst.expressions import Catalyst, over_as_sql
from engines.spark.catalyst.plans import is_aggregate, items, kind_of, replace_parts

TOO_COARSE: Final = "__odf_not_on_the_grid"
WHOLE: Final = ("bigint", "int", "smallint", "tinyint")
_LIMB, _LIMBS = 32, 4
"""Bits and number of limbs of a decimal, which has up to 127 bits without its point. Each limb's sum fits into a BIGINT
for up to two thousand million rows."""
_POSITIVE, _NEGATIVE, _NAN, _OFF = 1, 2, 4, 8
"""Bits that note special numbers in a group: infinities, NaN, numbers off the grid."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The expressions of a call, over columns with ids of its own: made once for a JVM, and used in any plan."""

    given: tuple[Any, ...]
    """Columns for the arguments, and for the condition under FILTER."""
    layers: tuple[tuple[Any, ...], ...]
    """Columns that projections below the aggregation add, each over the one before."""
    parts: tuple[Any, ...]
    """The aggregates, named."""
    above: tuple[tuple[Any, ...], ...]
    """Columns that projections above the aggregation add, each over the one before."""
    result: Any
    """The column with the value."""


def make_recipe(session: SparkSession, call: AggregateCall, grids: Grids) -> Recipe:
    return _Cook(session, Catalyst(session), call, grids).recipe()


@dataclass(slots=True)
class _Cook:
    session: SparkSession
    catalyst: Catalyst
    call: AggregateCall
    grids: Grids
    _big: BigIntegers = field(init=False)

    def __post_init__(self) -> None:
        self._big = BigIntegers(self.session._jvm, self.catalyst.read)

    def recipe(self) -> Recipe:
        call = self.call
        typed = [(letter, kind) for letter, kind in zip("ab", call.types, strict=False)]
        typed += [("if", "boolean")] if call.filtered else []
        given = [
            made.toAttribute()
            for made in self._read([f"cast(null as {kind}) as {call.name(letter)}" for letter, kind in typed], [])
        ]
        columns, layers = list(given), []
        for texts in _prepare(call, self.grids):
            layers.append(tuple(self._one_zero(made) for made in self._read(texts, columns)))
            columns += [made.toAttribute() for made in layers[-1]]
        if call.wide:
            layers.append(tuple(self._split(columns[-1])))
            columns += [made.toAttribute() for made in layers[-1]]
        parts = self._sum(_sums(call, self.grids), columns)
        seen = [part.toAttribute() for part in parts]
        above = []
        steps = (self._totals, self._values, self._results)
        for make in self._bounded_projections() if self.grids is BOUNDED else steps:
            made = make({each.name(): each for each in seen})
            above += [tuple(made)] if made else []
            seen += [each.toAttribute() for each in made]
        result = next(each for each in seen if each.name() == call.name("r"))
        return Recipe(tuple(given), tuple(layers), tuple(parts), tuple(above), result)

    def _bounded_projections(self) -> tuple[Callable[[Mapping[str, Any]], list[Any]], ...]:
        """Returns the projections above sums whose error is bounded; each reads the columns of the one before."""
        big, call = self._big, self.call
        return (
            lambda column: self._read(certified.count_units(call), list(column.values())),
            lambda column: self._alias(certified.totals(big, call, column)),
            lambda column: self._alias(certified.ends(big, call, column)),
            lambda column: self._alias(certified.quotients(big, call, column)),
            lambda column: self._read([certified.result(call, TOO_COARSE)], list(column.values())),
        )

    def _one_zero(self, made: Any) -> Any:
        if self.call.kind not in EXTREMES:
            return made
        normal = self.session._jvm.org.apache.spark.sql.catalyst.optimizer.NormalizeNaNAndZero
        return made.withNewChildren(self.catalyst.sequence([normal(made.child())]))

    def _split(self, column: Any) -> list[Any]:
        """Splits a decimal into limbs, whose sums are BIGINTs."""
        whole = self._big.unscale(column, self.call.scale)
        return self._alias({f"l{at}": self._big.limb(whole, at, _LIMB, at == _LIMBS - 1) for at in range(_LIMBS)})

    def _read(self, texts: Sequence[str], columns: Sequence[Any]) -> list[Any]:
        """Parses SQL texts over columns to named expressions."""
        made = self.catalyst.project([self.catalyst.read(text) for text in texts], self._stub(columns))
        return items(made.projectList())

    def _sum(self, texts: Sequence[str], columns: Sequence[Any]) -> list[Any]:
        made = self.catalyst.aggregate([], [self.catalyst.read(text) for text in texts], self._stub(columns))
        return items(made.aggregateExpressions())

    def _stub(self, columns: Sequence[Any]) -> Any:
        made = self.session._jvm.org.apache.spark.sql.catalyst.plans.logical.LocalRelation
        return made(
            self.catalyst.sequence(columns), self.catalyst.empty(), False, self.session._jvm.scala.Option.empty()
        )

    def _alias(self, values: Mapping[str, Any]) -> list[Any]:
        return [self.catalyst.alias(value, self.call.name(name)) for name, value in values.items()]

    def _totals(self, column: Mapping[str, Any]) -> list[Any]:
        """Makes the totals of moments: sums of numbers and of products, as whole numbers in BINARY."""
        call, found = self.call, {}
        for term in _terms(call.kind) if call.kind in MOMENTS else ():
            grid = self.grids.numbers if len(term) == 1 else self.grids.products
            total = self._big.limbs([column[call.name(f"{term}{at}_")] for at in range(grid.limbs)], grid.width)
            if self.grids is not QUICK:
                total = self._complete(total, grid.low, term, column)
            found[term] = self._big.to_bytes(total)
        return self._alias(found)

    def _complete(self, total: Any, low: int, term: str, column: Mapping[str, Any]) -> Any:
        """Adds the numbers that are not on the grid to a total, which is then in the finest units."""
        big, letters = self._big, _letters(self.call.kind)
        values = column[self.call.name("off")]
        fields = [None if len(letters) == 1 else letters.index(each) for each in term]
        off = big.sum_of(values, values.dataType().elementType(), fields)
        return big.add(big.shift(total, low - FINEST * len(term)), off)

    def _values(self, column: Mapping[str, Any]) -> list[Any]:
        """Returns the values computed from the sums; ``v`` is the aggregate's value."""
        big, call = self._big, self.call
        if call.digits is not None:
            return self._alias({"v": self._decimal(column)})
        if call.kind in EXTREMES or (call.kind == "Sum" and not call.floating):
            return []
        count = big.at_least_one(big.of_long(column[call.name("n")]))
        if call.kind in MOMENTS:
            unit = self.grids.numbers.low if self.grids is QUICK else FINEST
            sums = {term: big.read(column[call.name(term)]) for term in _terms(call.kind)}
            return self._alias(_moment(big, call.kind, count, sums, unit))
        if not call.floating:
            names = ("s",) if self.grids is QUICK else ("lo", "hi")
            return self._alias({"v": big.divide(big.limbs([column[call.name(n)] for n in names], 32), count, 0)})
        grid = self.grids.numbers
        total, low = big.limbs([column[call.name(f"a{at}_")] for at in range(grid.limbs)], grid.width), grid.low
        if self.grids is not QUICK:
            total, low = self._complete(total, low, "a", column), FINEST
        return self._alias({"v": big.divide(total, big.one if call.kind == "Sum" else count, low)})

    def _decimal(self, column: Mapping[str, Any]) -> Any:
        big, call = self._big, self.call
        if call.wide:
            total = big.limbs([column[call.name(f"l{at}")] for at in range(_LIMBS)], _LIMB)
        else:
            total = big.unscale(column[call.name("s")], call.scale)
        by = big.at_least_one(big.of_long(column[call.name("n")])) if call.kind == "Average" else None
        kind = self.catalyst.read(f"cast(null as {call.result})").dataType()
        return big.decimal(total, call.scale, by, kind, call.tries)

    def _results(self, column: Mapping[str, Any]) -> list[Any]:
        text = _result(self.call, self.grids)
        return self._read([text], list(column.values())) if text else []


_ONE: Final = frozenset({
    "VariancePop", "VarianceSamp", "StddevPop", "StddevSamp", "RegrSXX", "RegrSYY",
})  # fmt: skip
"""Moments of one column, perhaps only over rows where another is not null either."""
_NOT_ALONE: Final = frozenset({
    "VarianceSamp", "StddevSamp", "CovSample", "Corr", "RegrSlope", "RegrIntercept", "RegrR2",
})  # fmt: skip
"""Aggregates that are null for a single row."""


def _letters(kind: str) -> str:
    """Returns the columns of which there are sums: ``a`` is the first argument, ``b`` the second."""
    if kind in _ONE or kind not in MOMENTS:
        return "b" if kind == "RegrSXX" else "a"
    return "ab"


def _terms(kind: str) -> tuple[str, ...]:
    letters = _letters(kind)
    if len(letters) == 1:
        return letters, letters * 2
    squares = {"Corr": ("aa", "bb"), "RegrR2": ("aa", "bb"), "RegrSlope": ("bb",), "RegrIntercept": ("bb",)}
    return "a", "b", "ab", *squares.get(kind, ())


def _prepare(call: AggregateCall, grids: Grids) -> tuple[list[str], ...]:
    """Returns SQL for the columns to add below the aggregation, stage by stage."""
    if call.kind in EXTREMES:
        value = call.name("a")
        return ([_filter(call, value, [value], "xa")],)
    letters = _letters(call.kind)
    given = [call.name(letter) for letter in "ab"[: len(call.types)]]
    if call.digits is not None:
        return ([_filter(call, given[0], given, "xa")],)
    if call.kind not in MOMENTS and not call.floating:
        return ([_filter(call, f"cast({given[0]} as bigint)", given, "xa")],)
    first = [_filter(call, f"cast({call.name(letter)} as double)", given, f"x{letter}") for letter in letters]
    numbers = [call.name(f"x{letter}") for letter in letters]
    if grids is BOUNDED:
        return first, *certified.prepare_columns(call, numbers[0], TOO_COARSE)
    holds = " and ".join(grids.numbers.holds(number) for number in numbers)
    nan, plus, minus = (
        " or ".join(text.format(number) for number in numbers)
        for text in ("isnan({})", "{} = double('Infinity')", "{} = double('-Infinity')")
    )
    flag = (
        f"case when {numbers[0]} is null or ({holds}) then 0 when {nan} then {_NAN} when {plus} then {_POSITIVE} "
        f"when {minus} then {_NEGATIVE} else {_OFF} end as {call.name('f')}"
    )
    second = [
        f"case when {holds} then {each} else 0D end as {call.name('z' + letter)}"
        for each, letter in zip(numbers, letters, strict=True)
    ]
    products = [term for term in _terms(call.kind) if len(term) == 2] if call.kind in MOMENTS else []
    halves = [
        f"134217729D * {z} - (134217729D * {z} - {z}) as {call.name('h' + letter)}"
        for letter in sorted({letter for term in products for letter in term})
        for z in [call.name("z" + letter)]
    ]
    fourth = [text for term in products for text in _product(call, term)]
    return first, [flag, *second], halves, fourth


def _filter(call: AggregateCall, value: str, given: Sequence[str], name: str) -> str:
    """Returns SQL for a value that is null where its row does not count: an argument is null, or FILTER excludes it."""
    counts = [f"{each} is not null" for each in given] if len(given) > 1 else []
    counts += [call.name("if")] if call.filtered else []
    shown = f"case when {' and '.join(counts)} then {value} end" if counts else value
    return f"{shown} as {call.name(name)}"


def _product(call: AggregateCall, term: str) -> list[str]:
    """Returns SQL for a product as double precision rounds it, and its rounding error, exactly: halves of
    26 bits multiply exactly."""
    (x, hx), (y, hy) = ((call.name(f"z{letter}"), call.name(f"h{letter}")) for letter in term)
    lx, ly, product = f"({x} - {hx})", f"({y} - {hy})", f"({x} * {y})"
    rest = f"(({hx} * {hy} - {product}) + {hx} * {ly} + {lx} * {hy}) + {lx} * {ly}"
    return [f"{product} as {call.name('p' + term)}", f"{rest} as {call.name('e' + term)}"]


def _sums(call: AggregateCall, grids: Grids) -> list[str]:
    """Returns SQL for the aggregates that a call is made of; each can be merged."""
    if call.kind in EXTREMES:
        return [f"{call.kind.lower()}({call.name('xa')}) as {call.name('r')}"]
    letters = _letters(call.kind)
    x = call.name("x" + letters[0])
    count = f"count({x}) as {call.name('n')}"
    if call.digits is not None:
        limbs = [f"sum({call.name(f'l{at}')}) as {call.name(f'l{at}')}" for at in range(_LIMBS)]
        return [*(limbs if call.wide else [f"sum({x}) as {call.name('s')}"]), count]
    if call.kind not in MOMENTS and not call.floating:
        halves = [
            f"sum({x} & 4294967295L) as {call.name('lo')}",
            f"sum(shiftright({x}, 32)) as {call.name('hi')}",
        ]
        whole = call.kind == "Average" and grids is QUICK
        return [*([f"sum({x}) as {call.name('s')}"] if whole else halves), count]
    if grids is BOUNDED:
        return certified.sums(call, x)
    made = []
    for term in _terms(call.kind) if call.kind in MOMENTS else ("a",):
        grid = grids.numbers if len(term) == 1 else grids.products
        columns = [call.name("z" + term)] if len(term) == 1 else [call.name(part + term) for part in "pe"]
        for at in range(grid.limbs):
            limb = " + ".join(grid.limb(column, at) for column in columns)
            made.append(f"sum({limb}) as {call.name(f'{term}{at}_')}")
    flags = f"bit_or({call.name('f')}) as {call.name('flags')}"
    if grids is QUICK:
        return [*made, count, flags]
    seen = [call.name("x" + letter) for letter in letters]
    element = seen[0] if len(seen) == 1 else f"struct({', '.join(seen)})"
    off = f"collect_list(case when {call.name('f')} = {_OFF} then {element} end) as {call.name('off')}"
    return [*made, count, flags, off]


def _result(call: AggregateCall, grids: Grids) -> str:
    """Returns SQL for a call's value, from its sums or values computed from them; empty where the sum is the value."""
    count, flags, value, result = (call.name(each) for each in ("n", "flags", "v", "r"))
    if call.kind in EXTREMES:
        return ""
    if call.kind == "Sum" and not call.floating and call.digits is None:
        # The low half's carry goes to the high one first, so only a total that is no BIGINT overflows.
        low, high = call.name("lo"), f"({call.name('hi')} + shiftright({call.name('lo')}, 32))"
        times = f"try_multiply({high}, 4294967296L)" if call.tries else f"{high} * 4294967296L"
        return f"{times} + ({low} & 4294967295L) as {result}"
    if not call.floating:
        return f"case when {count} > 0 then {value} end as {result}"
    cases = [f"when {flags} & {_NAN} <> 0 or {flags} & 3 = 3 then double('NaN')"]
    cases += [
        f"when {flags} & {bit} <> 0 then double('{what}')"
        for bit, what in ((_POSITIVE, "Infinity"), (_NEGATIVE, "-Infinity"))
    ]
    if call.kind in MOMENTS:
        cases = [f"when {flags} & 7 <> 0 then double('NaN')"]
    if grids is QUICK:
        cases.append(f"when {flags} & {_OFF} <> 0 then cast(raise_error('{TOO_COARSE}') as double)")
    cases += [f"when {call.name(sign)} = 0 then {what}" for sign, what in _STILL.get(call.kind, {}).items()]
    alone = 1 if call.kind in _NOT_ALONE else 0
    return f"case when {count} <= {alone} then null {' '.join(cases)} else {value} end as {result}"


_STILL: Final[Mapping[str, Mapping[str, str]]] = {
    "Corr": {"db": "null", "da": "null"},
    "RegrSlope": {"db": "null"},
    "RegrIntercept": {"db": "null"},
    "RegrR2": {"db": "null", "da": "1D"},
}
"""Spark's result where a column is constant, so that the sign of its variance is 0."""


def _moment(big: BigIntegers, kind: str, count: Any, sums: Mapping[str, Any], unit: int) -> dict[str, Any]:
    """Computes a moment from sums in units of two to ``unit`` for each factor; single rows and the like
    are handled elsewhere."""
    letters = _letters(kind)

    def spread(one: str, other: str) -> Any:
        return big.minus(big.times(count, sums[one + other]), big.times(sums[one], sums[other]))

    if kind.endswith("Samp") or kind == "CovSample":
        by = big.times(count, big.at_least_one(big.minus(count, big.one)))
    elif kind in ("RegrSXX", "RegrSYY", "RegrSXY"):
        by = count
    else:
        by = big.times(count, count)
    if len(letters) == 1:
        make = big.root if kind.startswith("Stddev") else big.divide
        return {"v": make(spread(letters, letters), by, 2 * unit)}
    both = spread("a", "b")
    if kind in ("CovPopulation", "CovSample", "RegrSXY"):
        return {"v": big.divide(both, by, 2 * unit)}
    of_b = spread("b", "b")
    known, of_b = {"db": big.sign(of_b)}, big.at_least_one(of_b)
    if kind == "RegrSlope":
        return {**known, "v": big.divide(both, of_b, 0)}
    if kind == "RegrIntercept":
        left = big.minus(big.times(sums["a"], sums["bb"]), big.times(sums["b"], sums["ab"]))
        return {**known, "v": big.divide(left, of_b, unit)}
    of_a = spread("a", "a")
    known["da"] = big.sign(of_a)
    square, product = big.times(both, both), big.times(big.at_least_one(of_a), of_b)
    if kind == "RegrR2":
        return {**known, "v": big.divide(square, product, 0)}
    return {**known, "v": big.with_sign(big.root(square, product, 0), both)}


Answer = TypeVar("Answer")
Plan = TypeVar("Plan")


def run_exactly(session: SparkSession, plan: Any, run: Callable[[Any], Answer], exact: bool = True) -> Answer:
    """Runs an analysed plan with exact aggregates by calling ``run``, up to three times.

    ``exact``: whether it has aggregates that Spark would compute otherwise, apart from sums that overflow on the way.
    """

    def plans() -> Iterator[Any]:
        yield from quick_plans(session, plan, exact)
        yield complete_plan(session, plan)

    return first_exact(plans(), run)


def first_exact(plans: Iterable[Plan], run: Callable[[Plan], Answer]) -> Answer:
    """Runs the first of several plans whose sums all stay within their bounds."""
    fault: PySparkException | None = None
    for made in plans:
        try:
            return run(made)
        except PySparkException as error:
            # The quick plans fail on purpose where sums leave their bounds; any other failure is the query's own.
            if str(error.getCondition()).split(".")[0] not in _OVERFLOWS and TOO_COARSE not in str(error):
                raise
            fault = error
    if fault is None:
        raise AssertionError("no plan")
    raise fault


def quick_plans(session: SparkSession, plan: Any, exact: bool) -> list[Any]:
    """Returns plans that fail where they would not be exact, the quickest first."""
    if not exact:
        return [plan]
    first = _Exact(session, BOUNDED)
    attempts = [first.plan(plan)]
    if first.bounded:
        attempts.append(_Exact(session, QUICK).plan(plan))
    return attempts


_OVERFLOWS: Final = frozenset({"ARITHMETIC_OVERFLOW", "NUMERIC_VALUE_OUT_OF_RANGE"})


def complete_plan(session: SparkSession, plan: Any) -> Any:
    """Builds the plan whose sums are exact for any numbers, and can be merged."""
    return _Exact(session, COMPLETE).plan(plan)


_RECIPES: Final[WeakKeyDictionary[Any, dict[tuple[AggregateCall, Grids], Recipe]]] = WeakKeyDictionary()


@dataclass(slots=True)
class _Exact:
    session: SparkSession
    grids: Grids
    bounded: bool = False
    """Whether a plan was made with sums whose error is bounded."""
    _calls: int = 0
    _catalyst: Catalyst = field(init=False)
    _logical: Any = field(init=False)

    def __post_init__(self) -> None:
        self._catalyst = Catalyst(self.session)
        self._logical = self.session._jvm.org.apache.spark.sql.catalyst.plans.logical

    def plan(self, node: Any) -> Any:
        children, changed = node.children(), False
        for position, child in enumerate(items(children)):
            below = self.plan(child)
            if below is not child:
                children, changed = children.updated(position, below), True
        if changed:
            node = node.withNewChildren(children)
        kind = kind_of(node)
        if kind not in ("Aggregate", "Window"):
            return node
        made = node.aggregateExpressions() if kind == "Aggregate" else node.windowExpressions()
        wholes = [part for item in items(made) for part in _outermost(item, _WHOLES[kind])]
        calls = [(whole, call) for whole in wholes if (call := self._call(whole)) is not None]
        return self._around(node, wholes, calls) if calls else node

    def _call(self, whole: Any) -> AggregateCall | None:
        """Returns the call of an aggregate that is to be computed exactly; ``None`` if Spark's own
        result is exact enough."""
        aggregate = whole if is_aggregate(whole) else whole.windowFunction()
        if not is_aggregate(aggregate) or aggregate.isDistinct():
            return None
        function = _summing(aggregate)
        kind = kind_of(function)
        if kind not in {"Sum", "Average"} | MOMENTS | EXTREMES:
            return None
        types = tuple(str(item.dataType().simpleString()) for item in items(function.children()))
        tries = kind in ("Sum", "Average") and str(function).startswith("try_")
        if not self._taken_apart(kind, types[0], tries):
            return None
        self._calls += 1
        filtered, result = bool(aggregate.filter().isDefined()), str(function.dataType().simpleString())
        return AggregateCall(self._calls, kind, types, filtered, tries, result if digits_of(types[0]) else "")

    def _taken_apart(self, kind: str, number: str, tries: bool) -> bool:
        """Whether Spark's own aggregate over a type does not suffice. Its sums of whole numbers and decimals are exact
        unless they overflow on the way; its averages cannot be merged."""
        complete = self.grids is COMPLETE
        if kind not in ("Sum", "Average"):
            return number in FLOATS
        if (digits := digits_of(number)) is not None:
            return (digits > ROOM and (tries or complete)) or (kind == "Average" and complete)
        return number in FLOATS or (
            number in WHOLE if kind == "Average" else number == "bigint" and (tries or complete)
        )

    def _around(self, node: Any, wholes: list[Any], calls: list[tuple[Any, AggregateCall]]) -> Any:
        """Returns an operator with its aggregates split into parts, below a projection that combines them."""
        place = getattr(getattr(self.session._jvm.org.apache.spark.sql.catalyst.trees, "CurrentOrigin$"), "MODULE$")
        place.set(node.origin())  # so that the operators that replace it still have their place in the text
        try:
            recipes = {call: self._recipe(call) for _, call in calls}
            raw = [made for whole, call in calls for made in self._raw(whole, recipes[call])]
            below = self._with(node.child(), raw)
            for layer in itertools.zip_longest(*(recipe.layers for recipe in recipes.values()), fillvalue=()):
                below = self._with(below, [made for part in layer for made in part])
            make = self._aggregate if kind_of(node) == "Aggregate" else self._window
            return make(node, wholes, [(whole, recipes[call]) for whole, call in calls], below)
        finally:
            place.reset()

    def _raw(self, whole: Any, recipe: Recipe) -> list[Any]:
        """Names the arguments with the names and ids that the recipe has for them."""
        aggregate = whole if is_aggregate(whole) else whole.windowFunction()
        values = items(_summing(aggregate).children())
        if aggregate.filter().isDefined():
            values.append(aggregate.filter().get())
        return [self._catalyst.under(value, column) for value, column in zip(values, recipe.given, strict=True)]

    def _aggregate(self, node: Any, wholes: list[Any], calls: list[tuple[Any, Recipe]], below: Any) -> Any:
        named, keys, known = [], [], []
        for number, key in enumerate(items(node.groupingExpressions())):
            column = key if kind_of(key) == "AttributeReference" else self._catalyst.alias(key, f"__odf_by{number}")
            named.append(column)
            keys.append((key, column.toAttribute()))
        for number, whole in enumerate(wholes):
            recipe = next((recipe for each, recipe in calls if each is whole), None)
            if recipe is not None:
                named += recipe.parts
                known.append((whole, recipe.result))
            else:
                named.append(self._catalyst.alias(whole, f"__odf_as_it_is{number}"))
                known.append((whole, named[-1].toAttribute()))
        inner = node.copy(node.groupingExpressions(), self._catalyst.sequence(named), below, node.hint())
        return self._final(items(node.aggregateExpressions()), known, keys, inner, calls)

    def _window(self, node: Any, _: list[Any], calls: list[tuple[Any, Recipe]], below: Any) -> Any:
        over = self.session._jvm.org.apache.spark.sql.catalyst.expressions.WindowExpression
        made = items(node.windowExpressions())
        kept = [each for each in made if not any(_holds(each, whole) for whole, _ in calls)]
        parts = [
            self._catalyst.under(over(part.child(), whole.windowSpec()), part)
            for whole, recipe in calls
            for part in recipe.parts
        ]
        listed = self._catalyst.sequence([*kept, *parts])
        inner = node.copy(listed, node.partitionSpec(), node.orderSpec(), below, node.hint())
        self._catalyst.note(inner, over_as_sql(node))
        shown = [each.toAttribute() if any(each is one for one in kept) else each for each in made]
        known = [(whole, recipe.result) for whole, recipe in calls]
        return self._final([*items(node.child().output()), *shown], known, [], inner, calls)

    def _final(
        self, made: list[Any], known: list[tuple[Any, Any]], keys: list[tuple[Any, Any]], plan: Any,
        calls: list[tuple[Any, Recipe]],
    ) -> Any:  # fmt: skip
        for layer in itertools.zip_longest(*(recipe.above for _, recipe in calls), fillvalue=()):
            plan = self._with(plan, [each for part in layer for each in part])
        return self._logical.Project(self._catalyst.sequence([replace_parts(each, known, keys) for each in made]), plan)

    def _with(self, plan: Any, more: Sequence[Any]) -> Any:
        if not more:
            return plan
        columns = plan.output()
        for each in more:
            columns = columns.appended(each)
        return self._logical.Project(columns, plan)

    def _recipe(self, call: AggregateCall) -> Recipe:
        known = _RECIPES.setdefault(self.session.sparkContext._gateway, {})
        grids = QUICK if self.grids is BOUNDED and not call.bounded else self.grids
        self.bounded = self.bounded or grids is BOUNDED
        if (call, grids) not in known:
            known[call, grids] = make_recipe(self.session, call, grids)
        return known[call, grids]


def _summing(aggregate: Any) -> Any:
    """Returns the function of an aggregate; where Spark expands it to an average, that average."""
    function = aggregate.aggregateFunction()
    return function.replacement() if kind_of(function) in MEANS else function


def _outermost(expression: Any, wanted: Callable[[Any], bool]) -> list[Any]:
    if wanted(expression):
        return [expression]
    return [found for child in items(expression.children()) for found in _outermost(child, wanted)]


def _holds(expression: Any, whole: Any) -> bool:
    return bool(expression.fastEquals(whole)) or any(_holds(child, whole) for child in items(expression.children()))


_WHOLES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "Aggregate": is_aggregate,
    "Window": lambda part: kind_of(part) == "WindowExpression",
}
