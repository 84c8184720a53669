"""``SET odf.x = y`` at the head of a query: what the author says about lateness; the rest of the text is the query.

Declarations stand in statements of their own before the first query, or at the head of its text. No other SET is
read. Pure. Engine semantics, sections 3 and 5.5.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from chain.errors import Invalid
from chain.model.source import SqlQueryStep, Transform
from engines.spark.analysis.monotone import DAY, SECOND

MAX_STEPS: Final = 64
"""Queries in one transform."""
MAX_TEXT: Final = 1 << 20
"""Characters of one query."""
_SET: Final = re.compile(
    r"(?is)\A(?:\s|--[^\n]*\n|/\*.*?\*/)*SET\s+(odf\.[\w.-]+)\s*=\s*('(?:[^']*)'|[^;\s]+)\s*(?:;|\Z)"
)
_SPAN: Final = re.compile(r"(\d{1,6})\s+(second|minute|hour|day|week)s?\Z", re.IGNORECASE)
_UNIT: Final = {"second": SECOND, "minute": 60 * SECOND, "hour": 3600 * SECOND, "day": DAY, "week": 7 * DAY}


class Late(enum.Enum):
    """What becomes of late rows."""

    DROP = "drop"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Declarations:
    """What was declared; for an input that is not named the value under ``""`` holds."""

    late: Mapping[str, Late] = field(default_factory=dict)
    lateness: Mapping[str, int] = field(default_factory=dict)
    """Microseconds."""

    def states_late(self, alias: str) -> bool:
        """Whether the author said anything about late rows of an input."""
        return alias in self.late or "" in self.late

    def late_of(self, alias: str) -> Late:
        return self.late.get(alias, self.late.get("", Late.DROP))

    def lateness_of(self, alias: str) -> int:
        return self.lateness.get(alias, self.lateness.get("", 0))


@dataclass(frozen=True, slots=True)
class Query:
    """A transform taken apart."""

    steps: tuple[SqlQueryStep, ...]
    """Each a view over the former ones; the last is the result. Texts verbatim, but for declarations."""
    declarations: Declarations
    temporal: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Primary keys of inputs that are seen as versions, by alias."""


def read_query(transform: Transform) -> Query:
    """Steps and declarations of a transform. Raises Invalid naming the statement."""
    late: dict[str, Late] = {}
    lateness: dict[str, int] = {}
    steps: list[SqlQueryStep] = []
    for number, step in enumerate(_given(transform)):
        text = step.query
        if len(text) > MAX_TEXT:
            raise Invalid(f"query {number} has {len(text)} characters", rule="query-size", hint=f"at most {MAX_TEXT}")
        while not steps and (found := _SET.match(text)) is not None:
            _declare(found[1], found[2].strip("'"), late, lateness)
            # Blank lines in place of the statement, so that places in the rest stay where a person sees them.
            text = "\n" * found[0].count("\n") + text[found.end() :]
        if text.strip():
            steps.append(SqlQueryStep(alias=step.alias, query=text))
    if not steps:
        raise Invalid("the transform has no query", rule="no-query", hint="write a SELECT")
    for step in steps[:-1]:
        if not step.alias:
            raise Invalid("a query that is not the last has no alias", rule="query-alias", hint="give it an alias")
    return Query(tuple(steps), Declarations(late, lateness), _temporal(transform))


def _temporal(transform: Transform) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for table in transform.temporal_tables or ():
        if not table.primary_key or table.name in found:
            raise Invalid(
                f"temporal table {table.name}: declared twice, or without a primary key", rule="temporal-table",
                hint="temporalTables: [{name: b, primaryKey: [k]}]",
            )  # fmt: skip
        found[table.name] = table.primary_key
    return found


def _given(transform: Transform) -> Sequence[SqlQueryStep]:
    given = transform.queries or ((SqlQueryStep(query=transform.query),) if transform.query else ())
    if len(given) > MAX_STEPS:
        raise Invalid(f"{len(given)} queries in one transform", rule="query-count", hint=f"at most {MAX_STEPS}")
    return given


def _declare(name: str, value: str, late: dict[str, Late], lateness: dict[str, int]) -> None:
    word, _, alias = name.removeprefix("odf.").partition(".")
    if word == "late":
        known = {policy.value: policy for policy in Late}
        if value not in known:
            raise Invalid(
                f"SET {name} = '{value}': not a policy of this engine", rule="late", hint="use 'drop' or 'fail'"
            )
        late[alias] = known[value]
    elif word == "lateness":
        span = _SPAN.match(value)
        if span is None:
            raise Invalid(f"SET {name} = '{value}': not a span of time", rule="lateness", hint="write it like '2 days'")
        lateness[alias] = int(span[1]) * _UNIT[span[2].lower()]
    else:
        raise Invalid(
            f"SET {name}: this engine does not know it", rule="declaration", hint="known: odf.late, odf.lateness"
        )
