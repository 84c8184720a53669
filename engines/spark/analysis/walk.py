"""Walks through the operators of an analysed plan from the inputs up, and derives how event time passes through.

Each operator has one rule; an operator without a rule is refused. New shapes are new rules. The walk collects every
finding instead of stopping at the first, so that a person can correct all faults at once. Spec:
docs/spec/engine-semantics.md#influence, #shapes, #classification.

The query of an ingest is checked by the same code and lists as a transform, so that the same bytes of a source give the
same rows, whoever reads them and however they are cut into parts. What differs: an ingest has all of its rows, so
nothing is refused because of rows that are still to come; and it may use the functions that the table of functions
permits in ``preprocess``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from chain.errors import Invalid
from engines.spark.analysis.determinism import QueryFinding, arguments, computed_exactly, examine, is_float, is_map
from engines.spark.analysis.functions import SUBQUERIES, Use
from engines.spark.analysis.influence import (
    FieldInfluences,
    Influence,
    InfluenceInterval,
    SessionMember,
    SessionWindow,
    Unmerged,
    Value,
    VersionedInput,
    influence,
    shift_of,
    widen_to_key,
)
from engines.spark.analysis.joins import (
    TYPES,
    Filters,
    Nearness,
    equal_columns,
    filters_above_joins,
    join_relations,
    kind_of,
    nearness,
    until_superseded,
)
from engines.spark.analysis.refusals import (
    AS_OF,
    GROUPING_SET_TIME,
    HISTORY,
    MIXED_MODE,
    NO_TIME,
    NO_WINDOW,
    NOT_KEY_LOCAL,
    NOT_YET,
    OPERATION,
    OUTER_TIME,
    REFUSED,
    UNBOUNDED_FRAME,
    UNBOUNDED_JOIN,
    VALID_TO_USED,
    OperatorRefusal,
    as_of_changes,
    float_key,
    map_key,
    node_to_show,
)
from engines.spark.analysis.relation import (
    InputReadings,
    QueryRelation,
    columns_of,
    floats_of,
    is_timed,
    merge_branches,
    path_of,
    projection,
    source_of,
    time_of,
)
from engines.spark.analysis.tables import RANKS, Core
from engines.spark.analysis.tree import PASSING, PlanNode, build, temp_view
from engines.spark.analysis.window_functions import (
    find_undecided,
    frames_of,
    judge_window,
    live_columns,
    relation_of,
    undecided_limit,
)

_EXPRESSIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "Project": ("projectList",),
    "Filter": ("condition",),
    "Generate": ("generator",),
    "Aggregate": ("groupingExpressions", "aggregateExpressions"),
    "Join": ("condition",),
    "AsOfJoin": ("asOfCondition", "condition"),
    "Window": ("windowExpressions", "partitionSpec", "orderSpec"),
}
"""Fields of operators that hold expressions written by a person."""
JOINS: Final = ("Join", "AsOfJoin")
VALID_FROM: Final = "valid_from"
VALID_TO: Final = "valid_to"
"""Names of the columns with a version's period, of an input that the query sees as versions."""
MAX_PATHS: Final = 64
"""Most occurrences of inputs in one query, where each use of a common table expression counts."""
_LEAVES: Final = {"LogicalRDD", "LocalRelation", "LogicalRelation"}


