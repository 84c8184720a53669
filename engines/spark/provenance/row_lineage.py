"""Adds a column to the user's query that lists which input rows each row of the result was made of.

Every operator of the analysed plan passes the column on by a rule of its own: a group has the rows of its members, a
joined pair those of both sides, a rank its own row and those ranked before it. Values are computed as usual. If one
column of the result is asked about, only rows on which that column, and the row's presence, depends are collected: for
``max`` the rows that attain it. Spec: docs/spec/engine-semantics.md#influence, #changelogs, #shapes;
docs/explanation/provenance.md defines which rows contribute.

The elements of the lineage column are numbers: path, role and row of a witness in one integer, valid only within one
request. Here they are also decoded, put in the order in which witnesses are reported, and counted. The steps of a path
are the operators between an input and the result, as the JVM's plan has them, whose nodes know where in the text they
were written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from pyspark.sql import SparkSession

from chain.errors import Invalid
from engines.spark.catalyst.expressions import Catalyst, column, over_as_sql, parts, references
from engines.spark.catalyst.plans import items, kind_of

MAX_DETAIL: Final = 300
"""Most characters of an operator's condition, keys or functions."""

_TOGETHER: Final = frozenset({"group by", "distinct", "over"})
"""Operators that combine several rows into one."""


@dataclass(frozen=True, slots=True)
class PathOperator:
    """One operator on the path from an input to the result."""

    number: int
    """Number of the operator in its plan."""
    operator: str
    """``where``, ``group by``, ``left outer join``, ``over``, …"""
    detail: str
    """Its condition, keys or functions, as Spark writes them."""
    query: int | None
    """Number of the query; ``None``: the last."""
    line: int | None
    column: int | None
    hides: bool = False
    """Whether rows that it removed, or earlier rows that it added up, affect the record without being listed."""


def reason_of(
    plan: Any, kind: str, number: int, query: int | None, above: Sequence[PathOperator], history: bool = False,
    asked: str | None = None,
) -> PathOperator | None:  # fmt: skip
    """Describes an operator; ``None`` for aliases and plain lists of columns. ``above``: its parents.

    ``history``: of windows over all rows so far the earlier rows are not listed. ``asked``: the original functions,
    where the operator was made in place of another.
    """
    told = _TOLD.get(kind)
    if told is None:
        return None
    operator, detail = told(plan)
    detail = asked or detail
    origin = plan.origin()
    known = not (origin.line().isEmpty() or origin.startPosition().isEmpty())
    line, column = (origin.line().get(), origin.startPosition().get() + 1) if known else (None, None)
    detail = detail if len(detail) <= MAX_DETAIL else detail[: MAX_DETAIL - 1] + "…"
    counted = any(each.operator in _TOGETHER for each in above)
    hides = counted and _takes_away(plan, operator)
    if history and operator == "over":
        hides = hides or any(map(looks_back_to_the_first, items(plan.windowExpressions())))
    return PathOperator(number, operator, detail, query, line, column, hides)


def looks_back_to_the_first(function: Any) -> bool:
    """Whether the frame of a window function begins with the very first row, or skips any number of nulls."""
    over = next(part for part in parts(function) if kind_of(part) == "WindowExpression")
    low = kind_of(over.windowSpec().frameSpecification().lower())
    return bool(over.windowSpec().orderSpec().size()) and (
        low.startswith("UnboundedPreceding") or passes_over_nulls(over.windowFunction())
    )


def passes_over_nulls(function: Any) -> bool:
    """Whether a function is ``lag`` or ``lead`` with IGNORE NULLS, whose frame does not bound its reach."""
    return kind_of(function) in ("Lag", "Lead") and bool(function.ignoreNulls())


def _takes_away(plan: Any, operator: str) -> bool:
    """Whether a row can keep another out of the result: in an anti join, or by a condition on an aggregate."""
    return operator == "left anti join" or (operator == "where" and _puts_together(plan.child()))


def _puts_together(plan: Any) -> bool:
    return kind_of(plan) in ("Aggregate", "Distinct", "Window") or any(map(_puts_together, items(plan.children())))


