"""Goes through the operators of an analysed plan from the inputs up, carrying what is known of event time.

Each operator has one rule; an operator without a rule is refused. New shapes are new rules. The walk collects every
finding instead of stopping at the first, so that a person mends a query once. Engine semantics, sections 4, 6 and 9.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from chain.errors import Invalid
from engines.spark.analysis.determinism import Finding, examine, is_float
from engines.spark.analysis.influence import Fields, Influence, Interval, Scope, Value, influence
from engines.spark.analysis.tree import Node, build

_EXPRESSIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "Project": ("projectList",),
    "Filter": ("condition",),
    "Generate": ("generator",),
    "Aggregate": ("groupingExpressions", "aggregateExpressions"),
}
"""Fields of operators that hold expressions of the person's making."""
LINEAR: Final = frozenset({"Project", "Filter", "Generate", "Union", "SubqueryAlias", "View"})
"""Operators under which every row speaks for itself."""
MAX_PATHS: Final = 64
"""Occurrences of inputs in one query, common table expressions counted at every use."""
_LEAVES: Final = {"LogicalRDD", "LocalRelation", "LogicalRelation"}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a known operator cannot be used, and what to do instead."""

    code: str
    message: str
    replace: str


_WAIT: Final = "shape-not-supported"
_LIMIT: Final = Refusal(
    "limit-on-stream",
    "LIMIT counts rows of a result that never ends",
    "row_number() over (partition by <window> order by …) <= n",
)
_JOIN: Final = Refusal(_WAIT, "this engine cannot join yet", "transform each input on its own, without a join")
_SETS: Final = Refusal(_WAIT, "this engine cannot subtract or intersect queries yet", "filter with a condition")
REFUSED: Final[Mapping[str, Refusal]] = {
    "GlobalLimit": _LIMIT,
    "LocalLimit": _LIMIT,
    "Offset": _LIMIT,
    "Tail": _LIMIT,
    "Sample": Refusal("limit-on-stream", "a sample depends on how rows are stored", "where hash(columns) % 10 = 0"),
    "Sort": Refusal("order-is-fixed", "the order of a dataset's rows is fixed by the format", "leave ORDER BY out"),
    "Join": _JOIN,
    "AsOfJoin": _JOIN,
    "LateralJoin": _JOIN,
    "Window": Refusal(
        _WAIT, "this engine cannot evaluate window functions (OVER) yet", "group by a time window instead of OVER"
    ),
    "Except": _SETS,
    "Intersect": _SETS,
    "Deduplicate": _SETS,
    "Range": Refusal("not-data", "range() makes rows that are in no input", "select from an input"),
    "OneRowRelation": Refusal("not-data", "a SELECT without FROM has no input", "select from an input"),
    "RepartitionByExpression": Refusal("hint", "the engine decides how to spread rows", "leave the hint out"),
    "Repartition": Refusal("hint", "the engine decides how to spread rows", "leave the hint out"),
}


@dataclass(frozen=True, slots=True)
class Relation:
    """What is known of an operator's output."""

    scope: Scope
    columns: tuple[tuple[str, int], ...]
    """(name, expression id), in order."""
    floats: frozenset[int]
    """Ids of columns that hold floating point."""
    linear: bool = True