@dataclass(slots=True)
class Walk:
    """Walks over one plan. ``paths`` holds the alias of the input of each path, in order of discovery."""

    event_times: Mapping[str, str]
    """Name of the event time column by input alias."""
    temporal: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Primary keys of inputs that the query sees as versions, by alias."""
    readings: InputReadings = field(default_factory=InputReadings)
    paths: list[str] = field(default_factory=list)
    copies: dict[int, int] = field(default_factory=dict)
    """Path that an operator made as a copy of another -> the first of them."""
    findings: list[QueryFinding] = field(default_factory=list)
    tables: list[Core] = field(default_factory=list)
    """Operators whose results are never final."""
    operations: list[QueryFinding] = field(default_factory=list)
    """Findings where something is computed from ``op``, a column that only rows passed on one by one have."""
    settled: list[Core] = field(default_factory=list)
    """Operators that combine rows within windows of event time."""
    running: list[Core] = field(default_factory=list)
    """Window operators that look at all history in the order of event time, from the inputs up."""
    shared: dict[int, PlanNode] = field(default_factory=dict)
    exact: bool = False
    """Whether there are aggregates that are computed exactly, not as Spark does."""
    _live: dict[int, frozenset[int] | None] = field(default_factory=dict)
    _filters: Filters = field(default_factory=Filters)
    _pairs: int = 0
    _ends: dict[int, int] = field(default_factory=dict)
    """Id of a column ``valid_to`` -> id of its ``valid_from``."""
    _ops: set[int] = field(default_factory=set)
    _as_of: set[str] = field(default_factory=set)
    """Inputs of which as-of joins see only the latest rows, so nothing else in the query can read them."""

    def of(self, plan: PlanNode) -> QueryRelation:
        self._live = live_columns(plan)
        self._filters = filters_above_joins(plan)
        return self.go(plan)

    def alias_of(self, node: PlanNode) -> str | None:
        """Returns the alias of the input that an operator reads; ``None`` for other operators."""
        return alias if node.kind == "View" and (alias := temp_view(node)) in self.event_times else None

    def go(self, node: PlanNode) -> QueryRelation:
        """Returns an operator's relation, derived from its children's."""
        if (alias := self.alias_of(node)) is not None:
            return self._input(alias, node)
        for name in _EXPRESSIONS.get(node.kind, ()):
            for expression in node.expressions(name):
                self._examine(expression)
        rule = self._rule(node.kind)
        if rule is not None:
            relation = rule(self, node)
            self._find_operations(node)
            if node.kind not in JOINS and id(node) not in self._filters.used and self._ends:
                self._guard_ends(node)
            return relation
        refusal = REFUSED.get(node.kind)
        if refusal is None:
            refusal = OperatorRefusal(
                "unknown-operator",
                f"{node.kind} is not among the statements that a transform can be made of",
                "use SELECT over the inputs",
            )
        self._refuse(refusal, node)
        return self._opaque(node)

    def _examine(self, expression: PlanNode) -> None:
        self.findings.extend(examine(expression))
        self.exact = self.exact or any(map(computed_exactly, expression.preorder()))

    def _rule(self, kind: str) -> Callable[[Walk, PlanNode], QueryRelation] | None:
        return _RULES.get(kind)

    def _find_operations(self, node: PlanNode) -> None:
        for name in _EXPRESSIONS.get(node.kind, ()) if self._ops else ():
            for expression in node.expressions(name):
                passed_on = expression.kind == "AttributeReference" and node.kind == "Project"
                used = {part.id for part in expression.preorder() if part.kind == "AttributeReference"}
                if used & self._ops and not passed_on:
                    self.operations.append(QueryFinding("op-not-available", *OPERATION, expression))

    def _guard_ends(self, node: PlanNode) -> None:
        """Refuses a ``valid_to`` that is not in a join's condition: anything else would be a guess about the future."""
        for name in _EXPRESSIONS.get(node.kind, ()):
            for expression in node.expressions(name):
                used = {part.id for part in expression.preorder() if part.kind == "AttributeReference"}
                if expression.kind != "AttributeReference" and used & set(self._ends):
                    self._refuse(VALID_TO_USED, node)

    def _table(self, node: PlanNode, below: QueryRelation, refusal: OperatorRefusal) -> None:
        """Notes an operator whose result is never final; whether it can be maintained is decided for
        the plan as a whole."""
        self.tables.append(Core(node, below, _finding(refusal, node)))

    def _refuse(self, refusal: OperatorRefusal, node: PlanNode) -> None:
        self.findings.append(_finding(refusal, node))

    def _opaque(self, node: PlanNode) -> QueryRelation:
        """Walks on below an operator that is refused, to find other faults."""
        below = [self.go(child) for child in node.children]
        shown = below[:1] if node.kind in ("Except", "Intersect") else below
        columns = tuple(column for relation in shown for column in relation.columns)
        return QueryRelation({}, columns, frozenset(), linear=False)

    def _input(self, alias: str, node: PlanNode) -> QueryRelation:
        leaf = node
        while leaf.children:
            leaf = leaf.only
        attributes = leaf.expressions("output")
        path = len(self.paths)
        if alias in self._as_of:
            self._refuse(AS_OF, node)
        if path == MAX_PATHS:
            raise Invalid(
                f"the query reads its inputs more than {MAX_PATHS} times",
                rule="plan-too-large",
                hint="make an inner part a dataset of its own",
            )
        self.paths.append(alias)
        time = self.event_times[alias]
        known = [(attribute.name, attribute.id) for attribute in attributes if attribute.id is not None]
        scope: dict[int, Value] = {identity: {path: InfluenceInterval()} for name, identity in known if name == time}
        if alias in self.temporal:
            ids = dict(known)
            scope = {
                ids[VALID_FROM]: {path: InfluenceInterval(life=VersionedInput(self.temporal[alias], clamped=True))}
            }
            self._ends[ids[VALID_TO]] = ids[VALID_FROM]
        if alias not in self.readings.logs:
            self._ops.update(identity for name, identity in known if name == self.readings.operations.get(alias))
        origins = {identity: {path: name} for name, identity in known}
        rows_of = None if alias in self.temporal else frozenset({path})
        return QueryRelation(scope, columns_of(attributes), floats_of(attributes), origins=origins, rows_of=rows_of)

    def _pass(self, node: PlanNode) -> QueryRelation:
        if node.kind in _LEAVES or not node.children:
            return self._opaque_leaf(node)
        return self.go(node.only)

    def _opaque_leaf(self, node: PlanNode) -> QueryRelation:
        attributes = node.expressions("output")
        self.findings.append(
            QueryFinding(
                "not-data", "the query reads rows that are in none of its inputs", "select from an input", node
            )
        )
        return QueryRelation({}, columns_of(attributes), floats_of(attributes))

    def _project(self, node: PlanNode) -> QueryRelation:
        below = self.go(node.only)
        return projection(node.expressions("projectList"), below, below.linear)

    def _generate(self, node: PlanNode) -> QueryRelation:
        below = self.go(node.only)
        made = node.expressions("generatorOutput")
        return QueryRelation(
            below.scope, below.columns + columns_of(made), below.floats | floats_of(made), below.linear, below.origins
        )

    def _aggregate(self, node: PlanNode) -> QueryRelation:
        below = self.go(node.only)
        keys = node.expressions("groupingExpressions")
        for key in keys:
            if is_float(key):
                self.findings.append(float_key(node_to_show(key, node), key.name))
            elif is_map(key):
                self.findings.append(map_key(node_to_show(key, node), key.name))
        below = self._sessions(node, keys, below)
        times = [time for key in keys if (time := time_of(influence(key, below.scope)))]
        if not times and not any(isinstance(influence(key, below.scope), Unmerged) for key in keys):
            sets = any(part.name == "spark_grouping_id" for key in keys for part in key.preorder())
            if sets:
                self._refuse(GROUPING_SET_TIME, node)
            else:
                self._table(node, below, NO_WINDOW)
        else:
            self.settled.append(Core(node, below, _finding(NO_WINDOW, node)))
        made = node.expressions("aggregateExpressions")
        relation = projection(made, below, linear=False)
        extremes = {
            each.id: wide
            for each in made
            if times and each.id is not None and (wide := _extreme(each, below, times[0])) is not None
        }
        return replace(relation, scope={**relation.scope, **extremes}, rows_of=None)

    def _sessions(self, node: PlanNode, keys: tuple[PlanNode, ...], below: QueryRelation) -> QueryRelation:
        """Merges rows by ``session_window()``: only the session's end is bounded, by the data."""
        scope = dict(below.scope)
        for key in keys:
            whole = below.scope.get(key.id) if key.id is not None else None
            if not isinstance(whole, Unmerged):
                continue
            shifts = {path: shift for path, interval in whole.of.items() if (shift := shift_of(interval)) is not None}
            if not (whole.gap and whole.of and below.linear and len(shifts) == len(whole.of)) or key.id is None:
                self._refuse(
                    OperatorRefusal(
                        NOT_YET,
                        "sessions are made of an input's own rows and times, with a constant gap",
                        "group by session_window(event_time, …) straight over an input",
                    ),
                    node,
                )
                continue
            members = self._members(keys, shifts, below)
            ends = {
                path: replace(interval, life=SessionWindow(whole.gap, members, shifts[path]))
                for path, interval in whole.of.items()
            }
            scope[key.id] = FieldInfluences((None, ends))
        return replace(below, scope=scope)

    def _members(
        self, keys: tuple[PlanNode, ...], shifts: Mapping[int, int], below: QueryRelation
    ) -> tuple[SessionMember, ...]:
        """Lists the members of sessions, with the keys that every path has unchanged: only these surely
        separate their rows."""
        sources = [below.origins.get(key.id, {}) for key in keys if key.id is not None]
        shared = sorted({tuple(of[path] for path in shifts) for of in sources if set(shifts) <= set(of)})
        return tuple(
            SessionMember(self.paths[path], shift, tuple(names[at] for names in shared))
            for at, (path, shift) in enumerate(shifts.items())
        )

    def _distinct(self, node: PlanNode) -> QueryRelation:
        below = self.go(node.only)
        for name, identity in below.columns:
            if identity in below.floats:
                self.findings.append(float_key(node, name))
        if not any(is_timed(below.scope.get(identity)) for _, identity in below.columns):
            self._table(node, below, NO_TIME)
        else:
            self.settled.append(Core(node, below, _finding(NO_TIME, node)))
        return replace(below, linear=False, rows_of=None)

    def _join(self, node: PlanNode) -> QueryRelation:
        kind = kind_of(node)
        tables, first = len(self.tables), len(self.paths)
        left, right = (self.go(child) for child in node.children)
        if kind not in TYPES:
            self._refuse(
                OperatorRefusal(NOT_YET, f"this engine does not know a join of kind {kind}", "use JOIN … ON"), node
            )
            return self._opaque_join(left, right)
        conditions = (
            *node.expressions("asOfCondition"),
            *node.expressions("condition"),
            *self._filters.of.get(id(node), ()),
        )
        near = nearness(conditions, left.scope, right.scope)
        if until_superseded(conditions, self._ends, near):
            self._refuse(VALID_TO_USED, node)
        if node.kind == "AsOfJoin" and not set(self._ends.values()) & set(right.scope):
            right = self._latest(node, right, near)
        self._pairs += 1
        relation, bounded = join_relations(kind, left, right, near, self._pairs)
        if not bounded and not self.findings:
            self._accept_unbounded(node, relation, self.paths[first:], tables)
        return relation

    def _accept_unbounded(self, node: PlanNode, relation: QueryRelation, inputs: Sequence[str], tables: int) -> None:
        """Accepts a join without bounds as one of tables if no input only grows: else all history of
        that one would be kept."""
        can_change = {self.readings.can_change(alias) for alias in inputs}
        if kind_of(node) == "FullOuter":
            self._refuse(OUTER_TIME, node)
        elif True in can_change and False not in can_change:
            self._table(node, relation, NOT_KEY_LOCAL)
        elif len(self.tables) > tables:
            self._refuse(MIXED_MODE, self.tables[tables].node)
        else:
            self._refuse(UNBOUNDED_JOIN, node)

    def _latest(self, node: PlanNode, right: QueryRelation, near: Nearness) -> QueryRelation:
        """Handles an as-of join onto an input that only grows: of each key the latest row so far is
        in force until the next."""
        inside = node.children[1]
        while inside.kind in PASSING and temp_view(inside) not in self.event_times:
            inside = inside.only
        keys = equal_columns(node.expressions("condition"), right)
        found = [(identity, time) for identity, value in right.scope.items() if (time := path_of(value))]
        alias = temp_view(inside) if inside.kind == "View" else ""
        if alias not in self.event_times or keys is None or len(found) != 1 or self.paths.count(alias) != 1:
            self._refuse(AS_OF, node)
            return right
        (identity, time), names = found[0], tuple(sorted(keys))
        if self.readings.changes.get(alias):
            self._refuse(as_of_changes(alias, names), node)
        self._as_of.add(alias)
        for x, _ in [pair for pair in near.lower if pair[1] == (identity, None)]:
            near.upper[x, (identity, None)] = ()
        life = VersionedInput(names, clamped=False)
        scope: dict[int, Value] = {identity: {path: replace(each, life=life) for path, each in time.items()}}
        return replace(right, scope=scope)

    def _opaque_join(self, left: QueryRelation, right: QueryRelation) -> QueryRelation:
        return QueryRelation({}, left.columns + right.columns, left.floats | right.floats, linear=False)

    def _window(self, node: PlanNode) -> QueryRelation:
        below = self.go(node.only)
        offsets = [self.readings.offsets.get(alias) for alias in self.paths]
        self.findings.extend(find_undecided(node, self._live.get(id(node)), below, offsets))
        relation = relation_of(node, below)
        if relation is None:
            if all(frame.function in RANKS for frame in frames_of(node)) and node.fields.get("partitionSpec"):
                self._table(node, below, UNBOUNDED_FRAME)
            else:
                found = judge_window(node, below)
                if isinstance(found, QueryRelation):
                    self.running.append(Core(node, below, _finding(UNBOUNDED_FRAME, node)))
                    return found
                self.findings.append(found)
            made = node.expressions("windowExpressions")
            return QueryRelation({}, below.columns + columns_of(made), below.floats | floats_of(made), linear=False)
        self.settled.append(Core(node, below, _finding(UNBOUNDED_FRAME, node)))
        return relation

    def _expand(self, node: PlanNode) -> QueryRelation:
        """Handles overlapping windows and grouping sets, which make several rows of each; each of them is a path of its
        own.

        Still the paths are of one occurrence: a row is late for all of them, or for none.
        """
        attributes = node.expressions("output")
        branches, first = [], len(self.paths)
        for number, row in enumerate(node.fields["projections"]):
            start = len(self.paths)
            below = self.go(node.only)
            if number:
                self.copies.update({path: path - start + first for path in range(start, len(self.paths))})
            values = tuple(build(expression) for expression in row)
            scope = {
                attribute.id: influence(value, below.scope)
                for attribute, value in zip(attributes, values, strict=True)
                if attribute.id is not None
            }
            origins = {
                attribute.id: source
                for attribute, value in zip(attributes, values, strict=True)
                if attribute.id is not None and (source := source_of(value, below)) is not None
            }
            branches.append(QueryRelation(scope, columns_of(attributes), floats_of(attributes), False, origins))
        return merge_branches(branches)

    def occurrence(self, path: int) -> int:
        """Returns the first of the paths of the same occurrence of an input."""
        while path in self.copies:
            path = self.copies[path]
        return path

    def _union(self, node: PlanNode) -> QueryRelation:
        return merge_branches([self.go(child) for child in node.children])

    def _with(self, node: PlanNode) -> QueryRelation:
        relation = QueryRelation({}, (), frozenset())
        for child in node.children:
            relation = self.go(child)
        return relation

    def _definition(self, node: PlanNode) -> QueryRelation:
        self.shared[node.fields["id"]] = node.only
        return QueryRelation({}, (), frozenset())

    def _reference(self, node: PlanNode) -> QueryRelation:
        """Reads the inputs again for every use of a common table expression: each use has paths of its own."""
        shared = self.go(self.shared[node.fields["cteId"]])
        attributes = node.expressions("output")
        renamed = {
            attribute.id: shared.scope.get(identity)
            for attribute, (_, identity) in zip(attributes, shared.columns, strict=True)
            if attribute.id is not None
        }
        origins = {
            attribute.id: shared.origins[identity]
            for attribute, (_, identity) in zip(attributes, shared.columns, strict=True)
            if attribute.id is not None and identity in shared.origins
        }
        rows_of = shared.rows_of
        return QueryRelation(renamed, columns_of(attributes), floats_of(attributes), shared.linear, origins, rows_of)


