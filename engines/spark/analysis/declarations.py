"""Reads statements ``SET odf.x = y`` at the head of a query: the author's declarations, as on late rows. The rest is
SQL.

Declarations are statements of their own before the first query, or at the head of its text. No other SET is accepted.
Pure. Spec: docs/spec/engine-semantics.md#declarations, #late-rows.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from chain.errors import Invalid
from chain.model.source import SqlQueryStep, Transform
from engines.spark.analysis.monotone import DAY, LATEST, MILLISECOND, SECOND, Floor, FloorMonths

MAX_STEPS: Final = 64
"""Most queries in one transform."""
MAX_TEXT: Final = 1 << 20
"""Most characters of one query."""
_SET: Final = re.compile(
    r"(?is)\A(?:\s|--[^\n]*\n|/\*.*?\*/)*SET\s+(odf\.[\w.-]+)\s*=\s*('(?:[^']*)'|[^;\s]+)\s*(?:;|\Z)"
)
_SPAN: Final = re.compile(r"(\d{1,6})\s+(second|minute|hour|day|week)s?\Z", re.IGNORECASE)
_GRID: Final = re.compile(r"(?:(\d{1,4})\s+)?(second|minute|hour|day|week|month|quarter|year)s?\Z", re.IGNORECASE)
_MONTHS: Final = {"month": 1, "quarter": 3, "year": 12}
_MONDAY: Final = 4 * DAY
"""Origin of weeks: they begin on Mondays, and 5 January 1970 was one."""
_UNIT: Final = {"second": SECOND, "minute": 60 * SECOND, "hour": 3600 * SECOND, "day": DAY, "week": 7 * DAY}


class Reading(enum.Enum):
    """How a query reads the rows of an input."""

    TABLE = "table"
    """The query sees facts: the rows asserted and not taken back."""
    LOG = "log"
    """The query sees statements: each one is an event, and ``op`` is a column like others."""


class Late(enum.Enum):
    DROP = "drop"
    APPLY = "apply"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class LatePolicy:
    """The declared treatment of late rows."""

    late: Late
    within: int | None = None
    """For ``APPLY``: rows later than this, in microseconds, are dropped; ``None``: none are."""


@dataclass(frozen=True, slots=True)
class Declarations:
    """The declarations of a query by alias; for inputs without one of their own, that under ``""`` applies."""

    late: Mapping[str, LatePolicy] = field(default_factory=dict)
    lateness: Mapping[str, int] = field(default_factory=dict)
    """Allowed lateness by alias, microseconds."""
    readings: Mapping[str, Reading] = field(default_factory=dict)
    tick: Floor | FloorMonths | None = None
    """For a table: the grid of times at which it is evaluated; ``None``: at the watermarks of its inputs."""
    only_late: frozenset[str] = frozenset()
    """Inputs of which the query sees only late rows; ``""``: all inputs."""
    behind: int | None = None
    """Lag of the watermark behind the greatest emitted event time, microseconds; ``None``: follows the
    inputs' watermarks."""

    def reading_of(self, alias: str) -> Reading:
        return self.readings.get(alias, self.readings.get("", Reading.TABLE))

    def late_of(self, alias: str) -> LatePolicy | None:
        """Returns the declared policy on late rows of an input; ``None`` without a declaration."""
        return self.late.get(alias, self.late.get(""))

    def sees_only_late(self, alias: str) -> bool:
        """Whether the query sees only late rows of an input."""
        return alias in self.only_late or "" in self.only_late

    def lateness_of(self, alias: str) -> int:
        return self.lateness.get(alias, self.lateness.get("", 0))


