"""Decides from a plan in which mode a transform runs, and how its inputs affect its event time.

``classify`` is a pure function of the plan and the names of columns. A ``Classification`` holds no ids of the plan, so
it stays valid as long as the query and input schemas stay the same. Spec: docs/spec/engine-semantics.md#modes,
#influence, #output, #classification.

It also decides what late rows change in a query with final rows: their own output, single windows, or too much to
allow. Spec: docs/spec/engine-semantics.md#late-rows.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, TypeAlias

from chain.errors import Invalid
from engines.contract import Vocab
from engines.spark.analysis.determinism import QueryFinding
from engines.spark.analysis.influence import Half, Influence, Life, influence
from engines.spark.analysis.joins import LEFT_ONLY, kind_of
from engines.spark.analysis.monotone import MILLISECOND, Floor, Function, Shift, Zone
from engines.spark.analysis.refusals import HISTORY, OPERATION, OUTER_TIME
from engines.spark.analysis.relation import UNKNOWN, InputReadings, QueryRelation, field_of_time, path_of, time_of
from engines.spark.analysis.tables import Core, TableShape, table_shape
from engines.spark.analysis.tree import PASSING, PlanNode, parse_plan
from engines.spark.analysis.walk import JOINS, Walk
from engines.spark.analysis.window_functions import find_misplaced_windows


@dataclass(frozen=True, slots=True)
class Passing:
    """Every input row gives its own output rows, at most joined with versions, so the output of late
    rows can come late."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Every row affects one window, and windows are the keys of a table, so late rows correct the table."""

    table: TableShape
    of: Mapping[str, Function]
    """By alias, a function of event time whose value is the same exactly within a window, and grows
    from one to the next."""


Correction: TypeAlias = Passing | Windows | QueryFinding
"""How late rows can count, or the reason why they cannot."""


def correction(root: PlanNode, walk: Walk, relation: QueryRelation, times: Influence, column: str) -> Correction:
    """Decides the correction for a walked plan with final rows. ``times``: the influence of its event
    time column ``column``."""
    if _passes(root, walk):
        return Passing()
    if _kinds(root, walk.shared) & set(JOINS):
        return QueryFinding(
            "late-apply-join",
            "rows that come too late for a join cannot be met by it yet",
            "SET odf.late = 'drop', or declare one side in temporalTables",
        )
    return _windows(root, walk, relation, times, column)


def _kinds(root: PlanNode, shared: Mapping[int, PlanNode]) -> set[str]:
    return {node.kind for whole in (root, *shared.values()) for node in whole.preorder()}


def _passes(node: PlanNode, walk: Walk) -> bool:
    """Whether rows come from inputs through operators that take them one by one."""
    if (alias := walk.alias_of(node)) is not None:
        return alias not in walk.temporal
    if node.kind in PASSING | {"Project", "Filter", "Generate"} and node.children:
        return _passes(node.only, walk)
    if node.kind == "Union":
        return all(_passes(child, walk) for child in node.children)
    if node.kind == "WithCTE":
        return _passes(node.children[-1], walk)
    if node.kind == "CTERelationRef":
        return _passes(walk.shared[node.fields["cteId"]], walk)
    if node.kind in JOINS:
        kind, (left, right) = kind_of(node), node.children
        from_left = kind in {"Inner", "Cross", "LeftOuter"} | LEFT_ONLY
        from_right = kind in {"Inner", "Cross", "RightOuter"}
        as_of = node.kind == "AsOfJoin"
        return (from_left and _passes(left, walk) and _are_versions(right, walk, as_of)) or (
            from_right and _passes(right, walk) and _are_versions(left, walk, False)
        )
    return False


def _are_versions(node: PlanNode, walk: Walk, as_of: bool) -> bool:
    """Whether an operator gives versions of one input, and nothing made of several of them."""
    if (alias := walk.alias_of(node)) is not None:
        return as_of or alias in walk.temporal
    if node.kind == "CTERelationRef":
        return _are_versions(walk.shared[node.fields["cteId"]], walk, as_of)
    passing = node.kind in PASSING | {"Project", "Filter"} and bool(node.children)
    return passing and _are_versions(node.only, walk, as_of)