def name_of_view(view: Any) -> str:
    return str(view.desc().identifier().table())


def _list_sql(expressions: Any) -> str:
    return ", ".join(str(item.sql()) for item in items(expressions))


def _join(plan: Any) -> tuple[str, str]:
    condition = plan.condition()
    return f"{str(plan.joinType().sql()).lower()} join", str(condition.get().sql()) if condition.isDefined() else ""


def _as_of(plan: Any) -> tuple[str, str]:
    asked = [str(plan.asOfCondition().sql())]
    asked += [str(plan.condition().get().sql())] if plan.condition().isDefined() else []
    return "asof join", " and ".join(asked)


def _window(plan: Any) -> tuple[str, str]:
    return "over", over_as_sql(plan)


_TOLD: Final[Mapping[str, Any]] = {
    "Filter": lambda plan: ("where", str(plan.condition().sql())),
    "Aggregate": lambda plan: ("group by", _list_sql(plan.groupingExpressions())),
    "Distinct": lambda _: ("distinct", ""),
    "Generate": lambda plan: ("explode", str(plan.generator().sql())),
    "Union": lambda _: ("union all", ""),
    "Join": _join,
    "AsOfJoin": _as_of,
    "Window": _window,
}


ROWS: Final = 1 << 40
"""Most rows of all inputs of one request."""
DECIDES: Final = ROWS
"""Bit set for a row that was compared but is not itself in the result: one ranked before, or found by a semi join."""
PATH: Final = DECIDES << 1
"""Unit of the path's number, an occurrence of an input in the plan; there are at most 64."""


@dataclass(frozen=True, slots=True)
class RowWitness:
    """A row of an input that contributed to a row of the result."""

    source: int
    """Number of the input."""
    offset: int
    path: int
    decides: bool


