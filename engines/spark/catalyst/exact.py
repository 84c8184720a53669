"""Makes JVM plans that compute aggregates exactly, whatever the order of the rows, and round them once.

Spark adds floating point in whatever order rows come, so the last digits of ``avg`` would depend on how an input was
cut into files. Here every number is split into whole numbers on a fixed grid of powers of two (``analysis.exact``).
Those are added as BIGINT, which is exact, needs no order, and can be merged. The aggregate is computed from these sums
once per group, with whole numbers of any size, and rounded once to the nearest double (``exact_recipes``). ``sum`` over
BIGINT and over decimals of 29 digits and more is exact in the same way.

Numbers that are not on the grid are rare: below about 1e-13 with all their digits, or beyond 1.8e19. The quick plan
only notices them (or a sum that leaves its BIGINT), and then the complete plan runs instead, which collects them.
Before both, sums, means and variances are tried with fewer sums and a bound of their error (``certified``). All give
the same value for every group, so the result does not show which of them ran. ADR 20.
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
    FLOATS,
    MEANS,
    MOMENTS,
    QUICK,
    ROOM,
    AggregateCall,
    Grids,
    digits_of,
)
from engines.spark.catalyst.exact_recipes import TOO_COARSE, WHOLE, Recipe, make_recipe
from engines.spark.catalyst.expressions import Catalyst, over_as_sql
from engines.spark.catalyst.plans import is_aggregate, items, kind_of, replace_parts

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
        wholes = [part for each in items(made) for part in _outermost(each, _WHOLES[kind])]
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
        types = tuple(str(each.dataType().simpleString()) for each in items(function.children()))
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
            for layer in itertools.zip_longest(*(each.layers for each in recipes.values()), fillvalue=()):
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
