"""Describes the operators between an input and the result, their conditions and their place in the SQL.

Reads the JVM's plan, whose nodes know where in the text they were written; changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from engines.spark.catalyst.expressions import over_as_sql, parts
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
    return ", ".join(str(each.sql()) for each in items(expressions))


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