_RULES: Final[Mapping[str, Callable[[Walk, PlanNode], QueryRelation]]] = {
    "Project": Walk._project,
    "Filter": Walk._pass,
    **dict.fromkeys(PASSING, Walk._pass),
    "LogicalRDD": Walk._opaque_leaf,
    "LocalRelation": Walk._opaque_leaf,
    "LogicalRelation": Walk._opaque_leaf,
    "Generate": Walk._generate,
    "Aggregate": Walk._aggregate,
    "Distinct": Walk._distinct,
    "Union": Walk._union,
    "Join": Walk._join,
    "AsOfJoin": Walk._join,
    "Window": Walk._window,
    "Expand": Walk._expand,
    "WithCTE": Walk._with,
    "CTERelationDef": Walk._definition,
    "CTERelationRef": Walk._reference,
}


def _finding(refusal: OperatorRefusal, node: PlanNode) -> QueryFinding:
    return QueryFinding(refusal.code, refusal.message, refusal.replace, node)


def _extreme(expression: PlanNode, below: QueryRelation, key: Influence) -> Influence | None:
    """Returns the influence of ``min`` or ``max`` of a time: it is the time of some row of the group."""
    inner = expression.only if expression.kind == "Alias" else expression
    if inner.kind != "AggregateExpression" or inner.only.kind not in ("Min", "Max"):
        return None
    return widen_to_key(path_of(influence(inner.only.only, below.scope)), key)


