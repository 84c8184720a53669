"""Finds constants in a query that fail for every row, so that the query is refused before its first row.

Examples: an invalid regular expression, a division by zero, ``cast('abc' as int)``. ``trials`` finds candidates in a
plan from which unused columns were removed; Spark's own evaluation says which fail. Expressions that may never be
evaluated are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import IllegalArgumentException, PySparkException
from pyspark.sql import SparkSession

from engines.spark.analysis.determinism import arguments
from engines.spark.analysis.tree import PlanNode, parse_plan
from engines.spark.catalyst.expressions import Catalyst
from engines.spark.catalyst.plans import counterpart, frame_of, inline_ctes, json_of, jvm_object

_RULES: Final = (
    "analysis.EliminateSubqueryAliases",
    "analysis.EliminateView",
    *("optimizer.ColumnPruning",) * 3,
)
"""Spark's rules that remove unused columns."""
UNREADABLE: Final = "INVALID_PARAMETER_VALUE.PATTERN"
"""Spark's condition for an invalid pattern, except in ``split``, where Java's exception comes through."""
_JAVA: Final = re.compile(r"PatternSyntaxException: ([^\n]+)")
MAX_TRIED: Final = 64
"""Most constants of one query that are tried."""
PATTERNS: Final = frozenset({
    "RLike", "Like", "ILike", "RegExpReplace", "RegExpExtract", "RegExpExtractAll", "RegExpInStr", "RegExpCount",
    "RegExpSubStr", "StringSplit",
})  # fmt: skip
"""Functions of a text and a pattern. Constant texts are not matched here, which could take long."""
_DIVISIONS: Final = frozenset({"Divide", "IntegralDivide", "Remainder", "Pmod"})
_BY_SECOND: Final = PATTERNS | _DIVISIONS | {"Encode", "Decode", "StringDecode", "NextDay"}
"""Functions that can fail by their second argument alone, whatever the first is; they
give null if the second is null."""
_SECOND: Final = 1
_PLAINLY_A_PATTERN: Final = re.compile(r"[\w\s%^$.|-]*")
_PLAINLY_A_DIVISOR: Final = re.compile(r"[1-9]")
_GUARDS: Final = {
    **dict.fromkeys(("If", "CaseWhen", "Coalesce", "And", "Or", "NaNvl", "AtLeastNNonNulls", "In", "InSet", "Elt"), 1),
    **dict.fromkeys(("Lag", "Lead"), 2),
    **dict.fromkeys(("TryEval", "LambdaFunction", "GetStructField", "GetArrayStructFields", "GetArrayItem"), 0),
    **dict.fromkeys(("GetMapValue", "ElementAt", "IsNull", "IsNotNull"), 0),
}
"""Expressions that may not evaluate all their arguments -> how many of the first ones they certainly evaluate."""
_AGGREGATE: Final = "AggregateExpression"
_FUNCTIONS: Final = frozenset({_AGGREGATE, "WindowExpression"})
"""Expressions around a function of many rows, which cannot be evaluated by itself, though its arguments can."""
_NO_VALUES: Final = _FUNCTIONS | {"Alias", "SortOrder"}
"""Expressions that are not evaluated by themselves."""
_PLAIN: Final = frozenset({"Literal", "UnaryMinus", "CreateArray", "CreateNamedStruct", "Cast"})
"""Expressions that never fail, except for casts of texts."""


@dataclass(frozen=True, slots=True)
class ConstantFailure:
    """An expression that fails for every row."""

    node: PlanNode
    expression: Any
    """The expression as an object of the JVM."""
    fault: PySparkException | str
    """Spark's error, or Java's message about an invalid pattern."""


def failing(session: SparkSession, plan: Any, root: PlanNode) -> list[ConstantFailure]:
    """Lists the expressions of an analysed plan that fail for every row; of nested ones the innermost.
    ``root``: the plan as a tree."""
    if next(trials(root), None) is None:
        return []
    try:
        pruned = _prune(session, plan)
        below = parse_plan(json_of(pruned))
    except (PySparkException, Py4JJavaError):  # the rules do not know this plan: faults will show when rows are read
        return []
    catalyst = Catalyst(session)
    tried = [(each, counterpart(pruned, below, each.node)) for each in islice(trials(below), MAX_TRIED)]
    calls = [(each, found, _call(session, each, found)) for each, found in tried if found is not None]
    if not calls or _fault(session, catalyst, [call for _, _, call in calls]) is None:
        return []
    failures: list[ConstantFailure] = []
    for each, found, call in reversed(calls):
        inside = {id(part.fields) for part in each.node.preorder()}
        if not any(id(known.node.fields) in inside for known in failures):
            failure = _failure(each.node, found, _fault(session, catalyst, [call]))
            failures += [failure] if failure is not None else []
    return failures[::-1]


