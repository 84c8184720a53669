"""Finds constants of a query that fail whatever the rows are, so that it is refused before its first row. Pure.

A regular expression that nobody can read, a division by zero, ``cast('abc' as int)``: here they are found in a plan
without columns that nobody uses; Spark's own evaluation says which fail. What may not be evaluated is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from engines.spark.analysis.determinism import arguments
from engines.spark.analysis.tree import Node

MAX_TRIED: Final = 64
"""Constants of one query that are tried."""
PATTERNS: Final = frozenset({
    "RLike", "Like", "ILike", "RegExpReplace", "RegExpExtract", "RegExpExtractAll", "RegExpInStr", "RegExpCount",
    "RegExpSubStr", "StringSplit",
})  # fmt: skip
"""Functions of a text and of a pattern: no constant text is matched here, which could take long."""
_DIVISIONS: Final = frozenset({"Divide", "IntegralDivide", "Remainder", "Pmod"})
_BY_SECOND: Final = PATTERNS | _DIVISIONS | {"Encode", "Decode", "StringDecode", "NextDay"}
"""Functions that fail by their second argument alone, whatever the first one is; null if that is null."""
_SECOND: Final = 1
_PLAINLY_A_PATTERN: Final = re.compile(r"[\w\s%^$.|-]*")
_PLAINLY_A_DIVISOR: Final = re.compile(r"[1-9]")
_GUARDS: Final = {
    **dict.fromkeys(("If", "CaseWhen", "Coalesce", "And", "Or", "NaNvl", "AtLeastNNonNulls", "In", "InSet", "Elt"), 1),
    **dict.fromkeys(("Lag", "Lead"), 2),
    **dict.fromkeys(("TryEval", "LambdaFunction", "GetStructField", "GetArrayStructFields", "GetArrayItem"), 0),
    **dict.fromkeys(("GetMapValue", "ElementAt", "IsNull", "IsNotNull"), 0),
}
"""Expressions that may not evaluate all that is below them; how many of their first arguments they do for certain."""
_AGGREGATE: Final = "AggregateExpression"
_FUNCTIONS: Final = frozenset({_AGGREGATE, "WindowExpression"})
"""Expressions around a function of many rows, which has no value by itself; its arguments do."""
_NO_VALUES: Final = _FUNCTIONS | {"Alias", "SortOrder"}
"""Expressions that are not evaluated by themselves."""
_PLAIN: Final = frozenset({"Literal", "UnaryMinus", "CreateArray", "CreateNamedStruct", "Cast"})
"""Expressions that do not fail, but for casts of texts."""


@dataclass(frozen=True, slots=True)
class Trial:
    """An expression that is evaluated with every row that comes to it, and that may fail by its constants."""

    node: Node
    variables: tuple[int, ...] = ()
    """Arguments that are put a plain value in place of; none: it is all constant."""


def trials(plan: Node) -> Iterator[Trial]:
    """All of an analysed plan, what is below another after that."""
    for operator in plan.preorder():
        stack = [] if operator.kind == "Generate" else arguments(operator)
        if operator.kind == "Filter":
            stack = [part for each in stack for part in _conjuncts(each)]
        while stack:
            node = stack.pop()
            if node.kind in _FUNCTIONS:
                function, *beside = node.children
                stack += [function] if function.kind in _FUNCTIONS else _evaluated(function)
                stack += beside if node.kind == _AGGREGATE else ()
            elif _is_constant(node):
                if any(_may_fail(part) for part in node.preorder()):
                    yield Trial(node)
            else:
                if _may_fail_by_second(node):
                    yield Trial(node, _variables(node))
                stack += _evaluated(node)


def _may_fail_by_second(node: Node) -> bool:
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


def _variables(node: Node) -> tuple[int, ...]:
    """Of a pattern the text too, if it is constant."""
    first = (0,) if node.kind in PATTERNS else ()
    return tuple(dict.fromkeys([*first, *(at for at, each in enumerate(node.children) if not _is_constant(each))]))


def _conjuncts(condition: Node) -> list[Node]:
    """``where a and b`` is a filter after another one."""
    if condition.kind != "And":
        return [condition]
    return [part for each in condition.children for part in _conjuncts(each)]


def _evaluated(node: Node) -> tuple[Node, ...]:
    """What is evaluated whenever a node is."""
    return node.children[: _GUARDS.get(node.kind, len(node.children))]


def _is_constant(node: Node) -> bool:
    return all(
        part.kind not in _NO_VALUES and part.kind not in PATTERNS and (part.kind == "Literal" or bool(part.children))
        for part in node.preorder()
    )


def _may_fail(node: Node) -> bool:
    if node.kind == "Cast":
        return node.only.kind != "Literal" or node.only.type_name == "string"
    return node.kind not in _PLAIN
