"""Reads an analysed Catalyst plan as a tree of nodes from ``LogicalPlan.toJSON``.

The JSON is a list of nodes in preorder, each with its number of children; expressions are such lists inside the fields
of operators. Nothing is evaluated here, and nothing is kept of the plan's objects in the JVM.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec

from chain.errors import Invalid

MAX_PLAN: Final = 64 << 20
"""Most bytes of a plan's JSON."""
MAX_DEPTH: Final = 250
"""Most nodes from a root to its deepest leaf, since functions that walk the tree may recurse."""
PASSING: Final = frozenset({"SubqueryAlias", "View", "ResolvedHint", "PipeOperator"})
"""Operators that pass on all rows unchanged. A hint says how to join, without visible effect."""
_HINT: Final = "split the query: make an inner part a dataset of its own"


@dataclass(frozen=True, slots=True, eq=False)
class PlanNode:
    """An operator or an expression. ``kind`` is the class without its package."""

    kind: str
    fields: Mapping[str, Any]
    children: tuple[PlanNode, ...]

    def expressions(self, field: str) -> tuple[PlanNode, ...]:
        """Returns the expressions held in a field: one, several, or none."""
        value = self.fields.get(field)
        if not value:
            return ()
        if isinstance(value[0], dict):
            return (build(value),)
        return tuple(build(item) for item in value if item)

    @property
    def id(self) -> int | None:
        """Expression id of an attribute or alias, which identifies it through renames, views and subqueries."""
        identity = self.fields.get("exprId")
        return identity["id"] if isinstance(identity, dict) else None

    @property
    def type_name(self) -> str:
        """The name of a simple type, as Spark writes it; empty for arrays, structs and maps."""
        stated = self.fields.get("dataType")
        return stated if isinstance(stated, str) else ""

    @property
    def name(self) -> str:
        return str(self.fields.get("name", ""))

    @property
    def only(self) -> PlanNode:
        return self.children[0]

    def preorder(self) -> Iterator[PlanNode]:
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children))


def parse_plan(text: str | bytes, zones: Mapping[str, Any] | None = None) -> PlanNode:
    """Parses a plan's JSON. Raises Invalid for a plan over the limits or not of this form.

    ``zones``: rules by name of zone; conversions from and to local time get those of their zone in the field ``zones``.
    """
    if len(text) > MAX_PLAN:
        raise Invalid(f"the query's plan has {len(text)} bytes", rule="plan-too-large", hint=_HINT)
    try:
        nodes = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise Invalid(f"not a plan: {error}", rule="plan") from error
    if not isinstance(nodes, list):
        raise Invalid("not a plan: expected a list of nodes", rule="plan")
    if zones:
        _equip(nodes, zones)
    return build(nodes)


def _equip(plan: list[Any], zones: Mapping[str, Any]) -> None:
    stack: list[Any] = [plan]
    while stack:
        each = stack.pop()
        if isinstance(each, list):
            stack += each
        elif isinstance(each, dict):
            if str(each.get("class", "")).endswith("UTCTimestamp"):
                each["zones"] = zones
            else:
                stack += [value for value in each.values() if isinstance(value, list | dict)]


def build(nodes: Sequence[Any]) -> PlanNode:
    """Builds a tree from its nodes in preorder. Raises Invalid."""
    stack: list[tuple[PlanNode, int]] = []
    for fields in reversed(nodes):
        try:
            kind, count = fields["class"].rpartition(".")[2], fields["num-children"]
        except (TypeError, KeyError) as error:
            raise Invalid("not a plan: a node without class or children", rule="plan") from error
        if count > len(stack):
            raise Invalid("not a plan: children are missing", rule="plan")
        taken = [stack.pop() for _ in range(count)]
        depth = 1 + max((deep for _, deep in taken), default=0)
        if depth > MAX_DEPTH:
            raise Invalid(f"the query nests deeper than {MAX_DEPTH} levels", rule="plan-too-large", hint=_HINT)
        stack.append((PlanNode(kind, fields, tuple(node for node, _ in taken)), depth))
    if len(stack) != 1:
        raise Invalid("not a plan: nodes left over", rule="plan")
    return stack[0][0]


Step: TypeAlias = int | tuple[int | str, ...]
"""A step from a node to one below it: the number of a child; or the name of a field, then positions and
names inside it."""


def way_to(root: PlanNode, wanted: PlanNode) -> tuple[Step, ...] | None:
    """Returns the path from the root of a plan to a node of the same JSON; ``None`` if it is not in it."""
    if root.fields is wanted.fields:
        return ()
    for number, child in enumerate(root.children):
        way = way_to(child, wanted)
        if way is not None:
            return (number, *way)
    for at, nodes in _lists_in(root.fields):
        way = way_to(build(nodes), wanted)
        if way is not None:
            return (at, *way)
    return None


def _lists_in(value: Any) -> Iterator[tuple[tuple[int | str, ...], list[Any]]]:
    """Yields the trees in fields and in values inside them, each with its path."""
    if isinstance(value, list) and value and isinstance(value[0], dict) and "num-children" in value[0]:
        yield (), value
        return
    parts: Iterable[tuple[int | str, Any]] = ()
    if isinstance(value, list):
        parts = enumerate(value)
    elif isinstance(value, Mapping):
        parts = value.items()
    for part, item in parts:
        for at, nodes in _lists_in(item):
            yield (part, *at), nodes


def temp_view(view: PlanNode) -> str:
    description = view.fields.get("desc")
    return str(description["identifier"]["table"]) if view.fields.get("isTempView") and description else ""


def same(one: PlanNode, other: PlanNode) -> bool:
    """Whether two expressions are the same computation, as far as their JSON shows."""
    alike = (
        one.kind == other.kind
        and one.id == other.id
        and all(one.fields.get(key) == other.fields.get(key) for key in ("value", "dataType", "ordinal"))
        and len(one.children) == len(other.children)
    )
    return alike and all(same(mine, theirs) for mine, theirs in zip(one.children, other.children, strict=True))