_OF_TIME: Final = frozenset(
    refusal.code
    for refusal in (
        UNBOUNDED_JOIN, UNBOUNDED_FRAME, NO_WINDOW, GROUPING_SET_TIME, NOT_KEY_LOCAL, MIXED_MODE, HISTORY, OUTER_TIME,
    )
)  # fmt: skip
"""Findings about rows that are still to come."""
_ONE_ZERO: Final = "float-key"
"""The finding about keys in floating point: Spark groups all rows at once, and makes one zero and one NaN of them."""


def walk_of_ingest(plan: PlanNode, view: str) -> list[QueryFinding]:
    """Lists what is not permitted in an analysed query over the rows in ``view``."""
    walk = _WalkOfIngest({view: ""})
    walk.of(plan)
    return [finding for finding in walk.findings if finding.code not in _OF_TIME | {_ONE_ZERO}]


@dataclass(slots=True)
class _WalkOfIngest(Walk):
    def _rule(self, kind: str) -> Callable[[Walk, PlanNode], QueryRelation] | None:
        return _MORE.get(kind) or Walk._rule(self, kind)

    def _examine(self, expression: PlanNode) -> None:
        self.findings.extend(examine(expression, Use.PREPROCESS))
        for part in expression.preorder():
            for plan in part.expressions("plan") if part.kind in SUBQUERIES else ():
                self.go(plan)

    def _sessions(self, _node: PlanNode, _keys: tuple[PlanNode, ...], below: QueryRelation) -> QueryRelation:
        return below  # their ends need not be known


