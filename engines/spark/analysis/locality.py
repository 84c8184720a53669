"""Finds the columns of inputs that split a whole query into independent parts. Pure.

A changing table is maintained key by key. That is possible when every operator that looks at several rows looks at rows
of one key only: GROUP BY, DISTINCT, PARTITION BY and equi-joins that all contain the same columns, traced to each
input. Such a column is called a *part* here: one column of every occurrence of an input. Spec:
docs/spec/engine-semantics.md#classification.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from engines.spark.analysis.joins import LEFT_ONLY, Filters, conjuncts, filters_above_joins, kind_of
from engines.spark.analysis.tree import PASSING, PlanNode, same, temp_view

Part: TypeAlias = frozenset[tuple[int, str]]
"""(occurrence, column) for every occurrence of an input below."""
KINDS: Final = frozenset({"Inner", "LeftOuter", "RightOuter"}) | LEFT_ONLY
"""Joins whose rows always have the key of the same side, at least."""


@dataclass(frozen=True, slots=True)
class OperatorLocality:
    """The known properties of an operator's output."""

    columns: tuple[int, ...]
    """Expression ids of its columns, in order."""
    paths: frozenset[int]
    sources: Mapping[int, Part] = field(default_factory=dict)
    """For each column, the columns of inputs that it equals."""
    parts: frozenset[Part] | None = None
    """Parts that all operators so far agree on; ``None``: no operator so far looks at several rows."""
    unique: tuple[int, ...] | None = None
    """Columns whose values together identify a row; ``None``: not known."""
    lost: bool = False
    """Whether there were such columns, and they were not selected."""

    def covering(self, identity: int | None) -> Part | None:
        """Returns the part that a column stands for, if it is one for every occurrence below and all
        operators agree on it."""
        part = self.sources.get(identity) if identity is not None else None
        if part is None or {path for path, _ in part} != self.paths:
            return None
        return part if self.parts is None or part in self.parts else None


@dataclass(slots=True)
class Locality:
    """Walks over one plan. ``paths`` holds the alias of each occurrence of an input, in order of discovery."""

    aliases: Sequence[str]
    paths: list[str] = field(default_factory=list)
    _shared: dict[int, PlanNode] = field(default_factory=dict)
    _filters: Filters = field(default_factory=Filters)

    def of(self, plan: PlanNode) -> OperatorLocality:
        self._filters = filters_above_joins(plan)
        return self.go(plan)

    def go(self, node: PlanNode) -> OperatorLocality:
        if node.kind == "View" and (alias := temp_view(node)) in self.aliases:
            return self._input(alias, node)
        rule = _RULES.get(node.kind)
        if rule is not None:
            return rule(self, node)
        below = [self.go(child) for child in node.children]
        columns = tuple(identity for each in below for identity in each.columns)
        return OperatorLocality(columns, frozenset(path for each in below for path in each.paths), parts=frozenset())

    def grouping(self, local: OperatorLocality) -> dict[str, tuple[str, ...]]:
        """Returns by alias the columns that partition the query, in the same order for all; empty if there are none."""
        found: dict[str, list[str]] = {alias: [] for alias in self.paths}
        for part in sorted(local.parts or (), key=sorted):
            by_alias = {alias: {name for path, name in part if self.paths[path] == alias} for alias in found}
            if all(len(names) == 1 for names in by_alias.values()):
                for alias, names in by_alias.items():
                    found[alias].extend(names)
        return {alias: tuple(names) for alias, names in found.items()}

    def _input(self, alias: str, node: PlanNode) -> OperatorLocality:
        while node.children:
            node = node.only
        path = len(self.paths)
        self.paths.append(alias)
        known = {
            expression.id: frozenset({(path, expression.name)})
            for expression in node.expressions("output")
            if expression.id is not None
        }
        return OperatorLocality(tuple(known), frozenset({path}), known)

    def _pass(self, node: PlanNode) -> OperatorLocality:
        below = [self.go(child) for child in node.children]
        return below[0] if len(below) == 1 else OperatorLocality((), frozenset(), parts=frozenset())

    def _project(self, node: PlanNode) -> OperatorLocality:
        return _derive_projection(self.go(node.only), node.expressions("projectList"))

    def _generate(self, node: PlanNode) -> OperatorLocality:
        below = self.go(node.only)
        made = tuple(expression.id for expression in node.expressions("generatorOutput") if expression.id is not None)
        return replace(below, columns=below.columns + made, unique=None)

    def _aggregate(self, node: PlanNode) -> OperatorLocality:
        below = self.go(node.only)
        keys = node.expressions("groupingExpressions")
        made = node.expressions("aggregateExpressions")
        parts = {part for key in keys if key.kind == "AttributeReference" and (part := below.covering(key.id))}
        ids = [next((each.id for each in made if same(_inner(each), key)), None) for key in keys]
        selected = _derive_projection(replace(below, unique=None, lost=False), made)
        unique = tuple(identity for identity in ids if identity is not None)
        whole = len(unique) == len(ids)
        return replace(selected, parts=frozenset(parts), unique=unique if whole else None, lost=not whole)

    def _distinct(self, node: PlanNode) -> OperatorLocality:
        below = self.go(node.only)
        parts = {part for identity in below.columns if (part := below.covering(identity))}
        return replace(below, parts=frozenset(parts), unique=below.columns, lost=False)

    def _window(self, node: PlanNode) -> OperatorLocality:
        below = self.go(node.only)
        keys = node.expressions("partitionSpec")
        parts = {part for key in keys if key.kind == "AttributeReference" and (part := below.covering(key.id))}
        made = tuple(expression.id for expression in node.expressions("windowExpressions") if expression.id is not None)
        return replace(below, columns=below.columns + made, parts=frozenset(parts))

    def _join(self, node: PlanNode) -> OperatorLocality:
        left, right = (self.go(child) for child in node.children)
        kind = kind_of(node)
        conditions = (*node.expressions("condition"), *self._filters.of.get(id(node), ()))
        pairs = _equalities(conditions, left, right)
        merged: dict[int, Part] = {}
        parts = set()
        for one, other in pairs:
            mine, theirs = left.covering(one), right.covering(other)
            if mine is None or theirs is None or kind not in KINDS:
                continue
            parts.add(mine | theirs)
            if kind != "RightOuter":
                merged.setdefault(one, mine | theirs)
            if kind in ("Inner", "RightOuter"):
                merged.setdefault(other, mine | theirs)
        columns = left.columns if kind in LEFT_ONLY else left.columns + right.columns
        sources = {**left.sources, **({} if kind in LEFT_ONLY else right.sources), **merged}
        unique = _unique(kind, left, right, pairs)
        lost = left.lost or (right.lost and kind not in LEFT_ONLY)
        return OperatorLocality(columns, left.paths | right.paths, sources, frozenset(parts), unique, lost)

    def _union(self, node: PlanNode) -> OperatorLocality:
        branches = [self.go(child) for child in node.children]
        first = branches[0]
        sources = {}
        for position, identity in enumerate(first.columns):
            found = [branch.covering(branch.columns[position]) for branch in branches]
            if None not in found:
                sources[identity] = frozenset(pair for part in found if part is not None for pair in part)
        paths = frozenset(path for branch in branches for path in branch.paths)
        free = all(branch.parts is None for branch in branches)
        return OperatorLocality(first.columns, paths, sources, None if free else frozenset(sources.values()))

    def _with(self, node: PlanNode) -> OperatorLocality:
        for child in node.children[:-1]:
            self._shared[child.fields["id"]] = child.only
        return self.go(node.children[-1])

    def _reference(self, node: PlanNode) -> OperatorLocality:
        """Walks into a common table expression: every use of it is an occurrence of its own."""
        shared = self.go(self._shared[node.fields["cteId"]])
        ids = [expression.id for expression in node.expressions("output")]
        outside = {old: new for old, new in zip(shared.columns, ids, strict=True) if new is not None}
        return replace(
            shared,
            columns=tuple(outside.values()),
            sources={outside[old]: part for old, part in shared.sources.items() if old in outside},
            unique=None if shared.unique is None else tuple(outside[old] for old in shared.unique),
        )


