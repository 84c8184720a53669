"""Works on analysed plans in the JVM: makes DataFrames of them, finds places in the text, carries hidden columns
through.

All functions work on one session. ``parsing`` makes plans from texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any, Final
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from engines.spark.analysis.tree import PlanNode, Step, way_to

HIDDEN_OFFSET: Final = "__odf_offset"
HIDDEN_OP: Final = "__odf_op"
HIDDEN_SOURCE: Final = "__odf_source"
HIDDEN_BEFORE: Final = "__odf_before"
HIDDEN_ROUND: Final = "__odf_round"
"""In a changing table: the key and tick for which a row is evaluated."""
HIDDEN_ROW: Final = "__odf_row"
"""In a ranking: the row's number among the rows that are ranked; of two that tie, the lower number comes first."""
HIDDEN: Final = (HIDDEN_OFFSET, HIDDEN_OP, HIDDEN_SOURCE, HIDDEN_BEFORE)
"""Columns of every row of an input: offset, op, number of the input, watermark before its block (microseconds)."""
HIDDEN_OF_ONE: Final = (HIDDEN_OFFSET, HIDDEN_OP)
"""The columns that suffice for a single input."""
HIDDEN_OF_ADDITIONS: Final = (HIDDEN_OFFSET,)
"""The columns that suffice for a single input of additions only."""
_INLINE: Final = "org.apache.spark.sql.catalyst.optimizer.InlineCTE"
_IDS: Final = re.compile(r"#(\d+)")
_ORIGIN: Final = re.compile(r"Origin\(Some\((\d+)\),Some\((\d+)\),")
_KNOWN: Final[WeakKeyDictionary[Any, dict[str, Any]]] = WeakKeyDictionary()


def jvm_object(session: SparkSession, name: str, make: Callable[[Any], Any] = lambda found: found) -> Any:
    """Returns a class or static member by name; or the result of ``make`` for it, cached, if that is a constant.

    Looks each name up once per JVM, since every step of a dotted name is a round trip. The cache holds nothing of a
    session or a query, and is dropped with the gateway that it came through. Each name must always have the same
    ``make``.
    """
    known = _KNOWN.setdefault(session.sparkContext._gateway, {})
    if name not in known:
        known[name] = make(reduce(getattr, name.split("."), session._jvm))
    return known[name]


def frame_of(session: SparkSession, plan: Any) -> DataFrame:
    """Makes a DataFrame over a plan. Must not be called with a command, since that would run it."""
    dataset = jvm_object(session, "org.apache.spark.sql.classic.Dataset.ofRows")(session._jsparkSession, plan)
    return DataFrame(dataset, session)


def json_of(plan: Any) -> str:
    """Encodes the plan as ``parse_plan`` reads it.

    For an ``Expand`` that Spark made over a UNION it writes null in place of the rows, since these are lists of another
    class; they are written here, each expression by itself.
    """
    text = str(plan.toJSON())
    if '"projections":null' not in text:
        return text
    nodes = json.loads(text)
    for node, operator in zip(nodes, _operators(plan), strict=True):
        if node.get("projections", ()) is None:
            rows = [items(row) for row in items(operator.projections())]
            node["projections"] = [[json.loads(each.toJSON()) for each in row] for row in rows]
    return json.dumps(nodes)


def _operators(plan: Any) -> Iterator[Any]:
    yield plan
    for child in items(plan.children()):
        yield from _operators(child)


def place_of(plan: Any, root: PlanNode, culprit: PlanNode) -> tuple[int, int] | None:
    """Returns (line, column) of an operator or expression in its text, counted from 1; ``None`` if unknown.

    The plan's JSON has no positions, so the node is looked up in the plan, by its place in ``root``, which was read
    from that JSON.
    """
    found = counterpart(plan, root, culprit)
    place = origin_of(found) if found is not None else None
    return place or _find_place(plan, culprit)


def counterpart(plan: Any, root: PlanNode, wanted: PlanNode) -> Any | None:
    """Returns the JVM operator or expression that a node of ``root``, read from the plan's JSON, was made from;
    ``None`` if it is not at that place."""
    way = way_to(root, wanted)
    if way is None:
        return None
    try:
        found = _at_the_end_of(way, plan)
        return found if kind_of(found) == wanted.kind else None
    except Py4JError:  # a field that is not as the JSON shows it
        return None


