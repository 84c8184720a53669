"""Represents the known properties of an operator's output: columns, times, origins of columns. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from engines.spark.analysis.determinism import is_float
from engines.spark.analysis.influence import FieldInfluences, Influence, Scope, Value, influence
from engines.spark.analysis.tree import PlanNode

Origins: TypeAlias = Mapping[int, Mapping[int, str]]
"""By expression id and path: the input's column that an attribute repeats unchanged."""


@dataclass(frozen=True, slots=True)
class InputReadings:
    """How the rows of each input are read, by alias; nothing is known of an input that is absent."""

    operations: Mapping[str, str] = field(default_factory=dict)
    """Name of the column that says whether a row adds or takes back."""
    logs: frozenset[str] = frozenset()
    """Inputs of which every statement is an event."""
    changes: Mapping[str, bool | None] = field(default_factory=dict)
    """Whether rows can be taken back, as the input's chain states; ``None``: it does not say."""

    offsets: Mapping[str, str] = field(default_factory=dict)
    """Name of the column that numbers the rows of an input's chain, uniquely."""

    def can_change(self, alias: str) -> bool | None:
        """Whether rows can be retracted in the query's view of the input; never where every statement is an event."""
        return False if alias in self.logs else self.changes.get(alias)


UNKNOWN: Final = InputReadings()
"""Readings if nothing is known of any input."""


@dataclass(frozen=True, slots=True)
class QueryRelation:
    """The known properties of an operator's output."""

    scope: Scope
    columns: tuple[tuple[str, int], ...]
    """(name, expression id), in order."""
    floats: frozenset[int]
    """Ids of columns that hold floating point."""
    linear: bool = True
    """Whether every row stands for itself: no operator below combines rows."""
    origins: Origins = field(default_factory=dict)
    rows_of: frozenset[int] | None = None
    """Paths that contribute at most one row to each row here, and together identify it; ``None``: not known."""


def columns_of(attributes: tuple[PlanNode, ...]) -> tuple[tuple[str, int], ...]:
    return tuple((attribute.name, attribute.id) for attribute in attributes if attribute.id is not None)


def floats_of(attributes: tuple[PlanNode, ...]) -> frozenset[int]:
    return frozenset(attribute.id for attribute in attributes if attribute.id is not None and is_float(attribute))


def copies_of(identity: int, relation: QueryRelation) -> tuple[int, ...]:
    """Returns the ids of columns that repeat the same column of an input as this one does, itself included."""
    source = relation.origins.get(identity)
    return (identity, *(other for other, of in relation.origins.items() if source and of == source))


def is_timed(value: Value) -> bool:
    return bool(time_of(value))


def time_of(value: Value) -> Influence:
    """Returns the time of a key: the start of a window, or else its end; empty when there is none."""
    if isinstance(value, FieldInfluences):
        return next((part for part in value.of if part), {})
    return path_of(value)


def field_of_time(value: Value) -> int:
    """Returns the position of the field of a structure that ``time_of`` gives; 0 for other values."""
    return next((at for at, part in enumerate(value.of) if part), 0) if isinstance(value, FieldInfluences) else 0


def path_of(value: Value) -> Influence:
    """Returns the influence of a plain column; empty when there is none."""
    return value if isinstance(value, Mapping) else {}


def projection(expressions: tuple[PlanNode, ...], below: QueryRelation, linear: bool) -> QueryRelation:
    scope: dict[int, Value] = {}
    origins: dict[int, Mapping[int, str]] = {}
    for expression in expressions:
        if expression.id is None:
            continue
        value = influence(expression, below.scope)
        if value is not None:
            scope[expression.id] = value
        source = expression.only if expression.kind == "Alias" else expression
        if (known := source_of(source, below)) is not None:
            origins[expression.id] = known
    rows_of = below.rows_of
    return QueryRelation(scope, columns_of(expressions), floats_of(expressions), linear, origins, rows_of)


def source_of(expression: PlanNode, below: QueryRelation) -> Mapping[int, str] | None:
    if expression.kind != "AttributeReference" or expression.id is None:
        return None
    return below.origins.get(expression.id)


def merge_branches(branches: list[QueryRelation]) -> QueryRelation:
    """Merges the rows of several relations by position. A column keeps event time only if it does in every branch."""
    first = branches[0]
    if len({len(branch.columns) for branch in branches}) > 1:  # nothing is known of an operator that is refused
        return QueryRelation({}, first.columns, frozenset(), linear=False)
    scope: dict[int, Value] = {}
    origins: dict[int, Mapping[int, str]] = {}
    for position, (_, identity) in enumerate(first.columns):
        ids = [branch.columns[position][1] for branch in branches]
        values = [branch.scope.get(each) for branch, each in zip(branches, ids, strict=True)]
        if all(isinstance(value, FieldInfluences) for value in values):
            structs = [value.of for value in values if isinstance(value, FieldInfluences)]
            scope[identity] = FieldInfluences(tuple(_joint(parts) for parts in zip(*structs, strict=True)))
        elif all(isinstance(value, Mapping) for value in values):
            scope[identity] = _joint(tuple(path_of(value) for value in values))
        sources = [branch.origins.get(each) for branch, each in zip(branches, ids, strict=True)]
        if all(sources):
            origins[identity] = {path: name for source in sources if source for path, name in source.items()}
    floats = frozenset(
        identity
        for position, (_, identity) in enumerate(first.columns)
        if any(branch.columns[position][1] in branch.floats for branch in branches)
    )
    return QueryRelation(scope, first.columns, floats, all(branch.linear for branch in branches), origins)


def _joint(parts: tuple[Influence | None, ...]) -> Influence | None:
    """Joins the influence of several branches, which have different paths; ``None`` if one has none."""
    return {path: interval for part in parts if part for path, interval in part.items()} if all(parts) else None
