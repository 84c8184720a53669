"""Checks a query's declarations about late rows and watermarks against what the query can do. Pure.

A declaration that would have no effect on a query is refused, never ignored: its author expects an effect. Spec:
docs/spec/engine-semantics.md#declarations, #late-rows, #output.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, Protocol, TypeVar

from chain.errors import Invalid
from engines.spark.analysis.classify import Classification, Mode, Passing, Path, Windows
from engines.spark.analysis.declarations import Declarations, DeclaredQuery, Late, LatePolicy
from engines.spark.analysis.determinism import QueryFinding
from engines.spark.analysis.influence import VersionedInput
from engines.spark.analysis.monotone import EARLIEST, LATEST, apply, least


@dataclass(frozen=True, slots=True)
class Ruling:
    """The rules about late rows and watermarks that are in force for a query's inputs and output."""

    shape: Classification
    only_late: frozenset[str] = frozenset()
    """Aliases of the inputs of which the query sees only late rows."""
    behind: int | None = None
    """Lag of the watermark behind the greatest emitted event time, microseconds; ``None``: follows the inputs'
    watermarks."""
    reach: Mapping[str, int | None] = field(default_factory=dict)
    """By alias the permitted lateness of rows, microseconds; ``None``: unlimited. Inputs that are not named: zero."""
    windows: Windows | None = None
    """The windows, if late rows correct them; ``shape`` is then that of a changing table."""


def rule(query: DeclaredQuery, shape: Classification, changelogs: Mapping[str, bool | None]) -> Ruling:
    """Derives the rules in force from a query's declarations and its shape.

    ``changelogs``: whether each input's rows can be retracted, ``None`` if its chain does not state it. Raises Invalid
    for a declaration that does not fit.
    """
    declared = query.declarations
    only_late = frozenset(alias for alias in changelogs if declared.sees_only_late(alias))
    if shape.mode is Mode.LOG:
        _check_log(declared, shape, bool(only_late))
        return Ruling(shape, only_late, declared.behind)
    if only_late:
        raise Invalid(
            "SET odf.rows = 'late' is set for a query that combines rows",
            rule="late-rows",
            hint="select the late rows one by one, and combine them in another dataset",
        )
    if declared.behind is not None:
        raise Invalid(
            "SET odf.watermark is set for a query whose watermark follows from those of its inputs",
            rule="watermark",
            hint="leave it out",
        )
    if shape.mode is Mode.TABLE:
        _check_table(declared)
        return Ruling(shape)
    reach = _reach(declared, shape, changelogs)
    windows = shape.correction
    if not reach or not isinstance(windows, Windows):
        return Ruling(shape, reach=reach)
    # A derived input's chain does not say whether it is a changelog, so it may be one.
    grows = all(changelog is False for changelog in changelogs.values())
    if windows.table.merge is None and grows and None in reach.values():
        raise Invalid(
            "late rows need all rows of a window for ever, unless it is made of aggregates that can be merged",
            rule="history-per-key",
            hint="SET odf.late = 'apply within 90 days', or as far back as it takes",
        )
    return Ruling(replace(shape, mode=Mode.TABLE, table=windows.table), reach=reach, windows=windows)


def _reach(
    declared: Declarations, shape: Classification, changelogs: Mapping[str, bool | None]
) -> dict[str, int | None]:
    """Returns by alias how late rows may be, for the inputs in final mode whose late rows count."""
    reach: dict[str, int | None] = {}
    lives = {path.input: path.life for path in shape.paths if isinstance(path.life, VersionedInput)}
    for alias, changelog in changelogs.items():
        policy = declared.late_of(alias)
        if alias in lives:
            _check_versions(alias, lives[alias], declared)
        elif policy is None and changelog:
            check_late_stated(alias, declared)
        elif policy == LatePolicy(Late.APPLY) or (policy is None and isinstance(shape.correction, Passing)):
            reach[alias] = None
        elif policy is not None and policy.late is Late.APPLY:
            reach[alias] = policy.within
    if reach:
        _check_applied(shape, {alias: changelogs[alias] for alias in reach})
    return {alias: span for alias, span in reach.items() if span != 0}


def _check_applied(shape: Classification, applied: Mapping[str, bool | None]) -> None:
    if isinstance(shape.correction, QueryFinding):
        raise Invalid(shape.correction.message, rule=shape.correction.code, hint=shape.correction.replace or "")
    for alias, changelog in applied.items():
        if changelog and isinstance(shape.correction, Passing):
            check_ledger(alias)


def check_ledger(alias: str) -> None:
    """Raises Invalid: late corrections of a changelog whose rows are joined with versions cannot be applied yet."""
    raise Invalid(
        f"input {alias} is a changelog: late corrections of rows joined with versions cannot be applied yet",
        rule="late-apply-ledger",
        hint=f"SET odf.late.{alias} = 'drop'; or join the other way round, with {alias} in temporalTables",
    )


def check_late_stated(alias: str, declared: Declarations) -> None:
    """Raises Invalid if no declaration says what happens to late corrections of a changelog: they must not vanish
    silently."""
    if declared.late_of(alias) is None:
        raise Invalid(
            f"input {alias} is a changelog: most of its retractions come after their window has closed",
            rule="changelog-late",
            hint=f"begin the query with SET odf.late.{alias} = 'drop'; to leave out corrections of closed windows, or "
            "with 'apply within 90 days' to make a changelog of them",
        )


