"""Makes small pieces of Catalyst plans in the JVM, as for ``row_lineage``. Makes no decisions.

Expressions are given as texts, which Spark's own parser reads and its analyser resolves against the operator below; so
no piece depends on how the classes of this Spark version are constructed. One per request, over its session.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql import SparkSession

from engines.spark.catalyst.plans import inline_ctes, items, jvm_object, kind_of


def skip_commands(session: SparkSession) -> Any:
    """Returns the option with which Spark analyses a plan and executes nothing."""
    return jvm_object(session, "org.apache.spark.sql.execution.CommandExecutionMode.SKIP", lambda skip: skip())


class Catalyst:
    """Makes and analyses operators of one session."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._jvm: Any = session._jvm
        self._state = session._jsparkSession.sessionState()
        self._skip = skip_commands(session)
        self._logical = jvm_object(session, "org.apache.spark.sql.catalyst.plans.logical")
        self._expressions = jvm_object(session, "org.apache.spark.sql.catalyst.expressions")
        self._tag = jvm_object(session, "org.apache.spark.sql.catalyst.trees.TreeNodeTag")("odf.asked")

    def inline(self, plan: Any) -> Any:
        """Expands common table expressions where they are used."""
        return inline_ctes(self._session, plan)

    def analyse(self, plan: Any) -> Any:
        """Resolves all new nodes of a plan. Raises Spark's AnalysisException."""
        return self._state.executePlan(plan, self._skip).analyzed()

    def read(self, text: str) -> Any:
        return self._state.sqlParser().parseExpression(text)

    def alias(self, expression: Any, name: str) -> Any:
        """Aliases a resolved expression with a name of our own."""
        fresh, none, empty = self._expressions.NamedExpression.newExprId(), self._jvm.scala.Option.empty(), self.empty()
        return self._expressions.Alias(expression, name, fresh, empty, none, empty)

    def under(self, expression: Any, column: Any) -> Any:
        """Aliases a resolved expression with the name and the id of a column."""
        none, empty = self._jvm.scala.Option.empty(), self.empty()
        return self._expressions.Alias(expression, column.name(), column.exprId(), empty, none, empty)

    def note(self, made: Any, text: str) -> None:
        """Attaches a text about its origin to an operator; it stays when the children change."""
        made.setTagValue(self._tag, text)

    def note_of(self, node: Any) -> str | None:
        """Returns the text that ``note`` attached to an operator, if any."""
        found = node.getTagValue(self._tag)
        return str(found.get()) if found.isDefined() else None

    def over(self, function: str, window: Any, name: str) -> Any:
        """Builds ``function OVER window AS name``: the function as a text, the window as in a plan."""
        return self.alias(self._expressions.WindowExpression(self.read(function), window), name)

    def window(self, like: Any, by_range: bool, low: str, high: str) -> Any:
        """Builds a window like another with a new frame; bounds are ``Unbounded…`` or ``CurrentRow``."""
        classes = self._expressions
        kind = "RangeFrame" if by_range else "RowFrame"
        frame = classes.SpecifiedWindowFrame(self._one(kind), self._one(low), self._one(high))
        return classes.WindowSpecDefinition(like.partitionSpec(), like.orderSpec(), frame)

    def reaching(self, like: Any) -> Any | None:
        """Extends a frame of rows that begins after its own row, or ends before it, to that row."""
        frame = like.frameSpecification()
        classes, rows, own = self._expressions, self._one("RowFrame"), self._one("CurrentRow")
        if not kind_of(frame.frameType()).startswith("RowFrame"):
            return None
        if _rows(frame.upper()) < 0:
            longer = classes.SpecifiedWindowFrame(rows, frame.lower(), own)
        elif _rows(frame.lower()) > 0:
            longer = classes.SpecifiedWindowFrame(rows, own, frame.upper())
        else:
            return None
        return classes.WindowSpecDefinition(like.partitionSpec(), like.orderSpec(), longer)

    def project(self, columns: Iterable[Any], child: Any) -> Any:
        return self.analyse(self._logical.Project(self.sequence(columns), child))

    def aggregate(self, keys: Iterable[Any], made: Iterable[Any], child: Any) -> Any:
        node = self._logical.Aggregate(self.sequence(keys), self.sequence(made), child, self._jvm.scala.Option.empty())
        return self.analyse(node)

    def join_type(self, name: str) -> Any:
        return self._jvm.org.apache.spark.sql.catalyst.plans.JoinType.apply(name)

    def sequence(self, items: Iterable[Any]) -> Any:
        return self._jvm.PythonUtils.toSeq(list(items))

    def empty(self) -> Any:
        return self.sequence(())

    def _one(self, name: str) -> Any:
        return getattr(getattr(self._expressions, name + "$"), "MODULE$")


def over_as_sql(window: Any) -> str:
    """Formats the functions of a window operator as SQL."""
    return ", ".join(str(item.child().sql()) for item in items(window.windowExpressions()))


def column(plan: Any, name: str) -> Any | None:
    """Returns the output attribute of that name."""
    return next((item for item in items(plan.output()) if item.name() == name), None)


def _rows(bound: Any) -> int:
    """Returns the distance of a frame's bound from the current row; 0 for that row, and where it is unbounded."""
    return 0 if kind_of(bound).startswith(("CurrentRow", "Unbounded")) else int(bound.eval(None))


def parts(expression: Any) -> list[Any]:
    """Lists an expression and all expressions below it, in preorder."""
    found = [expression]
    for child in items(expression.children()):
        found.extend(parts(child))
    return found


def references(expressions: Sequence[Any]) -> frozenset[int]:
    """Returns the ids of the attributes that expressions read."""
    return frozenset(
        part.exprId().id()
        for expression in expressions
        for part in parts(expression)
        if kind_of(part) == "AttributeReference"
    )