def _more(walk: Walk, node: PlanNode) -> QueryRelation:
    for expression in arguments(node):
        walk._examine(expression)
    return walk._opaque(node)


def _sort(walk: Walk, node: PlanNode) -> QueryRelation:
    for expression in node.expressions("order"):
        walk._examine(expression)
    return walk.go(node.only)


def _limit(walk: Walk, node: PlanNode) -> QueryRelation:
    below = walk.go(node.only)
    finding = undecided_limit(node, below, [walk.readings.offsets.get(alias) for alias in walk.paths])
    if finding is not None:
        walk.findings.append(finding)
    return below


def _constant(_: Walk, node: PlanNode) -> QueryRelation:
    attributes = node.expressions("output")
    return QueryRelation({}, columns_of(attributes), floats_of(attributes))


_MORE: Final[Mapping[str, Callable[[Walk, PlanNode], QueryRelation]]] = {
    "Sort": _sort,
    **dict.fromkeys(("GlobalLimit", "Offset"), _limit),
    "LocalLimit": Walk._pass,
    **dict.fromkeys(("Except", "Intersect", "LateralJoin"), _more),
    **dict.fromkeys(("LogicalRDD", "LocalRelation", "LogicalRelation", "OneRowRelation", "Range"), _constant),
}
"""Operators that an ingest may have and a transform may not."""
