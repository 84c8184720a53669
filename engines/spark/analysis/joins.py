"""Derives from join conditions how far apart in event time two joined rows may be.

Every comparison of a time of one side with a time of the other bounds each of the two given the other, through any
monotone functions on either side. So intervals, equal windows and equal days are one case. Pure. Spec:
docs/spec/engine-semantics.md#influence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from engines.spark.analysis.influence import (
    FieldInfluences,
    Half,
    Influence,
    InfluenceInterval,
    Scope,
    Value,
    influence,
    widen_to_key,
)
from engines.spark.analysis.monotone import Function, first, last
from engines.spark.analysis.relation import Origins, QueryRelation, path_of
from engines.spark.analysis.tree import PASSING, PlanNode

LEFT_ONLY: Final = frozenset({"LeftSemi", "LeftAnti"})
TYPES: Final = frozenset({"Inner", "Cross", "LeftOuter", "RightOuter", "FullOuter"}) | LEFT_ONLY
_TURNED: Final = {
    "GreaterThan": "LessThan", "GreaterThanOrEqual": "LessThanOrEqual", "LessThan": "GreaterThan",
    "LessThanOrEqual": "GreaterThanOrEqual", "EqualTo": "EqualTo", "EqualNullSafe": "EqualNullSafe",
}  # fmt: skip
Key: TypeAlias = tuple[int, int | None]
"""A column with a time: its expression id, and the position of the field if it is a struct."""
Above: TypeAlias = tuple[tuple[PlanNode, int], ...]
"""Conditions, each with the ``id()`` of the operator that it belongs to."""
_INNER: Final = frozenset({"Inner", "Cross"})
_ROW_BY_ROW: Final = PASSING | {"Generate"}


@dataclass(slots=True)
class Nearness:
    """Bounds on pairs (x, y) of times: ``lower[x, y](y) <= x <= upper[x, y](y)`` in each joined pair of rows."""

    lower: dict[tuple[Key, Key], Function] = field(default_factory=dict)
    upper: dict[tuple[Key, Key], Function] = field(default_factory=dict)
    equal: set[tuple[Key, Key]] = field(default_factory=set)
    """Pairs of columns that are equal in joined rows."""

    def not_before(self, later: tuple[Key, InfluenceInterval], earlier: tuple[Key, InfluenceInterval]) -> None:
        """Adds the condition ``f(x) >= g(y)``."""
        (x, f), (y, g) = later, earlier
        self.lower.setdefault((x, y), g.low + first(f.high))
        self.upper.setdefault((y, x), f.high + last(g.low))


def kind_of(join: PlanNode) -> str:
    """Returns the kind of a join, like ``LeftOuter``."""
    stated = join.fields.get("joinType")
    name = stated.get("object") or stated.get("product-class") if isinstance(stated, dict) else ""
    return str(name).rpartition(".")[2].removesuffix("$")


def nearness(condition: tuple[PlanNode, ...], left: Scope, right: Scope) -> Nearness:
    """Returns the bounds that the conditions of a join set between times of its two sides."""
    keys: list[Key] = []
    symbols = _symbols(left, keys)
    border = len(keys)
    symbols.update(_symbols(right, keys))
    near = Nearness()
    for comparison in (part for whole in condition for part in conjuncts(whole)):
        if comparison.kind not in _TURNED:
            continue
        sides = [_times(influence(side, symbols)) for side in comparison.children]
        for one, other in zip(*sides, strict=False):
            if one is None or other is None or (one[0] < border) == (other[0] < border):
                continue
            a, b = (keys[one[0]], one[1]), (keys[other[0]], other[1])
            if comparison.kind not in ("LessThan", "LessThanOrEqual"):
                near.not_before(a, b)
            if comparison.kind not in ("GreaterThan", "GreaterThanOrEqual"):
                near.not_before(b, a)
            if comparison.kind.startswith("Equal") and one[1] == other[1] == InfluenceInterval():
                near.equal.update(((a[0], b[0]), (b[0], a[0])))
    return near


def conjuncts(condition: PlanNode, shared: Mapping[str, PlanNode] | None = None) -> Iterator[PlanNode]:
    """Yields the conditions that are joined by AND; common parts are expanded where they are used."""
    known = dict(shared or {})
    if condition.kind == "And":
        for child in condition.children:
            yield from conjuncts(child, known)
    elif condition.kind == "Between":
        yield from conjuncts(condition.only, known)
    elif condition.kind == "With":
        known.update({str(child.fields.get("id")): child.only for child in condition.children[1:]})
        yield from conjuncts(condition.children[0], known)
    else:
        yield _written_out(condition, known) if known else condition


def _written_out(node: PlanNode, shared: Mapping[str, PlanNode]) -> PlanNode:
    if node.kind == "CommonExpressionRef":
        return shared.get(str(node.fields.get("id")), node)
    return PlanNode(node.kind, node.fields, tuple(_written_out(child, shared) for child in node.children))


def _symbols(scope: Scope, keys: list[Key]) -> dict[int, Value]:
    """Replaces the influence of each column with a time by a path of its own; appends the columns to ``keys``."""
    symbols: dict[int, Value] = {}
    for identity, value in scope.items():
        if isinstance(value, FieldInfluences):
            parts: list[Influence | None] = []
            for position, part in enumerate(value.of):
                parts.append({len(keys): InfluenceInterval()} if part else None)
                keys.extend([(identity, position)] if part else [])
            symbols[identity] = FieldInfluences(tuple(parts))
        elif path_of(value):
            symbols[identity] = {len(keys): InfluenceInterval()}
            keys.append((identity, None))
    return symbols


def _times(value: Value) -> list[tuple[int, InfluenceInterval] | None]:
    """Returns for each part of one side of a comparison the single column with a time that it is a
    function of, or ``None``."""
    parts = list(value.of) if isinstance(value, FieldInfluences) else [path_of(value)]
    return [next(iter(part.items())) if part and len(part) == 1 else None for part in parts]


def until_superseded(condition: tuple[PlanNode, ...], ends: Mapping[int, int], near: Nearness) -> bool:
    """Adds the bound that ``x < valid_to`` implies to ``near``. Returns whether other conditions use a ``valid_to``."""
    misused = False
    for comparison in (part for whole in condition for part in conjuncts(whole)):
        if not any(part.id in ends for part in comparison.preorder() if part.kind == "AttributeReference"):
            continue
        sides = comparison.children if comparison.kind == "LessThan" else comparison.children[::-1]
        plain = len(sides) == 2 and all(side.kind == "AttributeReference" and side.id is not None for side in sides)
        if not plain or comparison.kind not in ("LessThan", "GreaterThan") or sides[1].id not in ends:
            misused = True
            continue
        x, end = sides[0].id, sides[1].id
        begin = ends[end] if end is not None else -1
        if x is not None and ((x, None), (begin, None)) in near.lower:
            near.upper[(x, None), (begin, None)] = ()
    return misused


def equal_columns(condition: tuple[PlanNode, ...], right: QueryRelation) -> list[str] | None:
    """Returns the right input's columns that must equal something of the left; ``None`` if there are
    other conditions."""
    names: list[str] = []
    ids = {identity for _, identity in right.columns}
    for comparison in (part for whole in condition for part in conjuncts(whole)):
        mine = [side for side in comparison.children if side.kind == "AttributeReference" and side.id in ids]
        used = [part.id in ids for part in comparison.preorder() if part.kind == "AttributeReference"]
        sources = right.origins.get(mine[0].id, {}) if len(mine) == 1 and mine[0].id is not None else {}
        if comparison.kind != "EqualTo" or sum(used) != 1 or len(sources) != 1:
            return None
        names.extend(sources.values())
    return names


def join_relations(
    kind: str, left: QueryRelation, right: QueryRelation, near: Nearness, pair: int
) -> tuple[QueryRelation, bool]:
    """Returns the relation of a join, and whether any of its times is bounded. ``pair``: a number for its halves."""
    scope: dict[int, Value] = {}
    if kind in ("Inner", "Cross", "LeftOuter") or kind in LEFT_ONLY:
        scope.update(_side(left.scope, right.scope, near))
    if kind in ("Inner", "Cross", "RightOuter"):
        scope.update(_side(right.scope, left.scope, near))
    if kind == "FullOuter":
        scope.update(_halves(left.scope, right.scope, near, pair))
    shown = [left] if kind in LEFT_ONLY else [left, right]
    relation = QueryRelation(
        scope,
        tuple(column for side in shown for column in side.columns),
        frozenset(identity for side in shown for identity in side.floats),
        linear=False,
        origins=_origins(shown),
        rows_of=_rows_of(shown),
    )
    return relation, bool(scope)


def _origins(shown: list[QueryRelation]) -> Origins:
    return {identity: source for side in shown for identity, source in side.origins.items()}


def _rows_of(shown: list[QueryRelation]) -> frozenset[int] | None:
    paths: frozenset[int] = frozenset()
    for side in shown:
        if side.rows_of is None:
            return None
        paths |= side.rows_of
    return paths


def _side(mine: Scope, theirs: Scope, near: Nearness) -> dict[int, Value]:
    """Returns one side's columns with a time, with the other side's paths added; leaves out columns
    without a bound on these."""
    found: dict[Key, Influence] = {}
    for key, own in _parts(mine):
        other = next(
            ((near.lower[key, b], near.upper[key, b], part) for b, part in _parts(theirs)
             if (key, b) in near.lower and (key, b) in near.upper), None,
        )  # fmt: skip
        if other is not None:
            low, high, part = other
            found[key] = {**own, **{path: interval.then(low, high) for path, interval in part.items()}}
    anchor = next(iter(found.values()), None)
    for key, own in _parts(mine):
        if key not in found and anchor is not None and (wide := widen_to_key(own, anchor)) is not None:
            found[key] = {**wide, **own}
    scope: dict[int, Value] = {}
    for identity, value in mine.items():
        if isinstance(value, FieldInfluences):
            scope[identity] = FieldInfluences(tuple(found.get((identity, at)) for at in range(len(value.of))))
        elif (identity, None) in found:
            scope[identity] = found[identity, None]
    return {
        identity: value for identity, value in scope.items() if not isinstance(value, FieldInfluences) or any(value.of)
    }


def _halves(left: Scope, right: Scope, near: Nearness, pair: int) -> dict[int, Value]:
    """Returns columns that are equal in joined rows: a row of either side alone then has the same time."""
    rights = dict(_parts(right))
    for key, own in _parts(left):
        for other, part in rights.items():
            if (key, other) in near.equal and key[1] is None and other[1] is None:
                return {key[0]: Half(pair, own), other[0]: Half(pair, part)}
    return {}


def _parts(scope: Scope) -> Iterator[tuple[Key, Influence]]:
    for identity, value in scope.items():
        if isinstance(value, FieldInfluences):
            yield from (((identity, at), part) for at, part in enumerate(value.of) if part)
        elif path_of(value):
            yield (identity, None), path_of(value)


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters above joins in one plan. A common table expression is separate, since its uses may
    filter it differently."""

    of: dict[int, tuple[PlanNode, ...]] = field(default_factory=dict)
    """By ``id()`` of an inner join: the conditions above it, in terms of its own columns."""
    used: set[int] = field(default_factory=set)
    """``id()`` of the filters that are above some inner join."""


