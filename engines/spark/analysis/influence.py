"""Follows event time through expressions, to find which output times one input row can affect.

An ``Influence`` states, for each path (an occurrence of an input in the plan), the least and the greatest value that an
attribute can have due to a row with event time *t*: two monotone functions of *t*. An expression that is not in the
table has no influence, so nothing is ever assumed about it. Spec: docs/spec/engine-semantics.md#influence.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from engines.spark.analysis.monotone import (
    DAY,
    FURTHEST,
    IDENTITY,
    MILLISECOND,
    SECOND,
    AddMonths,
    Floor,
    FloorMonths,
    Function,
    LocalFloor,
    MonotoneFunction,
    Shift,
    Zone,
    enclose_months,
    first,
    greatest_of,
    last,
    least_of,
)
from engines.spark.analysis.tree import PlanNode, same


@dataclass(frozen=True, slots=True)
class SessionMember:
    """A path whose rows form sessions together with those of other members."""

    input: str
    """Alias of the input in the query."""
    shift: int
    """Microseconds by which the query moves the rows' event times."""
    keys: tuple[str, ...]
    """Key columns of the input, in the same order for all members, equal in a session's rows; there may
    be further keys."""


@dataclass(frozen=True, slots=True)
class SessionWindow:
    """A session: rows of any member are in the same one if they are at most ``gap`` microseconds apart."""

    gap: int
    of: tuple[SessionMember, ...]
    """All paths of one GROUP BY: a row of one can keep a session of another open."""
    shift: int
    """The shift, in microseconds, of the path to which this belongs."""


@dataclass(frozen=True, slots=True)
class VersionedInput:
    """An input whose rows are in force until a later one of the same key supersedes them."""

    keys: tuple[str, ...]
    """Key columns of the input."""
    clamped: bool
    """Whether a late row counts from when its block was written; if not, it is not accepted."""


Life: TypeAlias = SessionWindow | VersionedInput


@dataclass(frozen=True, slots=True)
class InfluenceInterval:
    """The values from ``low(t)`` to ``high(t)``, both included."""

    low: Function = IDENTITY
    high: Function = IDENTITY
    life: Life | None = None
    """If present, ``high`` is the end of the row's session or validity, which only the data determines."""

    def then(self, low: Function, high: Function | None = None) -> InfluenceInterval:
        """Applies a function to the result, or two functions that enclose one."""
        return InfluenceInterval(self.low + low, self.high + (low if high is None else high), self.life)


def shift_of(interval: InfluenceInterval) -> int | None:
    """Returns by how many microseconds an attribute is later than its row's event time; ``None`` if
    that is not constant."""
    shifts = [step.by for step in interval.low if isinstance(step, Shift)]
    plain = interval.low == interval.high and interval.life is None and len(shifts) == len(interval.low)
    return sum(shifts) if plain else None


Influence: TypeAlias = Mapping[int, InfluenceInterval]
"""Interval by path number."""


@dataclass(frozen=True, slots=True)
class FieldInfluences:
    """Influence of the fields of a struct, by position, as ``window()`` makes it."""

    of: tuple[Influence | None, ...]


@dataclass(frozen=True, slots=True)
class Unmerged:
    """The result of ``session_window()`` for single rows; a session only exists after rows are grouped by it."""

    gap: int
    of: Influence


@dataclass(frozen=True, slots=True)
class Half:
    """A time column of one side of a full outer join; it is null in rows of the other side alone, so
    not a time by itself."""

    pair: int
    """Number of the pair, the same in both halves; ``coalesce`` of the two halves is never null."""
    of: Influence


Value: TypeAlias = Influence | FieldInfluences | Unmerged | Half | None
Scope: TypeAlias = Mapping[int, Value]
"""What is known of attributes, by expression id."""