def origin_of(node: Any) -> tuple[int, int] | None:
    """Returns (line, column) of an operator or expression, counted from 1, if Spark knows them."""
    said = _ORIGIN.match(str(node.origin().toString()))
    return (int(said[1]), int(said[2]) + 1) if said is not None else None


def text_of(node: Any) -> str | None:
    """Returns the whole text that an operator or expression was parsed from, if Spark knows it."""
    text = node.origin().sqlText()
    return str(text.get()) if text.isDefined() else None


def _at_the_end_of(way: Sequence[Step], plan: Any) -> Any:
    """Returns the object at the end of a path through the plan. Raises Py4JError."""
    node = plan
    for step in way:
        if isinstance(step, int):
            node = node.children().apply(step)
            continue
        for part in step:
            node = node.apply(part) if isinstance(part, int) else getattr(node, part)()
        if kind_of(node) == "Some":
            node = node.get()
    return node


def _find_place(plan: Any, culprit: PlanNode) -> tuple[int, int] | None:
    """Finds the place of a similar node: same classes below it, same attributes, same name of an
    unresolved function."""
    parts = list(culprit.preorder())
    wanted = {part.id for part in parts if part.kind == "AttributeReference"} - {None}
    kinds = [part.kind for part in parts]
    called = str(culprit.fields.get("nameParts", "[]"))[1:-1].rpartition(", ")[2].lower()
    fallback = None
    for node in _nodes(plan):
        if node.getClass().getSimpleName() != culprit.kind:
            continue
        place = origin_of(node)
        if place is None:
            continue
        alike = kinds == [part.getClass().getSimpleName() for part in _parts(node)]
        shown = str(node.toString())
        if alike and called in shown.lower() and wanted <= {int(found) for found in _IDS.findall(shown)}:
            return place
        fallback = fallback or place
    return fallback


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for expression in items(plan.expressions()):
        yield from _parts(expression)
    for child in items(plan.children()):
        yield from _nodes(child)


def _parts(expression: Any) -> Iterator[Any]:
    yield expression
    for child in items(expression.children()):
        yield from _parts(child)


def items(sequence: Any) -> list[Any]:
    return [sequence.apply(position) for position in range(sequence.size())]


def carry_hidden(session: SparkSession, plan: Any, names: Sequence[str]) -> DataFrame:
    """Adds the hidden columns of a query's inputs as its last columns; they describe the row of origin.

    Rows are only grouped, ranked or made distinct together with others that agree in them, except for ``HIDDEN_ROW``.
    Spark resolves columns by id, so they need no place in any list that a person wrote.
    """
    return frame_of(session, widen_plan(session, inline_ctes(session, plan), names))


def widen_plan(session: SparkSession, plan: Any, names: Sequence[str]) -> Any:
    """Makes the plan of ``carried``, for a plan without common table expressions."""
    below, hidden = _carry(session, plan, names)
    sequence = plan.output()
    for attribute in hidden:
        sequence = sequence.appended(attribute)
    return project(session, sequence, below)