def _windows(
    root: PlanNode, walk: Walk, relation: QueryRelation, times: Influence, column: str
) -> Windows | QueryFinding:
    core = walk.settled[0] if len(walk.settled) == 1 else None
    exact = _exact_key(core, times, walk.paths) if core is not None else None
    if core is None or exact is None or len(set(walk.paths)) != len(walk.paths):
        return _TOO_MUCH
    known = {key.place: column for key in _timed_keys(core) if core.node.kind == "Window" or _follows(key.time, times)}
    shape = table_shape(root, walk.shared, [core], relation, walk.paths, known=known)
    if not isinstance(shape, TableShape):
        return replace(shape, node=None) if shape.code == "key-not-selected" else _TOO_MUCH
    if shape.bare:
        shape = replace(shape, window=(exact.place, exact.field))
    return Windows(shape, {walk.paths[path]: interval.low for path, interval in exact.time.items()})


_TOO_MUCH = QueryFinding(
    "late-apply-shape",
    "late rows can be applied to one GROUP BY, DISTINCT or ranking by windows that do not overlap, straight over "
    "inputs that are read once",
    "SET odf.late = 'drop', or make the inner query a dataset of its own",
)


@dataclass(frozen=True, slots=True)
class _TimedKey:
    """A key that holds a time: its position, that of the time in it if it is a structure, and the time."""

    place: int
    field: int
    time: Influence


def _timed_keys(core: Core) -> list[_TimedKey]:
    if core.node.kind == "Distinct":
        values = [core.below.scope.get(identity) for _, identity in core.below.columns]
    else:
        field = {"Aggregate": "groupingExpressions", "Window": "partitionSpec"}.get(core.node.kind, "")
        keys: Sequence[PlanNode] = core.node.expressions(field) if field else ()
        values = [influence(key, core.below.scope) for key in keys]
    return [
        _TimedKey(place, field_of_time(value), time) for place, value in enumerate(values) if (time := time_of(value))
    ]


def _exact_key(core: Core, times: Influence, paths: Collection[str]) -> _TimedKey | None:
    """Returns the window of a row, whose time is an exact function of its event time: preferably that in the output's
    event time column."""
    keys = _timed_keys(core)
    found = next((key for key in keys if _follows(key.time, times)), keys[0] if keys else None)
    exact = found is not None and set(found.time) == set(range(len(paths))) and _is_exact(found.time)
    return found if exact else None


def _is_exact(time: Influence) -> bool:
    return all(interval.low == interval.high and interval.life is None for interval in time.values())


def _follows(key: Influence, column: Influence) -> bool:
    """Whether the key is the same in all rows with the same value of the column: they differ at most by a shift."""
    return (
        set(key) == set(column)
        and _is_exact(key)
        and _is_exact(column)
        and all(_drop_shifts(key[path].low) == _drop_shifts(column[path].low) for path in key)
    )


def _drop_shifts(function: Function) -> Function:
    while function and isinstance(function[-1], Shift):
        function = function[:-1]
    return function


END: Final = Floor(MILLISECOND)
"""The last step of every path: output is written in milliseconds."""
HIDDEN: Final = "__odf_"
"""Prefix of the engine's own columns."""


class Mode(enum.Enum):
    """When and how a transform emits its rows."""

    LOG = "log"
    """Each row is passed on by itself, at once, in the input's order."""
    FINAL = "final"
    """Rows are emitted when no later row can change them, sorted by event time and all columns."""
    TABLE = "table"
    """The history of a table is emitted: additions, corrections and retractions, tick by tick."""


@dataclass(frozen=True, slots=True)
class Path:
    """One path from an input to the result: event time *t* affects output times ``low(t)`` to ``high(t)``."""

    input: str
    """Alias of the input in the query."""
    low: Function
    high: Function
    life: Life | None = None
    """If given, ``high`` applies to the end of the row's session, or of the time for which it is in force."""
    occurrence: int | None = field(default=None, compare=False)
    """Paths with the same number are of one occurrence, as of a row in several overlapping windows.
    ``None``: no other path is."""