def filters_above_joins(root: PlanNode) -> Filters:
    """Collects conditions above inner joins, in WHERE or an outer query, which act on rows like those of ON."""
    found = Filters()
    stack: list[tuple[PlanNode, Above]] = [(root, ())]
    while stack:
        node, above = stack.pop()
        stack.extend(_below(node, above, found))
    return found


def _below(node: PlanNode, above: Above, found: Filters) -> list[tuple[PlanNode, Above]]:
    """Returns the children, each with the conditions that hold for those of its rows that matter."""
    nothing: Above = ()
    if node.kind == "Filter":
        return [(node.only, (*above, *((expression, id(node)) for expression in node.expressions("condition"))))]
    if node.kind == "Project":
        made = {
            expression.id: expression.only
            for expression in node.expressions("projectList")
            if expression.kind == "Alias" and expression.id is not None
        }
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
        own = tuple((expression, id(node)) for expression in node.expressions("condition"))
        return [(left, (*above, *own)), (right, (*above, *own))]
    return [
        (left, above if kind == "LeftOuter" or kind in LEFT_ONLY else nothing),
        (right, above if kind == "RightOuter" else nothing),
    ]


def with_columns(expression: PlanNode, made: Mapping[int, PlanNode]) -> PlanNode:
    """Replaces columns by the expressions that define them."""
    if expression.kind == "AttributeReference":
        return made.get(expression.id, expression) if expression.id is not None else expression
    if not any(part.id in made for part in expression.preorder() if part.kind == "AttributeReference"):
        return expression
    return PlanNode(
        expression.kind, expression.fields, tuple(with_columns(child, made) for child in expression.children)
    )
