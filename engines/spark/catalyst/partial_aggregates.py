"""Splits an aggregation into bare aggregates, which can be merged, and the expressions over them, as JVM plans.

``sum(v) / count(*)`` cannot be merged, but its sum and its count can. So over inputs that only grow a table keeps the
bare aggregates of each key, and evaluates the rest of the query over them whenever they change. Spec:
docs/spec/engine-semantics.md#table-mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from engines.spark.analysis.tables import BARE_KEY, BARE_PART, LISTS, MERGED_BY
from engines.spark.catalyst.exact import complete_plan
from engines.spark.catalyst.plans import (
    HIDDEN_ROUND,
    carry_hidden,
    inline_ctes,
    is_aggregate,
    items,
    kind_of,
    project,
    replace_parts,
)
from engines.spark.rows.tables import frame_of_rows


@dataclass(frozen=True, slots=True)
class Partials:
    """A query whose only aggregation is below projections and filters."""

    session: SparkSession
    plan: Any
    """The plan with exact aggregates, and with common table expressions expanded where they are used."""

    @classmethod
    def of(cls, session: SparkSession, plan: Any) -> Partials:
        return cls(session, inline_ctes(session, complete_plan(session, plan)))

    def merge(self) -> dict[str, str]:
        """Returns the function that merges each part, by the part's column name."""
        kinds = [kind_of(part.aggregateFunction()) for part in _aggregates(_core(self.plan))]
        return {
            f"{BARE_PART}{number}": LISTS if kind == "CollectList" else MERGED_BY[kind]
            for number, kind in enumerate(kinds)
        }

    def parts(self) -> pa.Table:
        """Computes the keys, bare aggregates and rounds of the rows in the views."""
        core = _core(self.plan)
        made = core.groupingExpressions()
        sequence = made.take(0)
        for number, key in enumerate(items(made)):
            sequence = sequence.appended(self._alias(key, f"{BARE_KEY}{number}"))
        for number, part in enumerate(_aggregates(core)):
            sequence = sequence.appended(self._alias(part, f"{BARE_PART}{number}"))
        bare = core.copy(made, sequence, core.child(), core.hint())
        return carry_hidden(self.session, bare, (HIDDEN_ROUND,)).toArrow()

    def whole(self, parts: pa.Table) -> pa.Table:
        """Computes the query's result from given parts; both have a column ``HIDDEN_ROUND``."""
        names = [name for name in parts.column_names if name != HIDDEN_ROUND]
        frame = frame_of_rows(self.session, parts).selectExpr(*names)
        source = frame._jdf.queryExecution().analyzed()
        return carry_hidden(self.session, self._over(self.plan, source), (HIDDEN_ROUND,)).toArrow()

    def _over(self, node: Any, source: Any) -> Any:
        """Returns the plan with its aggregation replaced by the merged parts ``source``."""
        if node.getClass().getSimpleName() != "Aggregate":
            children = node.children()
            return node.withNewChildren(children.updated(0, self._over(children.apply(0), source)))
        columns = {attribute.name(): attribute for attribute in items(source.output())}
        keys = [(key, columns[f"{BARE_KEY}{at}"]) for at, key in enumerate(items(node.groupingExpressions()))]
        parts = [(part, columns[f"{BARE_PART}{at}"]) for at, part in enumerate(_aggregates(node))]
        made = node.aggregateExpressions()
        for position, each in enumerate(items(made)):
            inner = each.child() if kind_of(each) == "Alias" else each
            made = made.updated(position, self._alias(replace_parts(inner, parts, keys), each.name(), each.exprId()))
        return project(self.session, made, source)

    def _alias(self, expression: Any, name: str, identity: Any = None) -> Any:
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
    """Lists the aggregates in the order in which they are written, as the classification numbers them."""
    found = []
    stack = items(core.aggregateExpressions())[::-1]
    while stack:
        expression = stack.pop()
        if is_aggregate(expression):
            found.append(expression)
        else:
            stack += items(expression.children())[::-1]
    return found