_UNITS: Final[Mapping[str, MonotoneFunction]] = {
    "microsecond": Floor(1),
    "millisecond": Floor(MILLISECOND),
    "second": Floor(SECOND),
    "minute": Floor(60 * SECOND),
    "hour": Floor(3600 * SECOND),
    "day": Floor(DAY),
    "dd": Floor(DAY),
    "week": Floor(7 * DAY, origin=4 * DAY),
    "mon": FloorMonths(1),
    "month": FloorMonths(1),
    "mm": FloorMonths(1),
    "quarter": FloorMonths(3),
    "year": FloorMonths(12),
    "yyyy": FloorMonths(12),
    "yy": FloorMonths(12),
}
"""Units of date_trunc and trunc, as functions. 5 January 1970 was a Monday."""
_SPANS: Final = {
    "microsecond": 1, "millisecond": MILLISECOND, "second": SECOND, "minute": 60 * SECOND, "hour": 3600 * SECOND,
    "day": DAY, "week": 7 * DAY,
}  # fmt: skip
"""Units of intervals whose length is always the same."""
_EPOCH: Final = dt.datetime(1970, 1, 1)
_TRANSPARENT: Final = {"Alias", "KnownNullable", "KnownNotNull", "PreciseTimestampConversion"}


def influence(expression: PlanNode, scope: Scope) -> Value:
    """Returns how an expression depends on event time; ``None`` if in no reliable way."""
    if expression.kind == "AttributeReference":
        return scope.get(expression.id) if expression.id is not None else None
    if expression.kind in _TRANSPARENT or "replacement" in expression.fields:
        return influence(expression.only, scope)
    if expression.kind == "CreateNamedStruct":
        if any(map(_starts_session, expression.children[1::2])):
            return _session(expression, scope)
        return FieldInfluences(tuple(_plain(influence(value, scope)) for value in expression.children[1::2]))
    if expression.kind == "GetStructField":
        whole = influence(expression.only, scope)
        position = expression.fields.get("ordinal")
        return whole.of[position] if isinstance(whole, FieldInfluences) and isinstance(position, int) else None
    if expression.kind == "Coalesce":
        return _coalesce(expression, scope)
    zone = expression.fields.get("timeZoneId")
    rule = _RULES.get(expression.kind)
    return rule(expression, scope) if rule is not None and zone in (None, "UTC") else None


def _starts_session(node: PlanNode) -> bool:
    """Whether this is the start of ``session_window()``, which begins from bare times, and merges
    rows outside of the plan."""
    return node.kind == "PreciseTimestampConversion" and node.only.kind == "PreciseTimestampConversion"


def _session(window: PlanNode, scope: Scope) -> Unmerged:
    """Reads ``struct(start: t, end: t + gap)``. A gap that is computed has no bound and is given as zero."""
    start, end = (part for part in window.children[1::2])
    base = _plain(influence(start, scope))
    spans = [span for part in end.preorder() if part.kind in ("Cast", "Literal") and (span := _literal_span(part))]
    return Unmerged(spans[0] if len(spans) == 1 else 0, base or {})


def _literal_span(node: PlanNode) -> int | None:
    """Returns microseconds of an interval that is written as text, or as a literal without months; else ``None``."""
    if node.kind == "Cast":
        if node.fields.get("dataType") != "interval" or node.only.fields.get("dataType") != "string":
            return None
        text = str(node.only.fields.get("value", "")).lower().removeprefix("interval").split()
        pairs = list(zip(text[::2], text[1::2], strict=len(text) % 2 == 0))
        sizes = [_SPANS.get(unit.removesuffix("s")) for _, unit in pairs]
        if not pairs or len(text) % 2 or None in sizes or not all(number.isdigit() for number, _ in pairs):
            return None
        return sum(int(number) * size for (number, _), size in zip(pairs, sizes, strict=True) if size is not None)
    span = _interval(node) if node.kind == "Literal" else None
    return span[1] if span is not None and not span[0] and span[1] > 0 else None


def _coalesce(node: PlanNode, scope: Scope) -> Influence | None:
    """Merges both halves of a full outer join's equal columns: the time of the row, whichever side it came from."""
    halves = [influence(child, scope) for child in node.children]
    found = [half for half in halves if isinstance(half, Half)]
    if len(halves) != 2 or len(found) != 2 or found[0].pair != found[1].pair:
        return None
    return {**found[0].of, **found[1].of}


def _plain(value: Value) -> Influence | None:
    return value if isinstance(value, Mapping) else None


def _after(argument: PlanNode, scope: Scope, low: Function, high: Function | None = None) -> Influence | None:
    base = _plain(influence(argument, scope))
    return None if base is None else {path: interval.then(low, high) for path, interval in base.items()}


