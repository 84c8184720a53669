"""An aggregation taken apart: bare aggregates, which can be merged, and what a query computes of them. JVM plans.

``sum(v) / count(*)`` cannot be merged, its sum and its count can. So over inputs that only grow a table keeps the bare
aggregates of each key, and evaluates the rest of the query over them whenever they change. Engine semantics, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from engines.spark.analysis.tables import BARE_KEY, BARE_PART
from engines.spark.plans import HIDDEN_ROUND, carried, inlined, items, project
from engines.spark.rows import frame_of_rows


@dataclass(frozen=True, slots=True)
class Partials:
    """A query whose only aggregation stands under projections and filters."""

    session: SparkSession
    plan: Any
    """Analysed; common table expressions written in where they are used."""

    @classmethod
    def of(cls, session: SparkSession, plan: Any) -> Partials:
        return cls(session, inlined(session, plan))

    def parts(self) -> pa.Table:
        """Keys, bare aggregates and the round of each, of the rows in the views."""
        core = _core(self.plan)
        made = core.groupingExpressions()
        sequence = made.take(0)
        for number, key in enumerate(items(made)):
            sequence = sequence.appended(self._named(key, f"{BARE_KEY}{number}"))
        for number, part in enumerate(_aggregates(core)):
            sequence = sequence.appended(self._named(part, f"{BARE_PART}{number}"))
        bare = core.copy(made, sequence, core.child(), core.hint())
        return carried(self.session, bare, (HIDDEN_ROUND,)).toArrow()

    def whole(self, parts: pa.Table) -> pa.Table:
        """The query's result for given parts, which have a column ``HIDDEN_ROUND``; so has the result."""
        names = [name for name in parts.column_names if name != HIDDEN_ROUND]
        frame = frame_of_rows(self.session, parts).selectExpr(*names)
        source = frame._jdf.queryExecution().analyzed()
        return carried(self.session, self._over(self.plan, source), (HIDDEN_ROUND,)).toArrow()

    def _over(self, node: Any, source: Any) -> Any:
        """The plan with its aggregation replaced by parts that were merged."""
        if node.getClass().getSimpleName() != "Aggregate":
            children = node.children()
            return node.withNewChildren(children.updated(0, self._over(children.apply(0), source)))
        columns = {attribute.name(): attribute for attribute in items(source.output())}
        keys = [(key, columns[f"{BARE_KEY}{at}"]) for at, key in enumerate(items(node.groupingExpressions()))]
        numbers = iter(range(len(columns)))

        def replaced(expression: Any) -> Any:
            if _is_aggregate(expression):
                return columns[f"{BARE_PART}{next(numbers)}"]
            for key, column in keys:
                if expression.semanticEquals(key):
                    return column
            children = expression.children()
            for position, child in enumerate(items(children)):
                children = children.updated(position, replaced(child))
            return expression.withNewChildren(children) if children.size() else expression

        made = node.aggregateExpressions()
        for position, each in enumerate(items(made)):
            inner = each.child() if each.getClass().getSimpleName() == "Alias" else each
            made = made.updated(position, self._named(replaced(inner), each.name(), each.exprId()))
        return project(self.session, made, source)

    def _named(self, expression: Any, name: str, identity: Any = None) -> Any:
        jvm = self.session._jvm
        expressions = jvm.org.apache.spark.sql.catalyst.expressions
        if identity is None:
            identity = getattr(getattr(expressions, "NamedExpression$"), "MODULE$").newExprId()
        nothing = getattr(getattr(jvm.scala.collection.immutable, "Nil$"), "MODULE$")
        none = getattr(getattr(jvm.scala, "None$"), "MODULE$")
        return expressions.Alias(expression, name, identity, nothing, none, nothing)


def _core(plan: Any) -> Any:
    while plan.getClass().getSimpleName() != "Aggregate":
        plan = plan.children().apply(0)
    return plan


def _aggregates(core: Any) -> list[Any]:
    """In the order in which they are written, as the classification counts them."""
    found = []
    stack = items(core.aggregateExpressions())[::-1]
    while stack:
        expression = stack.pop()
        if _is_aggregate(expression):
            found.append(expression)
        else:
            stack += items(expression.children())[::-1]
    return found


def _is_aggregate(expression: Any) -> bool:
    return bool(expression.getClass().getSimpleName() == "AggregateExpression")
