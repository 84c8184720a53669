"""Evaluates constants of a query with Spark before any row is read, to find those that fail."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import IllegalArgumentException, PySparkException
from pyspark.sql import SparkSession

from engines.spark.analysis.constants import MAX_TRIED, PATTERNS, Trial, trials
from engines.spark.analysis.tree import Node, parse_plan
from engines.spark.catalyst.expressions import Catalyst
from engines.spark.catalyst.jvm_objects import jvm_object
from engines.spark.catalyst.plans import counterpart, frame_of, inlined, json_of

_RULES: Final = (
    "analysis.EliminateSubqueryAliases", "analysis.EliminateView",
    *("optimizer.ColumnPruning",) * 3,
)  # fmt: skip
"""Spark's rules that leave out columns that nobody uses."""
UNREADABLE: Final = "INVALID_PARAMETER_VALUE.PATTERN"
"""What Spark says of an unreadable pattern, but for ``split``, which lets Java's exception through."""
_JAVA: Final = re.compile(r"PatternSyntaxException: ([^\n]+)")


@dataclass(frozen=True, slots=True)
class Failure:
    """An expression that has no value, whatever the rows are."""

    node: Node
    expression: Any
    """Of the JVM."""
    fault: PySparkException | str
    """What Spark says, or Java of a pattern that is none."""


def failing(session: SparkSession, plan: Any, root: Node) -> list[Failure]:
    """What of an analysed plan, ``root`` as a tree, fails for every row; of one in another the inner one alone."""
    if next(trials(root), None) is None:
        return []
    try:
        pruned = _pruned(session, plan)
        below = parse_plan(json_of(pruned))
    except (PySparkException, Py4JJavaError):  # a plan that the rules do not know: its rows will tell
        return []
    catalyst = Catalyst(session)
    tried = [(each, counterpart(pruned, below, each.node)) for each in islice(trials(below), MAX_TRIED)]
    calls = [(each, found, _call(session, each, found)) for each, found in tried if found is not None]
    if not calls or _fault(session, catalyst, [call for _, _, call in calls]) is None:
        return []
    failures: list[Failure] = []
    for each, found, call in reversed(calls):
        inside = {id(part.fields) for part in each.node.preorder()}
        if not any(id(known.node.fields) in inside for known in failures):
            failure = _failure(each.node, found, _fault(session, catalyst, [call]))
            failures += [failure] if failure is not None else []
    return failures[::-1]


def _pruned(session: SparkSession, plan: Any) -> Any:
    plan = inlined(session, plan)
    for rule in _RULES:
        plan = jvm_object(session, f"org.apache.spark.sql.catalyst.{rule}").apply(plan)
    return plan


def _call(session: SparkSession, trial: Trial, found: Any) -> Any:
    """The expression with a plain value for each argument that rows give."""
    plain = jvm_object(session, "org.apache.spark.sql.catalyst.expressions.Literal.default")
    children = found.children()
    for at in trial.variables:
        children = children.updated(at, plain(children.apply(at).dataType()))
    return found.withNewChildren(children) if trial.variables else found


def _fault(session: SparkSession, catalyst: Catalyst, calls: Sequence[Any]) -> PySparkException | Py4JJavaError | None:
    """Why expressions over constants have no values; ``None`` if they have."""
    nothing = jvm_object(session, "org.apache.spark.sql.catalyst.plans.logical.OneRowRelation")
    try:
        frame = frame_of(session, catalyst.project([catalyst.named(call, "x") for call in calls], nothing()))
        frame._jdf.collectAsList()  # Python could not read values of every type
    except (PySparkException, Py4JJavaError) as fault:
        return fault
    return None


def _failure(node: Node, found: Any, fault: PySparkException | Py4JJavaError | None) -> Failure | None:
    """``None`` as well for what is not known to be the query's fault."""
    if isinstance(fault, PySparkException) and fault.getCondition() is not None:
        return Failure(node, found, fault)
    said = _JAVA.search(str(fault)) if node.kind in PATTERNS else None
    if said is not None:
        return Failure(node, found, said[1])
    by_itself = node.kind in PATTERNS and isinstance(fault, IllegalArgumentException)
    return Failure(node, found, str(fault).partition("\n")[0]) if by_itself else None