@dataclass(slots=True)
class Walk:
    """One walk over one plan. ``paths`` holds the alias of the input of each path, in order of discovery."""

    event_times: Mapping[str, str]
    """Name of the event time column by input alias."""
    paths: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    _shared: dict[int, Node] = field(default_factory=dict)

    def go(self, node: Node) -> Relation:
        """The relation that an operator makes of its children's."""
        if node.kind == "View" and (alias := _table(node)) in self.event_times:
            return self._input(alias, node)
        for name in _EXPRESSIONS.get(node.kind, ()):
            for expression in node.expressions(name):
                self.findings.extend(examine(expression))
        rule = _RULES.get(node.kind)
        if rule is not None:
            return rule(self, node)
        refusal = REFUSED.get(node.kind)
        if refusal is None:
            refusal = Refusal(
                "unknown-operator", f"{node.kind} is not among the statements that a transform can be made of",
                "use SELECT over the inputs",
            )  # fmt: skip
        self.findings.append(Finding(refusal.code, refusal.message, refusal.replace, node))
        return self._opaque(node)

    def _opaque(self, node: Node) -> Relation:
        """For an operator that is refused: keep walking below it, to find what else is wrong."""
        below = [self.go(child) for child in node.children]
        columns = tuple(column for relation in below for column in relation.columns)
        return Relation({}, columns, frozenset(), linear=False)

    def _input(self, alias: str, node: Node) -> Relation:
        leaf = node
        while leaf.children:
            leaf = leaf.only
        attributes = leaf.expressions("output")
        path = len(self.paths)
        if path == MAX_PATHS:
            raise Invalid(
                f"the query reads its inputs more than {MAX_PATHS} times",
                rule="plan-too-large",
                hint="make an inner part a dataset of its own",
            )
        self.paths.append(alias)
        time = self.event_times[alias]
        scope: dict[int, Value] = {
            attribute.id: {path: Interval()} for attribute in attributes if attribute.name == time and attribute.id
            is not None
        }  # fmt: skip
        return Relation(scope, _columns(attributes), _floats(attributes))

    def _pass(self, node: Node) -> Relation:
        if node.kind in _LEAVES or not node.children:
            return self._opaque_leaf(node)
        return self.go(node.only)

    def _opaque_leaf(self, node: Node) -> Relation:
        attributes = node.expressions("output")
        self.findings.append(
            Finding("not-data", "the query reads rows that are in none of its inputs", "select from an input", node)
        )
        return Relation({}, _columns(attributes), _floats(attributes))

    def _project(self, node: Node) -> Relation:
        below = self.go(node.only)
        return _projection(node.expressions("projectList"), below, below.linear)

    def _generate(self, node: Node) -> Relation:
        below = self.go(node.only)
        made = node.expressions("generatorOutput")
        return Relation(below.scope, below.columns + _columns(made), below.floats | _floats(made), below.linear)

    def _aggregate(self, node: Node) -> Relation:
        below = self.go(node.only)
        keys = node.expressions("groupingExpressions")
        for key in keys:
            if is_float(key):
                self.findings.append(_float_key(key))
        if not any(_timed(influence(key, below.scope)) for key in keys):
            self.findings.append(
                Finding(
                    _WAIT,
                    "GROUP BY without a window of event time makes a table that changes for ever; not supported yet",
                    "group by time_bucket(interval '1' day, event_time) too",
                    node,
                )
            )
        return _projection(node.expressions("aggregateExpressions"), below, linear=False)

    def _distinct(self, node: Node) -> Relation:
        below = self.go(node.only)
        for name, identity in below.columns:
            if identity in below.floats:
                self.findings.append(_float_key(node, name))
        if not any(_timed(below.scope.get(identity)) for _, identity in below.columns):
            self.findings.append(
                Finding(_WAIT, "DISTINCT without event time in the rows; not supported yet", "select event_time", node)
            )
        return Relation(below.scope, below.columns, below.floats, linear=False)

    def _expand(self, node: Node) -> Relation:
        """Overlapping windows and grouping sets: each row becomes several, so each of them is a path of its own."""
        attributes = node.expressions("output")
        branches = []
        for row in node.fields["projections"]:
            below = self.go(node.only)
            values = tuple(build(expression) for expression in row)
            scope = {
                attribute.id: influence(value, below.scope)
                for attribute, value in zip(attributes, values, strict=True)
                if attribute.id is not None
            }
            branches.append(Relation(scope, _columns(attributes), _floats(attributes), linear=False))
        return _merged(branches)

    def _union(self, node: Node) -> Relation:
        return _merged([self.go(child) for child in node.children])

    def _with(self, node: Node) -> Relation:
        relation = Relation({}, (), frozenset())
        for child in node.children:
            relation = self.go(child)
        return relation

    def _definition(self, node: Node) -> Relation:
        self._shared[node.fields["id"]] = node.only
        return Relation({}, (), frozenset())

    def _reference(self, node: Node) -> Relation:
        """Every use of a common table expression reads its inputs anew: other uses, other paths."""
        shared = self.go(self._shared[node.fields["cteId"]])
        attributes = node.expressions("output")
        renamed = {
            attribute.id: shared.scope.get(identity)
            for attribute, (_, identity) in zip(attributes, shared.columns, strict=True)
            if attribute.id is not None
        }
        return Relation(renamed, _columns(attributes), _floats(attributes), shared.linear)


