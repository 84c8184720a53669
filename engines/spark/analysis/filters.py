"""Collects conditions above a join, in WHERE or a query around it, which its rows fulfil as those of ON. Pure.

A condition holds for the rows of an inner join whichever side of it is written in; so ``from a, b where …`` says what
``from a join b on …`` does. Spec: docs/spec/engine-semantics.md#influence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from engines.spark.analysis.joins import LEFT_ONLY, kind_of
from engines.spark.analysis.tree import PASSING, Node

Above: TypeAlias = tuple[tuple[Node, int], ...]
"""Conditions, each with the ``id()`` of the operator that it stands in."""
_INNER: Final = frozenset({"Inner", "Cross"})
_ROW_BY_ROW: Final = PASSING | {"Generate"}


@dataclass(frozen=True, slots=True)
class Filters:
    """Of one plan. A common table expression is taken by itself: its uses may ask different things of it."""

    of: dict[int, tuple[Node, ...]] = field(default_factory=dict)
    """By ``id()`` of an inner join the conditions above it, in terms of its own columns."""
    used: set[int] = field(default_factory=set)
    """``id()`` of the filters that stand above some inner join."""


def filters_above_joins(root: Node) -> Filters:
    found = Filters()
    stack: list[tuple[Node, Above]] = [(root, ())]
    while stack:
        node, above = stack.pop()
        stack.extend(_below(node, above, found))
    return found


def _below(node: Node, above: Above, found: Filters) -> list[tuple[Node, Above]]:
    """Children, each with what holds for those of its rows that matter."""
    nothing: Above = ()
    if node.kind == "Filter":
        return [(node.only, (*above, *((each, id(node)) for each in node.expressions("condition"))))]
    if node.kind == "Project":
        made = {each.id: each.only for each in node.expressions("projectList")
                if each.kind == "Alias" and each.id is not None}  # fmt: skip
        return [(node.only, tuple((with_columns(each, made), place) for each, place in above))]
    if node.kind in _ROW_BY_ROW and node.children:
        return [(node.only, above)]
    if node.kind != "Join":
        return [(child, nothing) for child in node.children]
    left, right = node.children
    kind = kind_of(node)
    if kind in _INNER:
        found.of[id(node)] = tuple(each for each, _ in above)
        found.used.update(place for _, place in above)
        own = tuple((each, id(node)) for each in node.expressions("condition"))
        return [(left, (*above, *own)), (right, (*above, *own))]
    return [
        (left, above if kind == "LeftOuter" or kind in LEFT_ONLY else nothing),
        (right, above if kind == "RightOuter" else nothing),
    ]


def with_columns(expression: Node, made: Mapping[int, Node]) -> Node:
    """With what columns are made of in their place."""
    if expression.kind == "AttributeReference":
        return made.get(expression.id, expression) if expression.id is not None else expression
    if not any(part.id in made for part in expression.preorder() if part.kind == "AttributeReference"):
        return expression
    return Node(expression.kind, expression.fields, tuple(with_columns(child, made) for child in expression.children))