@dataclass(frozen=True, slots=True)
class Classification:
    """The properties of a query that the engine needs to run it incrementally."""

    mode: Mode
    paths: tuple[Path, ...]
    """Empty in log mode when event time is computed: then the output has no watermark."""
    columns: tuple[str, ...]
    """Names of the columns that the query selects."""
    dropped: tuple[str, ...] = ()
    """Selected system columns, as from a ``*`` in log mode, that the engine computes itself."""
    operation: str | None = None
    """The selected column that states the operation of each output row, if all inputs are read as logs."""
    table: TableShape | None = None
    """In table mode, how the table is maintained; else ``None``."""
    correction: Correction | None = None
    """In final mode, how late rows could count; else ``None``."""
    exact: bool = False
    """Whether there are aggregates that are computed exactly, not as Spark does."""
    running: int = 0
    """In final mode, the number of window operators over all history; only projections and filters are above them."""

    def changelog(self, inputs: Iterable[bool | None]) -> bool | None:
        """Whether output rows can be taken back, given whether each input's can; ``None``: not known."""
        if self.mode is not Mode.LOG or self.operation is not None:
            return self.mode is Mode.TABLE or self.operation is not None
        told = set(inputs)
        return True if True in told else None if None in told else False


@dataclass(frozen=True, slots=True)
class QueryVerdict:
    """The result of classifying: a classification, or else findings."""

    classification: Classification | None
    findings: tuple[QueryFinding, ...]


def classify(
    plan: str | bytes | PlanNode,
    event_times: Mapping[str, str],
    output: Vocab,
    temporal: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    readings: InputReadings = UNKNOWN,
    zones: Mapping[str, Zone] = MappingProxyType({}),
) -> QueryVerdict:
    """Classifies an analysed plan, or its JSON.

    ``event_times``: the event time column of each input by alias; ``temporal``: primary keys of the inputs that the
    query sees as versions; ``readings``: how the query reads the rows of inputs; ``zones``: rules of the zones that it
    names, as far as they are known. Raises Invalid for JSON that is no plan; faults of the query are in the verdict.
    """
    walk = Walk(event_times, temporal, readings)
    try:
        root = plan if isinstance(plan, PlanNode) else parse_plan(plan, zones)
        relation = walk.of(root)
    except Invalid as fault:
        if fault.rule != "plan-too-large":
            raise
        return QueryVerdict(None, (QueryFinding(fault.rule, fault.message, fault.hint),))
    linear = relation.linear
    names = [name for name, _ in relation.columns]
    stated = _operation_column(names, walk, output)
    dropped = tuple(name for name in _repeated_columns(relation, output) if name != stated)
    findings = [*walk.findings, *_names([name for name in names if name not in (*dropped, stated)], output)]
    if not linear:
        findings.extend(walk.operations)
    if walk.tables:
        return _table(root, walk, relation, findings)
    influence = _event_time(relation, output)
    if not findings and walk.running:
        findings += find_misplaced_windows(root, walk.shared, walk.running, influence, output.event_time)
    if not findings and not linear and set(influence) != set(range(len(walk.paths))):
        missing = sorted({walk.paths[path] for path in range(len(walk.paths)) if path not in influence})
        half = any(
            isinstance(relation.scope.get(identity), Half)
            for name, identity in relation.columns
            if name == output.event_time
        )
        findings.append(
            QueryFinding(OUTER_TIME.code, OUTER_TIME.message, OUTER_TIME.replace)
            if half
            else QueryFinding(
                "event-time-unbounded",
                f"{output.event_time} does not follow from the event time of {', '.join(missing)}",
                "select the start or end of the window, such as window.start or time_bucket(…), under that name; of a "
                "session session_window.end",
            )
        )
    if findings:
        return QueryVerdict(None, tuple(_once(findings)))
    complete = set(influence) == set(range(len(walk.paths)))
    paths = tuple(
        Path(
            walk.paths[path],
            (*interval.low, Floor(MILLISECOND)),
            (*interval.high, Floor(MILLISECOND)),
            interval.life,
            walk.occurrence(path),
        )
        for path, interval in sorted(influence.items())
        if complete
    )
    mode = Mode.LOG if linear else Mode.FINAL
    late = None if linear else correction(root, walk, relation, influence, output.event_time)
    return QueryVerdict(
        Classification(
            mode, paths, tuple(names), dropped, operation=stated, correction=late, exact=walk.exact,
            running=len(walk.running),
        ), ()
    )  # fmt: skip