_RULES: Final[Mapping[str, Callable[[Walk, Node], Relation]]] = {
    "Project": Walk._project,
    "Filter": Walk._pass,
    "SubqueryAlias": Walk._pass,
    "View": Walk._pass,
    "LogicalRDD": Walk._opaque_leaf,
    "LocalRelation": Walk._opaque_leaf,
    "LogicalRelation": Walk._opaque_leaf,
    "Generate": Walk._generate,
    "Aggregate": Walk._aggregate,
    "Distinct": Walk._distinct,
    "Union": Walk._union,
    "Expand": Walk._expand,
    "WithCTE": Walk._with,
    "CTERelationDef": Walk._definition,
    "CTERelationRef": Walk._reference,
}


def _table(view: Node) -> str:
    """Name of a temporary view."""
    description = view.fields.get("desc")
    return str(description["identifier"]["table"]) if view.fields.get("isTempView") and description else ""


def _columns(attributes: tuple[Node, ...]) -> tuple[tuple[str, int], ...]:
    return tuple((attribute.name, attribute.id) for attribute in attributes if attribute.id is not None)


def _floats(attributes: tuple[Node, ...]) -> frozenset[int]:
    return frozenset(attribute.id for attribute in attributes if attribute.id is not None and is_float(attribute))


def _timed(value: Value) -> bool:
    if isinstance(value, Fields):
        return any(value.of)
    return bool(value)


def _projection(expressions: tuple[Node, ...], below: Relation, linear: bool) -> Relation:
    scope: dict[int, Value] = {}
    for expression in expressions:
        value = influence(expression, below.scope)
        if value is not None and expression.id is not None:
            scope[expression.id] = value
    return Relation(scope, _columns(expressions), _floats(expressions), linear)


def _merged(branches: list[Relation]) -> Relation:
    """Rows of several relations by position. A column keeps event time only if it does in every branch."""
    first = branches[0]
    scope: dict[int, Value] = {}
    for position, (_, identity) in enumerate(first.columns):
        values = [branch.scope.get(branch.columns[position][1]) for branch in branches]
        if all(isinstance(value, Fields) for value in values):
            structs = [value.of for value in values if isinstance(value, Fields)]
            scope[identity] = Fields(tuple(_joint(parts) for parts in zip(*structs, strict=True)))
        elif not any(isinstance(value, Fields) for value in values):
            scope[identity] = _joint(tuple(path_of(value) for value in values))
    floats = frozenset(
        identity
        for position, (_, identity) in enumerate(first.columns)
        if any(branch.columns[position][1] in branch.floats for branch in branches)
    )
    return Relation(scope, first.columns, floats, all(branch.linear for branch in branches))


def _joint(parts: tuple[Influence | None, ...]) -> Influence | None:
    """Of several branches together; their paths differ."""
    return {path: interval for part in parts if part for path, interval in part.items()} if all(parts) else None


def _float_key(node: Node, name: str = "") -> Finding:
    shown = name or node.name or "a key"
    return Finding(
        "float-key",
        f"{shown} is floating point: which of 0.0 and -0.0 represents a group depends on the order of the rows",
        "cast(x as decimal(38,12))",
        node,
    )


def path_of(value: Value) -> Influence:
    """The influence of a plain column; empty when there is none."""
    return value if isinstance(value, Mapping) else {}
