"""Decides what late rows change in a query with final rows: their own output, single windows, or too much to allow.

Pure. Spec: docs/spec/engine-semantics.md#late-rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from engines.spark.analysis.determinism import QueryFinding
from engines.spark.analysis.influence import Influence, influence
from engines.spark.analysis.joins import LEFT_ONLY, kind_of
from engines.spark.analysis.monotone import Function, Shift
from engines.spark.analysis.relation import QueryRelation, field_of_time, time_of
from engines.spark.analysis.tables import Core, TableShape, table_shape
from engines.spark.analysis.tree import PASSING, PlanNode
from engines.spark.analysis.walk import JOINS, Walk


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