def _inner(expression: PlanNode) -> PlanNode:
    return expression.only if expression.kind == "Alias" else expression


def _derive_projection(below: OperatorLocality, expressions: Sequence[PlanNode]) -> OperatorLocality:
    """Derives a projection: columns that are only passed on or renamed keep their properties."""
    renamed: dict[int, int] = {}
    sources = {}
    for expression in expressions:
        inner = _inner(expression)
        if inner.kind != "AttributeReference" or inner.id is None or expression.id is None:
            continue
        renamed.setdefault(inner.id, expression.id)
        if inner.id in below.sources:
            sources[expression.id] = below.sources[inner.id]
    unique = below.unique
    whole = unique is not None and all(identity in renamed for identity in unique)
    return replace(
        below,
        columns=tuple(expression.id for expression in expressions if expression.id is not None),
        sources=sources,
        unique=tuple(renamed[identity] for identity in unique or ()) if whole else None,
        lost=below.lost or (unique is not None and not whole),
    )


def _equalities(
    conditions: Sequence[PlanNode], left: OperatorLocality, right: OperatorLocality
) -> list[tuple[int, int]]:
    """Returns pairs of a left and a right column that are equal in joined rows."""
    found = []
    for comparison in (part for whole in conditions for part in conjuncts(whole)):
        ids = [side.id for side in comparison.children if side.kind == "AttributeReference"]
        if comparison.kind not in ("EqualTo", "EqualNullSafe") or len(ids) != 2 or None in ids:
            continue
        for one, other in (ids, ids[::-1]):
            if one in left.columns and other in right.columns and one is not None and other is not None:
                found.append((one, other))
    return found


def _unique(
    kind: str, left: OperatorLocality, right: OperatorLocality, pairs: Sequence[tuple[int, int]]
) -> tuple[int, ...] | None:
    if kind in LEFT_ONLY:
        return left.unique
    if left.unique is None or right.unique is None or kind not in KINDS:
        return None
    same_left, same_right = {one for one, _ in pairs}, {other for _, other in pairs}
    if kind == "RightOuter":
        return (*(identity for identity in left.unique if identity not in same_left), *right.unique)
    return (*left.unique, *(identity for identity in right.unique if identity not in same_right))


_RULES: Final[Mapping[str, Callable[[Locality, PlanNode], OperatorLocality]]] = {
    "Project": Locality._project,
    "Filter": Locality._pass,
    **dict.fromkeys(PASSING, Locality._pass),
    "Generate": Locality._generate,
    "Aggregate": Locality._aggregate,
    "Distinct": Locality._distinct,
    "Window": Locality._window,
    "Join": Locality._join,
    "Union": Locality._union,
    "WithCTE": Locality._with,
    "CTERelationRef": Locality._reference,
}