def _carry(session: SparkSession, plan: Any, names: Sequence[str]) -> tuple[Any, list[Any]]:
    output = plan.output()
    if names[0] in str(output.toString()):  # one call; the name of each attribute would take two
        present = {attribute.name(): attribute for attribute in items(output)}
        if names[0] in present:
            return plan, [present[name] for name in names]
    kind = plan.getClass().getSimpleName()
    children = plan.children()
    hidden: list[Any] = []
    everywhere = True
    for position, child in enumerate(items(children)):
        below, columns = _carry(session, child, names)
        everywhere = everywhere and bool(columns)
        if kind == "Union":
            sequence = child.output()
            for attribute in columns:
                sequence = sequence.appended(attribute)
            below = project(session, sequence, below)
        hidden = hidden or columns
        children = children.updated(position, below)
    # Versions have no hidden columns, so rows joined with them keep their own.
    if kind == "Join" and everywhere:
        return _join(session, plan, children, names)
    if kind == "Project":
        listed = plan.projectList()
        for attribute in hidden:
            listed = listed.appended(attribute)
        return project(session, listed, children.apply(0)), hidden
    if kind == "Aggregate":
        keys, made = plan.groupingExpressions(), plan.aggregateExpressions()
        for attribute in hidden:
            keys, made = keys.appended(attribute), made.appended(attribute)
        return plan.copy(keys, made, children.apply(0), plan.hint()), hidden
    if kind == "Window":
        keys, order = plan.partitionSpec(), plan.orderSpec()
        for attribute in hidden:
            if attribute.name() == HIDDEN_ROW:
                order = order.appended(_ascending(session, attribute)) if _numbers_rows(plan) else order
            else:
                keys = keys.appended(attribute)
        return plan.copy(plan.windowExpressions(), keys, order, children.apply(0), plan.hint()), hidden
    return plan.withNewChildren(children), hidden


def _numbers_rows(window: Any) -> bool:
    """Whether a window numbers rows, so that it separates rows that tie; ranks do not."""
    return "row_number()" in str(window.windowExpressions().toString())


def _ascending(session: SparkSession, attribute: Any) -> Any:
    expressions = session._jvm.org.apache.spark.sql.catalyst.expressions
    direction, nulls = (getattr(getattr(expressions, name), "MODULE$") for name in ("Ascending$", "NullsFirst$"))
    return expressions.SortOrder(attribute, direction, nulls, attribute.children())


def _join(session: SparkSession, plan: Any, children: Any, names: Sequence[str]) -> tuple[Any, list[Any]]:
    """Makes a join in which rows meet only if they agree in the hidden columns; these are taken from
    the preserved side."""
    expressions = session._jvm.org.apache.spark.sql.catalyst.expressions
    sides = [items(child.output()) for child in items(children)]
    left, right = ([_find_attribute(side, name) for name in names] for side in sides)
    condition = plan.condition()
    terms = [condition.get()] if condition.isDefined() else []
    terms += [expressions.EqualTo(one, other) for one, other in zip(left, right, strict=True)]
    whole = reduce(expressions.And, terms)
    some = session._jvm.scala.Some(whole)
    met = plan.copy(children.apply(0), children.apply(1), plan.joinType(), some, plan.hint())
    return met, right if plan.joinType().sql() == "RIGHT OUTER" else left


def _find_attribute(attributes: Sequence[Any], name: str) -> Any:
    return next(attribute for attribute in attributes if attribute.name() == name)


def inline_ctes(session: SparkSession, plan: Any) -> Any:
    """Expands common table expressions where they are used."""
    return jvm_object(session, _INLINE, lambda rule: _always(session, rule)).apply(plan)


def _always(session: SparkSession, rule: Any) -> Any:
    """Makes Spark's own rule, whose flags differ by version: the first means always, the others are set to false."""
    constructors = session._jvm.java.lang.Class.forName(_INLINE).getConstructors()
    flags = [True] + [False] * (max(constructor.getParameterCount() for constructor in constructors) - 1)
    return rule(*flags)


def project(session: SparkSession, columns: Any, child: Any) -> Any:
    return jvm_object(session, "org.apache.spark.sql.catalyst.plans.logical.Project")(columns, child)


def kind_of(node: Any) -> str:
    """Returns the class name of an operator or expression, without its package."""
    return str(node.getClass().getSimpleName())


def is_aggregate(expression: Any) -> bool:
    return kind_of(expression) == "AggregateExpression"


def replace_parts(expression: Any, known: Sequence[tuple[Any, Any]], keys: Sequence[tuple[Any, Any]]) -> Any:
    """Rewrites an expression over an aggregation's output: ``known`` pairs aggregates with columns,
    ``keys`` pairs keys."""
    for whole, column in known:
        if expression.fastEquals(whole):
            return column
    for key, column in keys:
        if expression.semanticEquals(key):
            return column
    children = expression.children()
    for position, child in enumerate(items(children)):
        children = children.updated(position, replace_parts(child, known, keys))
    return expression.withNewChildren(children) if children.size() else expression
