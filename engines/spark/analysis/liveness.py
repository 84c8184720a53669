"""Finds the columns below a window function that are used above it; others cannot make two rows differ. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from engines.spark.analysis.tree import PASSING, Node


def live_columns(root: Node) -> dict[int, frozenset[int] | None]:
    """By ``id()`` of each ``Window`` operator the expression ids wanted from below; ``None``: all of them."""
    found: dict[int, frozenset[int] | None] = {}
    stack: list[tuple[Node, frozenset[int] | None]] = [(root, None)]
    while stack:
        node, wanted = stack.pop()
        below = _below(node, wanted)
        if node.kind == "Window":
            found[id(node)] = below
        stack.extend((child, below) for child in node.children)
    return found


def _below(node: Node, wanted: frozenset[int] | None) -> frozenset[int] | None:
    """What an operator needs of its children to give what is wanted of it."""
    match node.kind:
        case "Project":
            return _used(_kept(node.expressions("projectList"), wanted))
        case "Aggregate":
            keys = node.expressions("groupingExpressions")
            return _used((*keys, *_kept(node.expressions("aggregateExpressions"), wanted)))
        case "Filter" | "Join":
            return None if wanted is None else wanted | _used(node.expressions("condition"))
        case "Window":
            made = node.expressions("windowExpressions")
            own = _used((*_kept(made, wanted), *node.expressions("partitionSpec"), *node.expressions("orderSpec")))
            return None if wanted is None else (wanted - {each.id for each in made}) | own
    return wanted if node.kind in PASSING else None


def _kept(expressions: Iterable[Node], wanted: frozenset[int] | None) -> list[Node]:
    return [each for each in expressions if wanted is None or each.id in wanted]


def _used(expressions: Iterable[Node]) -> frozenset[int]:
    return frozenset(
        part.id
        for expression in expressions
        for part in expression.preorder()
        if part.kind == "AttributeReference" and part.id is not None
    )