def _operation_column(names: list[str], walk: Walk, output: Vocab) -> str | None:
    """Returns the column ``op`` if all inputs are read as logs: there it is data, and states the
    operation of each output row."""
    name = output.operation_type
    logs = bool(walk.paths) and set(walk.paths) <= walk.readings.logs
    return name if logs and name in names and not walk.tables else None


def _table(root: PlanNode, walk: Walk, relation: QueryRelation, findings: list[QueryFinding]) -> QueryVerdict:
    if any(finding.code != "partial-order" for finding in findings):
        findings.extend(core.blocker for core in walk.tables)
    if not findings:
        findings.extend(find_misplaced_windows(root, walk.shared, walk.running, {}, "") if walk.running else ())
    if not findings:
        shape = table_shape(root, walk.shared, walk.tables, relation, walk.paths, walk.temporal)
        if isinstance(shape, TableShape) and shape.merge is None and not shape.first and _only_grow(walk):
            shape = QueryFinding(HISTORY.code, HISTORY.message, HISTORY.replace, walk.tables[0].node)
        if isinstance(shape, TableShape):
            names = tuple(name for name, _ in relation.columns)
            return QueryVerdict(Classification(Mode.TABLE, (), names, table=shape, exact=walk.exact), ())
        findings.append(shape)
    return QueryVerdict(None, tuple(_once(findings)))


def _only_grow(walk: Walk) -> bool:
    """Whether all inputs are known only to grow: all rows of a key would then have to be kept for ever."""
    return all(walk.readings.can_change(alias) is False for alias in walk.paths)


def _event_time(relation: QueryRelation, output: Vocab) -> Influence:
    for name, identity in relation.columns:
        if name == output.event_time:
            return path_of(relation.scope.get(identity))
    return {}


def _repeated_columns(relation: QueryRelation, output: Vocab) -> tuple[str, ...]:
    """Lists the system columns of an input that a linear query selects under their own names, as ``*`` does.

    Each output row has them from its one input row, so leaving them out loses nothing that was asked for.
    """
    ours = (output.offset, output.operation_type, output.system_time)
    if not relation.linear:
        return ()
    return tuple(
        name
        for name, identity in relation.columns
        if name in ours and set(relation.origins.get(identity, {}).values()) == {name}
    )


def _names(names: list[str], output: Vocab) -> list[QueryFinding]:
    if not names:
        return []
    found = []
    if output.event_time not in names:
        found.append(
            QueryFinding(
                "event-time-missing",
                f"the query selects no column {output.event_time}",
                f"select … as {output.event_time}",
            )
        )
    ours = [output.offset, output.operation_type, output.system_time]
    if output.operation_type in names:
        found.append(QueryFinding("op-not-available", *OPERATION))
        ours.remove(output.operation_type)
    taken = [name for name in names if name in ours or name in ("valid_from", "valid_to") or name.startswith(HIDDEN)]
    if taken:
        found.append(
            QueryFinding(
                "reserved-name",
                f"the engine itself supplies {', '.join(dict.fromkeys(taken))}",
                f"select * except ({', '.join(dict.fromkeys(taken))}), or give them other names",
            )
        )
    doubled = [name for name, count in Counter(names).items() if count > 1]
    if doubled:
        found.append(
            QueryFinding(
                "column-twice", f"selected more than once: {', '.join(doubled)}", "give each a name of its own"
            )
        )
    return found


def _once(findings: list[QueryFinding]) -> list[QueryFinding]:
    """Drops repeated findings: an expression that is both a key and a column is one fault, not two."""
    seen: dict[tuple[str, str], QueryFinding] = {}
    for finding in findings:
        seen.setdefault((finding.code, finding.message), finding)
    return list(seen.values())