def _cast(node: PlanNode, scope: Scope) -> Influence | None:
    target = node.type_name
    if target == "date":
        return _after(node.only, scope, (Floor(DAY),))
    return _after(node.only, scope, IDENTITY) if target in ("timestamp", "timestamp_ntz") else None


def _to_date(node: PlanNode, scope: Scope) -> Influence | None:
    return _after(node.only, scope, (Floor(DAY),)) if len(node.children) == 1 else None


def _time_bucket(node: PlanNode, scope: Scope) -> Influence | None:
    size, time, origin = node.children
    start, span = _instant(origin), _interval(size)
    if start is None or span is None:
        return None
    months, micros = span
    if not months:
        return _after(time, scope, (Floor(micros, start % micros),))
    return _after(time, scope, (FloorMonths(months),)) if start == 0 else None


def _instant(node: PlanNode) -> int | None:
    """Returns microseconds of a literal time; Spark's zone is UTC."""
    value = node.fields.get("value")
    if node.kind != "Literal" or node.fields.get("dataType") != "timestamp" or not isinstance(value, str):
        return None
    try:
        since = dt.datetime.fromisoformat(value) - _EPOCH
    except (ValueError, TypeError):
        return None  # a year that Python does not have
    return since // dt.timedelta(microseconds=1)


def _date_trunc(node: PlanNode, scope: Scope) -> Influence | None:
    unit, time = node.children
    step = _UNITS.get(str(unit.fields.get("value", "")).lower())
    return _after(time, scope, (step,)) if step is not None else None


def _trunc(node: PlanNode, scope: Scope) -> Influence | None:
    date, unit = node.children
    step = _UNITS.get(str(unit.fields.get("value", "")).lower())
    return _after(date, scope, (Floor(DAY), step)) if step is not None else None


def _add_interval(node: PlanNode, scope: Scope) -> Influence | None:
    time, size = node.children
    span = _interval(size)
    if span is None:
        return None
    months, micros = span
    return _after(time, scope, *enclose_months(months)) if months else _after(time, scope, (Shift(micros),))


def _add_months(node: PlanNode, scope: Scope) -> Influence | None:
    """Adds months to a date: exact, since a date is a midnight."""
    date, number = node.children
    span = _interval(number)
    months = span[0] if span is not None and span[0] else _integer(number)
    return None if months is None else _after(date, scope, (AddMonths(months),))


def _date_add(node: PlanNode, scope: Scope) -> Influence | None:
    date, number = node.children
    days = _integer(number)
    if days is None:
        return None
    return _after(date, scope, (Shift((-days if node.kind == "DateSub" else days) * DAY),))


def _to_local(node: PlanNode, scope: Scope) -> Influence | None:
    """Converts to or from the local time of a zone, which may be written in a column: at most ``FURTHEST`` from UTC. It
    falls back in autumn, so it is enclosed."""
    return _local_floor(node, scope) or _enclose(node, scope)


def _enclose(node: PlanNode, scope: Scope) -> Influence | None:
    return _after(node.children[0], scope, (Shift(-FURTHEST),), (Shift(FURTHEST),))


def _local_floor(node: PlanNode, scope: Scope) -> Influence | None:
    """Handles ``to_utc_timestamp(date_trunc('day', from_utc_timestamp(t, zone)), zone)``, and units
    longer than days."""
    inner = node.children[0]
    if node.kind != "ToUTCTimestamp" or inner.kind != "TruncTimestamp" or inner.children[1].kind != "FromUTCTimestamp":
        return None
    time, *names = inner.children[1].children[0], inner.children[1].children[1], node.children[1]
    zones = {str(name.fields.get("value")) if name.kind == "Literal" else "" for name in names}
    zone = node.fields.get("zones", {}).get(next(iter(zones))) if len(zones) == 1 else None
    step = _UNITS.get(str(inner.children[0].fields.get("value", "")).lower())
    whole_days = isinstance(step, FloorMonths) or (isinstance(step, Floor) and step.size >= DAY)
    if not isinstance(zone, Zone) or step is None or not whole_days:
        return None
    return _after(time, scope, (LocalFloor(zone, step, high=False),), (LocalFloor(zone, step, high=True),))