def witnesses(
    lineage: np.ndarray, sources: np.ndarray, offsets: np.ndarray, limit: int
) -> tuple[list[RowWitness], int]:
    """Returns the first ``limit`` witnesses, ordered by input, offset and path; and their total number.

    ``sources`` and ``offsets``: of every row of the request, by its number. A row that is in the result on a path is
    not listed again for that path as one that decides.
    """
    numbers = np.unique(lineage)
    rows, decides, paths = numbers % ROWS, (numbers // DECIDES) % 2, numbers // PATH
    places = np.stack([sources[rows], offsets[rows], paths, decides]) if len(rows) else np.empty((4, 0), np.int64)
    order = np.lexsort(places[::-1])
    places = places[:, order]
    first = np.ones(places.shape[1], bool)
    first[1:] = np.any(places[:3, 1:] != places[:3, :-1], axis=0)
    kept = places[:, first]
    told = [RowWitness(int(s), int(o), int(p), bool(d)) for s, o, p, d in kept[:, :limit].T]
    return told, kept.shape[1]


def pick(same: Sequence[Sequence[int]], place: int) -> int:
    """Picks, of equal rows, the one at ``place`` in the order of their lineage, so that the choice is
    always the same."""
    order = sorted(range(len(same)), key=lambda at: sorted(same[at]))
    return order[place]


ROW: Final = "__odf_row"
"""Hidden column below the views, with a number for every row of every input."""
LINEAGE: Final = "__odf_lineage"
"""Column ``array<bigint>`` of input rows, with path and role (``RowWitness``)."""
_RIGHT: Final = "__odf_right"
_UNIQUE: Final = "__odf_unique"
_NULLS_PASSED: Final = frozenset({
    "Sum", "Count", "Average", "Min", "Max", "BoolAnd", "BoolOr", "BitAndAgg", "BitOrAgg", "BitXorAgg",
    "VariancePop", "VarianceSamp", "StddevPop", "StddevSamp", "CollectList", "CollectSet",
})  # fmt: skip
"""Aggregates that ignore a row without a value."""
_RANKS: Final = frozenset({"RowNumber", "Rank", "DenseRank"})
_WHOLE: Final = frozenset({"PercentRank", "CumeDist", "NTile"})
"""Window functions that depend on the size of the partition."""
Attributes = frozenset[int] | None
"""Ids of the attributes that are asked about; ``None``: the row as a whole."""


@dataclass(frozen=True, slots=True)
class Traced:
    """A plan whose last column is ``LINEAGE``, and the path from each input to its result."""

    plan: Any
    paths: tuple[tuple[PathOperator, ...], ...]
    """By number of the path: its operators, from the input up."""
    inputs: tuple[str, ...]
    """By number of the path: the alias of its input."""


def trace(
    session: SparkSession, plan: Any, aliases: Mapping[str, int], asked: str | None = None, running: int = 0
) -> Traced:
    """Traces ``plan``, which is analysed, over views with a hidden column ``ROW``.

    ``aliases``: number of each named query, for places in the text. ``running``: how many windows, from the root down,
    are over all history: functions over all rows so far list only the row itself, as the record before it lists earlier
    ones. Raises Invalid for an unknown column.
    """
    tracing = _Tracing(Catalyst(session), aliases, running)
    whole = tracing.catalyst.inline(plan)
    wanted: Attributes = None
    if asked is not None:
        found = column(whole, asked)
        if found is None:
            names = ", ".join(item.name() for item in items(whole.output()) if not item.name().startswith("__odf_"))
            raise Invalid(f"the query has no column {asked!r}", rule="provenance-column", hint=f"columns: {names}")
        wanted = frozenset({found.exprId().id()})
    traced = tracing.go(whole, wanted)
    return Traced(traced, tuple(tracing.paths), tuple(tracing.inputs))


@dataclass(slots=True)
class _Tracing:
    catalyst: Catalyst
    aliases: Mapping[str, int]
    running: int = 0
    """Windows over all history that are still below the current operator."""
    paths: list[tuple[PathOperator, ...]] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    above: list[PathOperator] = field(default_factory=list)
    view: str = ""
    """Name of the view that contains the current operators."""
    operators: int = 0
    query: int | None = None
    """Number of the query that contains the current operators; ``None``: the last."""

    def go(self, plan: Any, wanted: Attributes) -> Any:
        if column(plan, ROW) is not None:
            return self._input(plan)
        kind = kind_of(plan)
        rule = _RULES.get(kind)
        if rule is None:
            raise Invalid(
                f"rows cannot be traced through {kind}",
                rule="provenance-operator",
                hint="this is a gap of the engine; please report the query",
            )
        outside = self.query, self.view
        if kind == "View":
            self.view = name_of_view(plan)
            self.query = self.aliases.get(self.view, self.query)
        asked = self.catalyst.note_of(plan) if kind == "Window" else None
        reason = reason_of(plan, kind, self.operators, self.query, self.above, self.running > 0, asked)
        self.operators += 1
        self.above += [reason] if reason is not None else []
        made = rule(self, plan, wanted)
        self.above = self.above[:-1] if reason is not None else self.above
        self.query, self.view = outside
        return made

    def _input(self, plan: Any) -> Any:
        base = len(self.paths) * PATH
        self.paths.append(tuple(reversed(self.above)))
        self.inputs.append(self.view)
        lineage = self.catalyst.read(f"array({ROW} + {base}L) as {LINEAGE}")
        return self.catalyst.project([*items(plan.output()), lineage], plan)

    def _pass(self, plan: Any, wanted: Attributes) -> Any:
        return self._around(plan, self.go(plan.children().apply(0), wanted))

    def _filter(self, plan: Any, wanted: Attributes) -> Any:
        return self._around(plan, self.go(plan.child(), _more(wanted, [plan.condition()])))

    def _generate(self, plan: Any, wanted: Attributes) -> Any:
        return self._around(plan, self.go(plan.child(), _more(wanted, [plan.generator()])))

    def _project(self, plan: Any, wanted: Attributes) -> Any:
        listed = items(plan.projectList())
        below = self.go(plan.child(), _read_by(listed, wanted))
        return self.catalyst.project([*listed, _lineage(below)], below)

    def _around(self, plan: Any, below: Any) -> Any:
        return self.catalyst.analyse(plan.withNewChildren(self.catalyst.sequence([below])))

    def _union(self, plan: Any, wanted: Attributes) -> Any:
        places = [at for at, each in enumerate(items(plan.output())) if wanted is None or each.exprId().id() in wanted]
        branches = []
        for child in items(plan.children()):
            columns = items(child.output())
            mine = None if wanted is None else frozenset(columns[at].exprId().id() for at in places)
            below = self.go(child, mine)
            branches.append(self.catalyst.project([*columns, _lineage(below)], below))
        return self.catalyst.analyse(plan.withNewChildren(self.catalyst.sequence(branches)))

    def _expand(self, plan: Any, wanted: Attributes) -> Any:
        rows = [items(row) for row in items(plan.projections())]
        places = [at for at, each in enumerate(items(plan.output())) if wanted is None or each.exprId().id() in wanted]
        mine = None if wanted is None else references([row[at] for row in rows for at in places])
        below = self.go(plan.child(), mine)
        lineage = _lineage(below)
        longer = self.catalyst.sequence(self.catalyst.sequence([*row, lineage]) for row in rows)
        return self.catalyst.analyse(plan.copy(longer, plan.output().appended(lineage), below))

    def _distinct(self, plan: Any, _: Attributes) -> Any:
        below = self.go(plan.children().apply(0), None)
        columns = items(plan.output())
        return self.catalyst.aggregate(columns, [*columns, self.catalyst.read(_ALL)], below)

    def _aggregate(self, plan: Any, wanted: Attributes) -> Any:
        keys, made = items(plan.groupingExpressions()), items(plan.aggregateExpressions())
        asked = [each for each in made if wanted is not None and each.exprId().id() in wanted]
        functions = [part for each in asked for part in parts(each) if kind_of(part) == "AggregateExpression"]
        by_value = wanted is not None and all(any(kind_of(p) == "AggregateExpression" for p in parts(a)) for a in asked)
        if not by_value:
            # A key's value comes from any row of the group, so all rows are listed for it.
            below = self.go(plan.child(), None if wanted is None else references([*keys, *asked]))
            listed = plan.aggregateExpressions().appended(self.catalyst.read(_ALL))
            return self.catalyst.analyse(plan.copy(plan.groupingExpressions(), listed, below, plan.hint()))
        below = self.go(plan.child(), references([*keys, *functions]))
        return self._collect_values(plan, functions, below)

    def _collect_values(self, plan: Any, functions: list[Any], below: Any) -> Any:
        """Collects the rows from which the value of each function is made; for ``min`` and ``max``
        those that attain it."""
        read = self.catalyst.read
        facts, pieces = [], []
        for number, function in enumerate(functions):
            call, counts = function.aggregateFunction(), "true"
            arguments = items(call.children())
            if function.filter().isDefined():
                facts.append(self.catalyst.alias(function.filter().get(), f"__odf_if{number}"))
                counts = f"coalesce(__odf_if{number}, false)"
            extreme = kind_of(call) in ("Min", "Max")
            for place, argument in enumerate(arguments if kind_of(call) in _NULLS_PASSED else []):
                facts.append(self.catalyst.alias(argument, f"__odf_x{number}_{place}"))
                counts += f" and __odf_x{number}_{place} is not null"
            if extreme:
                value = f"__odf_x{number}_0"
                pieces.append(
                    read(
                        f"collect_list(struct({value} as x, {LINEAGE} as l)) filter (where {counts}) as __odf_p{number}"
                    )
                )
                name = "min" if kind_of(call) == "Min" else "max"
                pieces.append(read(f"{name}({value}) filter (where {counts}) as __odf_v{number}"))
            else:
                pieces.append(read(f"collect_list({LINEAGE}) filter (where {counts}) as __odf_p{number}"))
        wide = self.catalyst.project([*items(below.output()), *facts], below)
        made = plan.aggregateExpressions()
        for piece in (*pieces, read(_ALL)):
            made = made.appended(piece)
        grouped = self.catalyst.analyse(plan.copy(plan.groupingExpressions(), made, wide, plan.hint()))
        found = ", ".join(_collected_sql(number, kind_of(f.aggregateFunction())) for number, f in enumerate(functions))
        # If no row gave a value, all rows of the group are the reason.
        chosen = f"array_distinct(concat({found}))"
        final = read(f"if(size({chosen}) = 0, {LINEAGE}, {chosen}) as {LINEAGE}")
        return self.catalyst.project([*items(plan.output()), final], grouped)

    def _join(self, plan: Any, wanted: Attributes) -> Any:
        stated = plan.joinType().sql()
        conditions = [plan.condition().get()] if plan.condition().isDefined() else []
        left, right = (self.go(side, _more(wanted, conditions)) for side in (plan.left(), plan.right()))
        if stated == "LEFT ANTI":
            # The right side was walked for its paths alone: none of its rows contributes to the result.
            return self.catalyst.analyse(plan.copy(left, plan.right(), plan.joinType(), plan.condition(), plan.hint()))
        left, right = self._rename_lineage(left, LINEAGE), self._rename_lineage(right, _RIGHT)
        if stated == "LEFT SEMI":
            return self._semi(plan, left, right)
        joined = self.catalyst.analyse(plan.withNewChildren(self.catalyst.sequence([left, right])))
        return self.catalyst.project([*items(plan.output()), self.catalyst.read(_BOTH)], joined)

    def _as_of(self, plan: Any, _: Attributes) -> Any:
        left, right = (self.go(side, None) for side in (plan.left(), plan.right()))
        both = self.catalyst.sequence([self._rename_lineage(left, LINEAGE), self._rename_lineage(right, _RIGHT)])
        joined = self.catalyst.analyse(plan.withNewChildren(both))
        return self.catalyst.project([*items(plan.output()), self.catalyst.read(_BOTH)], joined)

    def _rename_lineage(self, side: Any, name: str) -> Any:
        """Renames the lineage of one side and gives it an id of its own: both sides may be of one input."""
        columns = [item for item in items(side.output()) if item.name() != LINEAGE]
        return self.catalyst.project([*columns, self.catalyst.alias(_lineage(side), name)], side)

    def _semi(self, plan: Any, left: Any, right: Any) -> Any:
        """Traces a semi join: each row of the left side once, with all rows of the right that match it."""
        columns = [item for item in items(left.output()) if item.name() != LINEAGE]
        unique = self.catalyst.read(f"monotonically_increasing_id() as {_UNIQUE}")
        left = self.catalyst.project([*items(left.output()), unique], left)
        pairs = plan.copy(left, right, self.catalyst.join_type("inner"), plan.condition(), plan.hint())
        decide = f"transform(flatten(collect_list({_RIGHT})), each -> each | {DECIDES}L)"
        lineage = self.catalyst.read(f"array_distinct(concat({LINEAGE}, {decide})) as {LINEAGE}")
        pairs = self.catalyst.analyse(pairs)
        keys = [*columns, _lineage(left), column(left, _UNIQUE)]
        return self.catalyst.project(
            [*columns, self.catalyst.read(LINEAGE)], self.catalyst.aggregate(keys, [*columns, lineage], pairs)
        )

    def _window(self, plan: Any, wanted: Attributes) -> Any:
        made, running = items(plan.windowExpressions()), self.running > 0
        self.running -= running
        asked = [each for each in made if wanted is None or each.exprId().id() in wanted]
        inner = _more(wanted, [*asked, *items(plan.partitionSpec()), *items(plan.orderSpec())] if asked else [])
        below = self.go(plan.child(), inner)
        frames, pieces = [], [LINEAGE]
        for number, each in enumerate(asked):
            if running and looks_back_to_the_first(each):
                continue
            window = next(part for part in parts(each) if kind_of(part) == "WindowExpression")
            added, piece = self._collect_frame(window, number)
            frames += added
            pieces.append(piece)
        listed = plan.windowExpressions()
        for frame in frames:
            listed = listed.appended(frame)
        wide = self.catalyst.analyse(plan.copy(listed, plan.partitionSpec(), plan.orderSpec(), below, plan.hint()))
        lineage = self.catalyst.read(f"array_distinct(concat({', '.join(pieces)})) as {LINEAGE}")
        return self.catalyst.project([*items(plan.output()), lineage], wide)

    def _collect_frame(self, window: Any, number: int) -> tuple[list[Any], str]:
        """Returns columns that collect the rows which a window function reads, and SQL that combines them."""
        function, frame = window.windowFunction(), window.windowSpec()
        name = kind_of(function.aggregateFunction() if kind_of(function) == "AggregateExpression" else function)
        collect, seen, peers = f"collect_list({LINEAGE})", f"__odf_seen{number}", f"__odf_peers{number}"
        if passes_over_nulls(function):
            ends = ("UnboundedPreceding", "CurrentRow") if name == "Lag" else ("CurrentRow", "UnboundedFollowing")
            frame = self.catalyst.window(frame, False, *ends)
        elif name in _WHOLE:
            frame = self.catalyst.window(frame, False, "UnboundedPreceding", "UnboundedFollowing")
        elif name in _RANKS:
            # A rank counts the rows before it, so rows that tie do not contribute.
            columns = [
                self.catalyst.over(collect, self.catalyst.window(frame, True, low, "CurrentRow"), into)
                for low, into in (("UnboundedPreceding", seen), ("CurrentRow", peers))
            ]
            return columns, f"transform(array_except(flatten({seen}), flatten({peers})), each -> each | {DECIDES}L)"
        rows, whole = f"flatten({seen})", self.catalyst.reaching(frame)
        columns = [self.catalyst.over(collect, frame, seen)]
        if whole is not None:
            # The rows between decide which row is so many before.
            columns.append(self.catalyst.over(collect, whole, peers))
            between = f"array_except(flatten({peers}), concat({LINEAGE}, {rows}))"
            between = f"transform({between}, each -> each | {DECIDES}L)"
        if kind_of(function) != "AggregateExpression":
            rows = f"transform({rows}, each -> each | {DECIDES}L)"
        return columns, rows if whole is None else f"concat({rows}, {between})"


_ALL: Final = f"array_distinct(flatten(collect_list({LINEAGE}))) as {LINEAGE}"
_NONE: Final = "cast(array() as array<bigint>)"
_BOTH: Final = f"concat(coalesce({LINEAGE}, {_NONE}), coalesce({_RIGHT}, {_NONE})) as {LINEAGE}"
_RULES: Final[Mapping[str, Callable[[_Tracing, Any, Attributes], Any]]] = {
    "Project": _Tracing._project,
    "Filter": _Tracing._filter,
    "SubqueryAlias": _Tracing._pass,
    "ResolvedHint": _Tracing._pass,
    "PipeOperator": _Tracing._pass,
    "View": _Tracing._pass,
    "Generate": _Tracing._generate,
    "Aggregate": _Tracing._aggregate,
    "Distinct": _Tracing._distinct,
    "Union": _Tracing._union,
    "Join": _Tracing._join,
    "AsOfJoin": _Tracing._as_of,
    "Window": _Tracing._window,
    "Expand": _Tracing._expand,
}


def _lineage(plan: Any) -> Any:
    return column(plan, LINEAGE)


def _more(wanted: Attributes, expressions: list[Any]) -> Attributes:
    """Adds the attributes that decide whether a row is present, which are always needed."""
    return None if wanted is None else wanted | references(expressions)


def _read_by(listed: list[Any], wanted: Attributes) -> Attributes:
    return None if wanted is None else references([each for each in listed if each.exprId().id() in wanted])


def _collected_sql(number: int, kind: str) -> str:
    if kind not in ("Min", "Max"):
        return f"flatten(__odf_p{number})"
    return f"flatten(transform(filter(__odf_p{number}, each -> each.x <=> __odf_v{number}), each -> each.l))"
