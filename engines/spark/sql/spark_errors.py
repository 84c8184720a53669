"""Explains what Spark says of a query or a row to a person: rule, place, remedy, and whose fault it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeVar

from pyspark.errors import PySparkException

from chain.errors import Invalid
from chain.model.source import Transform
from engines.contract import InvalidQuery
from engines.spark.analysis.hints import hint_of, hint_of_data

_CONF_ADVICE: Final = re.compile(r" (If necessary set|To tolerate the error|If you did not qualify) .*?(?=SQLSTATE|$)")
"""Advice of Spark's that would not help: a query cannot change settings."""
_TRY_ADVICE: Final = re.compile(r" (Use|Try) `?(try_\w+|get)\b.*?(?= SQLSTATE|$)")
"""Advice that the hint gives, in fewer words."""
_LABELS: Final = re.compile(r"^\[[A-Z][A-Z0-9_.]+\] | SQLSTATE: \w{5}")
"""Names of the condition, which the rule says."""
_POSITION: Final = re.compile(r"line (\d+),? pos(?:ition)? (\d+)")
_CONTEXT: Final = re.compile(r"== SQL.*\(line (\d+), position (\d+)\) ==")
_BLAME_QUERY: Final = ("0A", "21", "22", "23", "42", "46", "54")
"""Classes of SQLSTATE that blame the query or its data; the others blame the engine."""
_DATA: Final = "22"
Answer = TypeVar("Answer")


def answered(work: Callable[[], Answer], transform: Transform) -> Answer | InvalidQuery:
    """What ``work`` gives, or what it found wrong with the queries of ``transform`` or with their data.

    Raises what is the engine's own fault.
    """
    try:
        return work()
    except Invalid as fault:
        return InvalidQuery.of(fault)
    except PySparkException as fault:
        if not blames_query(fault):
            raise
        return InvalidQuery.of(fault_of(fault, transform))


def blames_query(fault: PySparkException) -> bool:
    """Whether an error of Spark is the query's or the data's, and not the engine's."""
    return (fault.getSqlState() or "XX").startswith(_BLAME_QUERY)


def blames_data(fault: PySparkException) -> bool:
    """Whether it is the data's: the query is right in itself."""
    return (fault.getSqlState() or "XX").startswith(_DATA)


def fault_of(fault: PySparkException, transform: Transform) -> Invalid:
    """What Spark says of a query, or of a row that an expression of it cannot take: by the condition's name as rule,
    with the place and text of the expression where Spark knows them, and with what to write instead.
    """
    condition = fault.getCondition()
    context, position = _CONTEXT.search(str(fault)), place_in(fault)
    place, named = "", ""
    if context is not None:
        line, column, text = int(context[1]), int(context[2]), _fragment(fault)
        place = f"{_query_with(text, line, column, transform)}line {line}, column {column}"
        named = _in(text)
    elif position is not None:
        place = f"line {position[0]}, column {position[1]}"
    hint = hint_of_data(condition) if blames_data(fault) else hint_of(condition)
    return Invalid(f"{told(fault)}{named}", rule=rule_of(condition), place=place, hint=hint)


def place_in(fault: PySparkException) -> tuple[int, int] | None:
    """(line, column) of the query that an error names, both from one."""
    found = _POSITION.search(str(fault))
    return (int(found[1]), int(found[2]) + 1) if found is not None else None


def told(fault: PySparkException) -> str:
    """What Spark says, without what the rule and the hint say."""
    return _LABELS.sub("", _TRY_ADVICE.sub("", _said(fault))).strip().removesuffix(".")


def _query_with(fragment: str, line: int, column: int, transform: Transform) -> str:
    """``query 1, `` if that one of several has the fragment at this place, and no other has."""
    steps = transform.queries or ()
    first = fragment.partition("\n")[0]
    lines = [[*step.query.split("\n"), *[""] * line][line - 1] for step in steps]
    found = [number for number, text in enumerate(lines) if first and text[column - 1 :].startswith(first)]
    return f"query {found[0]}, " if len(steps) > 1 and len(found) == 1 else ""


def rule_of(condition: str | None) -> str:
    """A condition of Spark's, as ``DIVIDE_BY_ZERO``, in the form that rules have; without what is said more of it."""
    return (condition or "parse").partition(".")[0].lower().replace("_", "-")


def first_lines(fault: PySparkException) -> str:
    """What Spark says, without plans and stacks."""
    place = _CONTEXT.search(str(fault))
    where = f" (line {place[1]}, column {int(place[2])}{_in(_fragment(fault))})" if place is not None else ""
    return _said(fault) + where


def _said(fault: PySparkException) -> str:
    text = str(fault).split("JVM stacktrace:")[0].split("\n== ")[0].split(";\n")[0]
    return _CONF_ADVICE.sub(" ", " ".join(text.split()))[:1000]


def _fragment(fault: PySparkException) -> str:
    """Text of the expression that failed on some row, where Spark knows it."""
    fragments = [context.fragment().strip() for context in fault.getQueryContext() or ()]
    return next((text for text in fragments if text), "")


def _in(fragment: str) -> str:
    return f" in: {' '.join(fragment.split())[:300]}" if fragment else ""