def _check_versions(alias: str, life: VersionedInput, declared: Declarations) -> None:
    """Raises Invalid for a declaration about late rows that a versioned input cannot honour.

    Versions of a temporal table count from when they were stated; rows on the right side of an as-of join do not.
    """
    if life.clamped and declared.late.get(alias, LatePolicy(Late.APPLY)) != LatePolicy(Late.APPLY):
        raise Invalid(
            f"SET odf.late.{alias}: late versions of a temporal table always count, from when they were said",
            rule="late-versions",
            hint="leave it out",
        )
    policy = declared.late_of(alias)
    if not life.clamped and policy is not None and policy.late is Late.APPLY:
        raise Invalid(
            f"late rows of {alias} cannot be applied: an as-of join sees the latest row in event time",
            rule="late-apply-as-of",
            hint=f"SET odf.late.{alias} = 'drop', or temporalTables: [{{name: {alias}, primaryKey: [...]}}]",
        )


def _check_table(declared: Declarations) -> None:
    for alias, policy in declared.late.items():
        if policy != LatePolicy(Late.APPLY):
            raise Invalid(
                f"SET odf.late{'.' if alias else ''}{alias}: a table that changes for ever has no late rows, since all "
                "count from when they come",
                rule="late-in-table-mode",
                hint="leave it out, or group by a window of event time too",
            )


def _check_log(declared: Declarations, shape: Classification, only_late: bool) -> None:
    for alias, policy in declared.late.items():
        if policy.late is not Late.APPLY or policy.within is not None:
            raise Invalid(
                f"SET odf.late{'.' if alias else ''}{alias}: rows that this query passes on one by one are never late",
                rule="late-in-log-mode",
                hint="leave it out; downstream, windows decide about late rows",
            )
    if only_late and not shape.paths:
        raise Invalid(
            "SET odf.rows = 'late': event_time is computed, so nothing says which rows are late",
            rule="late-rows",
            hint="select event_time, or the start of the window that the rows came too late for",
        )


class PlannedBlock(Protocol):
    """The properties of a block that are needed here; times in microseconds."""

    @property
    def path(self) -> str | None: ...

    @property
    def before(self) -> int | None: ...

    @property
    def first(self) -> int | None: ...

    @property
    def last(self) -> int | None: ...


B = TypeVar("B", bound=PlannedBlock)


class Placed(NamedTuple):
    """Rows of some slices with ``low <= event time < high``; ``place`` is the least output time of any of them."""

    paths: tuple[str, ...]
    low: int
    high: int
    place: int


@dataclass(frozen=True, slots=True)
class LateInput(Generic[B]):
    """The mounted blocks of an input whose late rows count, each with the event time before which its rows do not.

    A late row that a query takes one by one comes out at the greater of its output time and that of the watermark
    before its block. So its place follows from its own chain, and is never among settled rows. Spec:
    docs/spec/engine-semantics.md#late-rows.
    """

    paths: Sequence[Path]
    lateness: int
    reach: int | None
    """How late rows may be, microseconds; ``None``: unlimited."""
    judged: Sequence[tuple[B, int]]

    def find_needed(self, done: int | None, bound: int) -> Iterator[Placed]:
        """Yields the rows with output times from ``done`` to before ``bound``, perhaps more; slices with equal bounds
        together."""
        groups: dict[tuple[int, int, int], list[str]] = {}
        for path, first, low, high, place in self._due(done, bound):
            groups.setdefault((place, low if first < low else EARLIEST, high), []).append(path)
        for (place, low, high), names in sorted(groups.items()):
            yield Placed(tuple(names), low, high, place)

    def earliest(self, done: int | None, bound: int | None) -> int:
        """Returns the least output time of the rows that ``needed`` yields; ``LATEST`` when there are none."""
        if bound is None:
            return LATEST
        times = [max(first, low) for _, first, low, _, _ in self._due(done, bound)]
        return min((apply(path.low, min(times)) for path in self.paths), default=LATEST) if times else LATEST

    def _due(self, done: int | None, bound: int) -> Iterator[tuple[str, int, int, int, int]]:
        """Yields the blocks with rows that are needed: path, first event time, and the rest as in ``Placed``."""
        high = max(least(path.low, bound) for path in self.paths)
        for block, accepted in self.judged:
            if block.path is None or block.first is None or block.last is None:
                continue
            place, low = self._place(block), self._since(block, accepted, done)
            if place < bound and block.first < high and block.last >= low:
                yield block.path, block.first, low, high, place

    def still_open(self, bound: int | None) -> Iterator[tuple[B, int, int]]:
        """Yields the blocks with rows that come out at ``bound`` or later: block, least such event time, watermark
        before it."""
        for block, accepted in self.judged:
            low = self._since(block, accepted, bound)
            if block.path is not None and block.last is not None and block.last >= low:
                yield block, low, EARLIEST if block.before is None else block.before

    def _place(self, block: PlannedBlock) -> int:
        if block.before is None:
            return EARLIEST
        return min(apply(path.low, block.before - self.lateness) for path in self.paths)

    def _since(self, block: PlannedBlock, accepted: int, time: int | None) -> int:
        if time is None or self._place(block) >= time:
            return accepted
        return max(accepted, min(least(path.high, time) for path in self.paths))


def reached_back(reaches: Iterable[tuple[Path, int | None]], time: int | None) -> int | None:
    """Returns the least output time of rows that are emitted at ``time`` or later, including late rows.

    ``reaches``: of each path that takes rows one by one, how late they may be; ``None``: unlimited.
    """
    if time is None:
        return None
    return min([time, *(EARLIEST if reach is None else apply(path.low, least(path.low, time) - reach)
                        for path, reach in reaches)])  # fmt: skip