def _subtract(node: PlanNode, scope: Scope) -> Influence | None:
    """Subtracts, in the microseconds of ``window()``: a constant, or the remainder, which makes a floor."""
    left, right = node.children
    if (constant := _integer(right)) is not None:
        return _after(left, scope, (Shift(-constant),)) if constant else _plain(influence(left, scope))
    floor = _remainder(left, right)
    return _after(left, scope, (floor,)) if floor is not None else None


def _add(node: PlanNode, scope: Scope) -> Influence | None:
    left, right = node.children
    constant = _integer(right)
    return _after(left, scope, (Shift(constant),)) if constant is not None else None


def _remainder(time: PlanNode, case: PlanNode) -> Floor | None:
    """Recognises ``CASE WHEN (t - o) % s < 0 THEN (t - o) % s + s ELSE (t - o) % s END``: the expansion
    of ``window()``."""
    if case.kind != "CaseWhen" or len(case.children) != 3:
        return None
    condition, negative, positive = case.children
    if (condition.kind, negative.kind, positive.kind) != ("LessThan", "Add", "Remainder"):
        return None
    size = _integer(positive.children[1])
    shifted = positive.children[0]
    whole = (
        same(condition.children[0], positive)
        and _integer(condition.children[1]) == 0
        and same(negative.children[0], positive)
        and _integer(negative.children[1]) == size
    )
    if not whole or size is None or size <= 0 or shifted.kind != "Subtract" or not same(shifted.children[0], time):
        return None
    origin = _integer(shifted.children[1])
    return Floor(size, origin % size) if origin is not None else None


def _integer(node: PlanNode) -> int | None:
    """Returns the whole number that a literal (also cast, also negated) stands for; else ``None``."""
    if node.kind == "Cast" and node.type_name in ("integer", "long"):
        return _integer(node.only)
    if node.kind == "UnaryMinus":
        inner = _integer(node.only)
        return None if inner is None else -inner
    if node.kind != "Literal" or node.type_name not in ("integer", "long", "short", "byte"):
        return None
    value = node.fields.get("value")
    return None if value is None else int(value)


def _interval(node: PlanNode) -> tuple[int, int] | None:
    """Returns (months, microseconds) of an interval literal, one of which is zero; else ``None``."""
    if node.kind == "UnaryMinus":
        inner = _interval(node.only)
        return None if inner is None else (-inner[0], -inner[1])
    if node.kind == "Cast" and str(node.fields.get("dataType", "")).startswith("interval "):
        return _interval(node.only)
    kind, value = str(node.fields.get("dataType", "")), node.fields.get("value")
    if node.kind != "Literal" or not kind.startswith("interval ") or value is None:
        return None
    if kind in ("interval year", "interval month", "interval year to month"):
        return int(value), 0
    return 0, int(value)


def constant_span(node: PlanNode) -> int | None:
    """Returns microseconds of a constant interval, also negative; ``None`` for anything else, such as months."""
    span = _interval(node)
    return span[1] if span is not None and not span[0] else None


_RULES: Final[Mapping[str, Callable[[PlanNode, Scope], Influence | None]]] = {
    "Cast": _cast,
    "ParseToDate": _to_date,
    "TimeBucket": _time_bucket,
    "TruncTimestamp": _date_trunc,
    "TruncDate": _trunc,
    "TimestampAddInterval": _add_interval,
    "TimestampAddYMInterval": _add_interval,
    "DateAddYMInterval": _add_months,
    "AddMonths": _add_months,
    "DateAdd": _date_add,
    "DateSub": _date_add,
    "FromUTCTimestamp": _to_local,
    "ToUTCTimestamp": _to_local,
    "Subtract": _subtract,
    "Add": _add,
}
"""Closed list of the expressions that keep time in order."""


def widen_to_key(value: Influence, key: Influence) -> Influence | None:
    """Returns the range of times from first to last row of a key, for rows decided together with all rows of that key.

    Covers each path of ``key``: the times of the rows whose keys it can affect. ``None`` if they have no bound.
    """
    sessions = any(interval.life for part in (value, key) for interval in part.values())
    if sessions or not value or not set(value) <= set(key):
        return None
    lows = [first(key[path].high) + interval.low for path, interval in value.items()]
    highs = [last(key[path].low) + interval.high for path, interval in value.items()]
    return {path: interval.then(least_of(lows), greatest_of(highs)) for path, interval in key.items()}
