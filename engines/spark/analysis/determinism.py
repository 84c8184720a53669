"""Refuses expressions whose value could differ between two honest nodes.

Looks at one expression tree at a time, against the closed lists of ``functions``; positions are found later by the
place of the culprit among nodes of its kind (``Finding.kind``, ``Finding.nth``), since the plan's JSON has none.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

from engines.spark.analysis.functions import (
    ALLOWED,
    DENIED,
    INTEGER_IN_DOUBLE,
    MAKES_FLOAT,
    NEVER_FLOAT,
    ORDER_FREE,
    SUBQUERIES,
)
from engines.spark.analysis.tree import Node

_INTEGERS: Final = {"byte", "short", "integer", "long"}
_MOVING_LITERAL: Final = re.compile(
    r"\b(?:timestamp|date|timestamp_ntz|timestamp_ltz)\s*(['\"])\s*(now|today|yesterday|tomorrow)\s*\1", re.IGNORECASE
)
_WRITTEN: Final = {"Average": "avg", "SparkVersion": "version", "VarianceSamp": "variance", "StddevSamp": "stddev"}
"""Functions whose class is not named as they are called."""
_SPACES: Final = re.compile(r"(?s)--[^\n]*|/\*.*?\*/")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a query."""

    code: str
    message: str
    replace: str | None = None
    node: Node | None = None
    """Whose place in the text is to be shown."""


def literals(sql: str) -> list[Finding]:
    """``date'today'`` and its like: constants once parsed, so only the text still shows them."""
    bare = _SPACES.sub(" ", sql)
    return [
        Finding("not-data", f"'{found[2]}' is the day on which the query runs, not data", "write the day itself")
        for found in _MOVING_LITERAL.finditer(bare)
    ]


def examine(expression: Node) -> list[Finding]:
    """All findings in an expression."""
    found: list[Finding] = []
    stack = [(expression, False)]
    while stack:
        node, ours = stack.pop()
        if node.kind in SUBQUERIES:
            found.append(_subquery(node))
            continue
        if node.kind == "ArraySort" and _collects(node.children[0]):
            stack.extend((argument, ours) for argument in node.children[0].only.children)
            stack.extend((part, ours) for part in node.children[1:])
            continue
        finding = _function(node, ours) or _aggregate(node)
        if finding is not None:
            found.append(finding)
            continue
        if "replacement" in node.fields:
            # What Spark put in its place may use functions that a person may not; the arguments are the person's.
            stack.extend((argument, ours) for argument in _arguments(node))
            stack.extend((child, True) for child in node.children)
        else:
            stack.extend((child, ours) for child in reversed(node.children))
    return found


def opaque(plan: Node) -> list[Finding]:
    """Calls of foreign code anywhere in a plan: the one thing that even a person's own look at data may not do."""
    found = []
    for operator in plan.preorder():
        for expression in _arguments(operator):
            found.extend(_opaque_parts(expression))
    return found


def _opaque_parts(expression: Node) -> list[Finding]:
    found = []
    stack = [(expression, False)]
    while stack:
        node, ours = stack.pop()
        denial = DENIED.get(node.kind)
        if denial is not None and denial.code == "opaque-function" and not (ours and node.kind.endswith("Invoke")):
            found.append(Finding(denial.code, f"{_sql_name(node.kind)}: {denial.reason}", denial.instead, node))
        stack.extend((child, ours or "replacement" in node.fields) for child in node.children)
    return found


def is_float(node: Node) -> bool:
    """Whether an expression's value is, or may hold, floating point numbers."""
    stack = [node]
    while stack:
        part = stack.pop()
        if part.kind in ("AttributeReference", "Cast", "Literal", "NamedLambdaVariable"):
            if _holds_float(part.fields.get("dataType")):
                return True
        elif part.kind in MAKES_FLOAT:
            if part.kind != "Average" or not _decimal(part.only):
                return True
        elif part.kind not in NEVER_FLOAT:
            stack.extend(part.children)
    return False


def _holds_float(data_type: object) -> bool:
    text = data_type if isinstance(data_type, str) else json.dumps(data_type)
    return "double" in text or "float" in text


def _decimal(node: Node) -> bool:
    stated = [str(part.fields.get("dataType", "")) for part in node.preorder() if "dataType" in part.fields]
    return bool(stated) and stated[0].startswith("decimal")


def _function(node: Node, ours: bool) -> Finding | None:
    denial = DENIED.get(node.kind)
    if denial is not None and not (ours and node.kind in ("StaticInvoke", "Invoke")):
        return Finding(denial.code, f"{_sql_name(node.kind)}: {denial.reason}", denial.instead, node)
    if ours or denial is not None or node.kind in ALLOWED:
        return None
    return Finding(
        "unknown-function",
        f"{_sql_name(node.kind)} is not among the functions known to give every node the same answer",
        "use another function, or compute it where it is displayed",
        node,
    )


def _aggregate(node: Node) -> Finding | None:
    if node.kind != "AggregateExpression":
        return None
    function = node.children[0]
    if function.kind in ORDER_FREE or function.kind in DENIED or not function.children:
        return None
    argument = function.children[0]
    name = _sql_name(function.kind)
    if any(is_float(child) for child in function.children):
        return Finding(
            "float-aggregate",
            f"{name} over floating point: the result depends on the order of the rows",
            f"{name}(cast(x as decimal(38,12)))",
            function,
        )
    if function.kind in INTEGER_IN_DOUBLE and _integer(argument):
        return Finding(
            "float-aggregate",
            f"{name} over whole numbers adds them in floating point, inexactly beyond 2^53",
            f"{name}(cast(x as decimal(20,0)))",
            function,
        )
    return None


def _integer(node: Node) -> bool:
    """Not provably decimal or an interval: those are the exact ones."""
    stated = [part.fields.get("dataType") for part in node.preorder() if part.fields.get("dataType") is not None]
    first = stated[0] if stated else None
    return not (isinstance(first, str) and first.startswith(("decimal", "interval")))


def _collects(node: Node) -> bool:
    return node.kind == "AggregateExpression" and node.children[0].kind in ("CollectList", "CollectSet")


def _arguments(node: Node) -> list[Node]:
    return [tree for field, value in node.fields.items() if isinstance(value, list) for tree in _trees(node, field)]


def _trees(node: Node, field: str) -> tuple[Node, ...]:
    """Expressions in a field of any kind, which may hold something else."""
    value = node.fields[field]
    first = value[0] if value else None
    first = first[0] if isinstance(first, list) and first else first
    return node.expressions(field) if isinstance(first, dict) and "class" in first else ()


def _subquery(node: Node) -> Finding:
    return Finding(
        "subquery-expression",
        "a query inside an expression looks at all of its table, whenever it runs",
        "write it as a join with bounds on event time, or make it a dataset of its own",
        node,
    )


def _sql_name(kind: str) -> str:
    """As a person may have written it: ``CurrentTimestamp`` -> ``current_timestamp``."""
    if kind in _WRITTEN:
        return _WRITTEN[kind]
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind).lower()