@dataclass(frozen=True, slots=True)
class DeclaredQuery:
    """A transform's queries and declarations."""

    steps: tuple[SqlQueryStep, ...]
    """Queries, each over the views of those before it; the last gives the result. Texts are verbatim
    but for declarations."""
    declarations: Declarations
    temporal: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Primary keys of the inputs that are seen as versions, by alias."""

    def check_inputs(self, aliases: Collection[str]) -> None:
        """Raises Invalid for declarations about an alias that is no input."""
        said = {"temporal-table": self.temporal, "late": self.declarations.late, "lateness": self.declarations.lateness,
                "read": self.declarations.readings, "rows": self.declarations.only_late}  # fmt: skip
        for rule, named in said.items():
            for alias in sorted(set(named) - {""} - set(aliases)):
                word = f"temporal table {alias}" if rule == "temporal-table" else f"SET odf.{rule}.{alias}: {alias}"
                raise Invalid(f"{word} is not an input", rule=rule, hint=f"inputs: {', '.join(aliases)}")


def read_query(transform: Transform) -> DeclaredQuery:
    """Returns the steps and declarations of a transform. Raises Invalid, with the statement at fault."""
    said = Declarations({}, {})
    steps: list[SqlQueryStep] = []
    for number, step in enumerate(_queries_of(transform)):
        text = step.query
        if len(text) > MAX_TEXT:
            raise Invalid(f"query {number} has {len(text)} characters", rule="query-size", hint=f"at most {MAX_TEXT}")
        if not steps:
            declared, text = leading_declarations(text)
            for name, value in declared:
                said = _declare(said, name, value)
        if text.strip():
            steps.append(SqlQueryStep(alias=step.alias, query=text))
    if not steps:
        raise Invalid("the transform has no query", rule="no-query", hint="write a SELECT")
    for step in steps[:-1]:
        if not step.alias:
            raise Invalid("a query that is not the last has no alias", rule="query-alias", hint="give it an alias")
    query = DeclaredQuery(tuple(steps), said, _temporal(transform))
    logs = [alias for alias in query.temporal if said.reading_of(alias) is Reading.LOG]
    if logs:
        raise Invalid(
            f"input {logs[0]} is a temporal table, and its versions are not statements",
            rule="read",
            hint=f"leave out SET odf.read.{logs[0]} = 'log', or the temporal table",
        )
    return query


def leading_declarations(text: str) -> tuple[list[tuple[str, str]], str]:
    """Splits a text into the names and values of the declarations at its head, and the rest.

    Statements are replaced by blank lines, so that line numbers in the rest stay those that a person sees.
    """
    said: list[tuple[str, str]] = []
    while (found := _SET.match(text)) is not None:
        said.append((found[1], found[2].strip("'")))
        text = "\n" * found[0].count("\n") + text[found.end() :]
    return said, text


def span_of(value: str) -> int | None:
    """Parses a duration like ``2 days`` to microseconds; ``None`` for other texts, and for one beyond all times."""
    span = _SPAN.match(value)
    found = None if span is None else _micros(span)
    return found if found is not None and found < LATEST else None


def micros_behind(name: str, value: str) -> int:
    """Parses ``max - 1 day`` to the lag of a watermark in microseconds. Raises Invalid."""
    head, _, rest = value.partition("-")
    span = span_of(rest.strip())
    if head.strip().lower() != "max" or span is None:
        raise Invalid(f"SET {name} = '{value}': not a watermark", rule="watermark", hint="write it like 'max - 1 day'")
    return span


def _temporal(transform: Transform) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for table in transform.temporal_tables or ():
        if not table.primary_key or table.name in found:
            raise Invalid(
                f"temporal table {table.name}: declared twice, or without a primary key",
                rule="temporal-table",
                hint="temporalTables: [{name: b, primaryKey: [k]}]",
            )
        found[table.name] = table.primary_key
    return found


def _queries_of(transform: Transform) -> Sequence[SqlQueryStep]:
    given = transform.queries or ((SqlQueryStep(query=transform.query),) if transform.query else ())
    if len(given) > MAX_STEPS:
        raise Invalid(f"{len(given)} queries in one transform", rule="query-count", hint=f"at most {MAX_STEPS}")
    return given


def _declare(said: Declarations, name: str, value: str) -> Declarations:
    """Returns the declarations with one more statement. Raises Invalid."""
    word, _, alias = name.removeprefix("odf.").partition(".")
    if word not in _WORDS or (alias and word in ("tick", "watermark")):
        raise Invalid(
            f"SET {name}: this engine does not know it",
            rule="declaration",
            hint=f"known: {', '.join('odf.' + each for each in _WORDS)}",
        )
    return _WORDS[word](said, name, alias, value)


def _late(said: Declarations, name: str, alias: str, value: str) -> Declarations:
    known = {policy.value: LatePolicy(policy) for policy in Late}
    words = value.split(maxsplit=2)
    if words[:2] == ["apply", "within"] and len(words) == 3 and (span := _SPAN.match(words[2])) is not None:
        known[value] = LatePolicy(Late.APPLY, _micros(span))
    if value not in known:
        raise Invalid(
            f"SET {name} = '{value}': not a policy of this engine",
            rule="late",
            hint="use 'drop', 'fail', 'apply' or 'apply within 90 days'",
        )
    return replace(said, late={**said.late, alias: known[value]})


def _lateness(said: Declarations, name: str, alias: str, value: str) -> Declarations:
    span = _SPAN.match(value)
    if span is None:
        raise Invalid(f"SET {name} = '{value}': not a span of time", rule="lateness", hint="write it like '2 days'")
    return replace(said, lateness={**said.lateness, alias: _micros(span)})


def _rows(said: Declarations, name: str, alias: str, value: str) -> Declarations:
    if value != "late":
        raise Invalid(f"SET {name} = '{value}': not a choice of rows", rule="late-rows", hint="use 'late'")
    return replace(said, only_late=said.only_late | {alias})


def _watermark(said: Declarations, name: str, _: str, value: str) -> Declarations:
    return replace(said, behind=micros_behind(name, value))


def _micros(span: re.Match[str]) -> int:
    return int(span[1]) * _UNIT[span[2].lower()]


def _read(said: Declarations, name: str, alias: str, value: str) -> Declarations:
    known = {reading.value: reading for reading in Reading}
    if value not in known:
        raise Invalid(f"SET {name} = '{value}': not a reading of an input", rule="read", hint="use 'log' or 'table'")
    return replace(said, readings={**said.readings, alias: known[value]})


def _tick(said: Declarations, name: str, _: str, value: str) -> Declarations:
    if value in ("watermark", "event"):
        # Times are in milliseconds, so a grid of milliseconds has a point for every time.
        return replace(said, tick=Floor(MILLISECOND) if value == "event" else None)
    grid = _GRID.match(value)
    count = int(grid[1] or 1) if grid is not None else 0
    if grid is None or not count:
        raise Invalid(
            f"SET {name} = '{value}': not a grid of the calendar",
            rule="tick",
            hint="use 'watermark', 'event', or a span like '1 day' or '1 month'",
        )
    unit = grid[2].lower()
    if unit in _MONTHS:
        return replace(said, tick=FloorMonths(count * _MONTHS[unit]))
    return replace(said, tick=Floor(count * _UNIT[unit], _MONDAY if unit == "week" else 0))


_WORDS: Final[Mapping[str, Callable[[Declarations, str, str, str], Declarations]]] = {
    "late": _late, "lateness": _lateness, "read": _read, "rows": _rows, "tick": _tick, "watermark": _watermark,
}  # fmt: skip
"""Parser of each declaration, by the first word of its name."""