def _prune(session: SparkSession, plan: Any) -> Any:
    plan = inline_ctes(session, plan)
    for rule in _RULES:
        plan = jvm_object(session, f"org.apache.spark.sql.catalyst.{rule}").apply(plan)
    return plan


def _call(session: SparkSession, trial: Trial, found: Any) -> Any:
    """Returns the expression with a default value in place of each argument that depends on rows."""
    plain = jvm_object(session, "org.apache.spark.sql.catalyst.expressions.Literal.default")
    children = found.children()
    for at in trial.variables:
        children = children.updated(at, plain(children.apply(at).dataType()))
    return found.withNewChildren(children) if trial.variables else found


def _fault(session: SparkSession, catalyst: Catalyst, calls: Sequence[Any]) -> PySparkException | Py4JJavaError | None:
    """Evaluates expressions over constants. Returns the error if any fails, else ``None``."""
    nothing = jvm_object(session, "org.apache.spark.sql.catalyst.plans.logical.OneRowRelation")
    try:
        frame = frame_of(session, catalyst.project([catalyst.alias(call, "x") for call in calls], nothing()))
        frame._jdf.collectAsList()  # not toArrow: Python cannot read values of every type
    except (PySparkException, Py4JJavaError) as fault:
        return fault
    return None


def _failure(node: PlanNode, found: Any, fault: PySparkException | Py4JJavaError | None) -> ConstantFailure | None:
    """Makes the failure for an error; ``None`` if there is none, or if it may not be the query's fault."""
    if isinstance(fault, PySparkException) and fault.getCondition() is not None:
        return ConstantFailure(node, found, fault)
    said = _JAVA.search(str(fault)) if node.kind in PATTERNS else None
    if said is not None:
        return ConstantFailure(node, found, said[1])
    by_itself = node.kind in PATTERNS and isinstance(fault, IllegalArgumentException)
    return ConstantFailure(node, found, str(fault).partition("\n")[0]) if by_itself else None


@dataclass(frozen=True, slots=True)
class Trial:
    """An expression that is evaluated for every row of its operator, and that may fail because of its constants."""

    node: PlanNode
    variables: tuple[int, ...] = ()
    """Arguments to replace by a default value; empty: all arguments are constant."""


def trials(plan: PlanNode) -> Iterator[Trial]:
    """Yields the trials of an analysed plan, inner expressions last."""
    for operator in plan.preorder():
        stack = [] if operator.kind == "Generate" else arguments(operator)
        if operator.kind == "Filter":
            stack = [part for each in stack for part in _conjuncts(each)]
        while stack:
            node = stack.pop()
            if node.kind in _FUNCTIONS:
                function, *beside = node.children
                stack += [function] if function.kind in _FUNCTIONS else _evaluated_children(function)
                stack += beside if node.kind == _AGGREGATE else ()
            elif _is_constant(node):
                if any(_may_fail(part) for part in node.preorder()):
                    yield Trial(node)
            else:
                if _may_fail_by_second(node):
                    yield Trial(node, _variables(node))
                stack += _evaluated_children(node)


def _may_fail_by_second(node: PlanNode) -> bool:
    if node.kind not in _BY_SECOND or len(node.children) <= _SECOND or not _is_constant(node.children[_SECOND]):
        return False
    second = node.children[_SECOND]
    while second.kind == "Cast":
        second = second.only
    if second.kind != "Literal":
        return True
    value = second.fields.get("value")
    if value is None or node.kind in _DIVISIONS:
        return value is not None and _PLAINLY_A_DIVISOR.search(str(value)) is None
    return node.kind not in PATTERNS or _PLAINLY_A_PATTERN.fullmatch(str(value)) is None


def _variables(node: PlanNode) -> tuple[int, ...]:
    """Lists the positions of arguments that depend on rows; of a pattern function also that of the text."""
    first = (0,) if node.kind in PATTERNS else ()
    return tuple(dict.fromkeys([*first, *(at for at, each in enumerate(node.children) if not _is_constant(each))]))


def _conjuncts(condition: PlanNode) -> list[PlanNode]:
    """Splits ``a and b``: it is evaluated like one filter after another."""
    if condition.kind != "And":
        return [condition]
    return [part for each in condition.children for part in _conjuncts(each)]


def _evaluated_children(node: PlanNode) -> tuple[PlanNode, ...]:
    return node.children[: _GUARDS.get(node.kind, len(node.children))]


def _is_constant(node: PlanNode) -> bool:
    return all(
        part.kind not in _NO_VALUES and part.kind not in PATTERNS and (part.kind == "Literal" or bool(part.children))
        for part in node.preorder()
    )


def _may_fail(node: PlanNode) -> bool:
    if node.kind == "Cast":
        return node.only.kind != "Literal" or node.only.type_name == "string"
    return node.kind not in _PLAIN
