"""Makes diagnostics of queries from faults of all kinds: of the walk, a limit, Spark, another dialect, a failing
constant.

Also joins everything that is wrong with a transform into one refusal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from pyspark.errors import PySparkException

from chain.errors import Invalid
from chain.model.source import SqlQueryStep
from engines.contract import Diagnostic, Severity
from engines.spark.analysis.determinism import QueryFinding
from engines.spark.analysis.phrases import Phrase
from engines.spark.analysis.refusals import HOP_CALENDAR, QueryRefused
from engines.spark.analysis.tree import PlanNode
from engines.spark.catalyst.plans import origin_of, place_of, text_of
from engines.spark.sql.constant_faults import UNREADABLE, ConstantFailure
from engines.spark.sql.spark_errors import first_lines, hint_of, hint_of_data, message_of, place_in, rule_of

_CALENDAR_WINDOW: Final = re.compile(r"Intervals greater than a month is not supported \((.*)\)")


def diagnostic_at(finding: QueryFinding, plan: Any, root: PlanNode, query: int) -> Diagnostic:
    """Makes the diagnostic of query number ``query``, whose analysed plan is ``plan``, read into ``root``."""
    place = place_of(plan, root, finding.node) if finding.node is not None else finding.place
    line, column = place if place is not None else (None, None)
    return Diagnostic(
        code=finding.code,
        severity=Severity.ERROR,
        message=finding.message,
        query=query,
        line=line,
        column=column,
        replace=finding.replace,
    )


def diagnostic_of(fault: PySparkException, text: str, query: int) -> Diagnostic:
    """Converts Spark's error in query number ``query``, whose text is ``text``, with its
    place, and a remedy if known."""
    window = _CALENDAR_WINDOW.search(str(fault))
    if window is not None:
        return _calendar_window(window[1], text, query)
    line, column = place_in(fault) or (None, None)
    return Diagnostic(
        code=rule_of(fault.getCondition()),
        severity=Severity.ERROR,
        message=first_lines(fault),
        query=query,
        line=line,
        column=column,
        replace=hint_of(fault.getCondition()),
    )


def _calendar_window(interval: str, text: str, query: int) -> Diagnostic:
    """Makes the diagnostic for a window() of months. Spark does not report its place, so
    it is the interval's in the text."""
    at = max(text.find(f"'{interval}'"), text.find(f'"{interval}"'))
    return Diagnostic(
        code=HOP_CALENDAR.code,
        severity=Severity.ERROR,
        message=f"{HOP_CALENDAR.message}: {interval}",
        query=query,
        line=text.count("\n", 0, at) + 1 if at >= 0 else None,
        column=at - text.rfind("\n", 0, at) if at >= 0 else None,
        replace=HOP_CALENDAR.replace,
    )


def of_fault(fault: Invalid, query: int) -> Diagnostic:
    line, column = (fault.at if isinstance(fault, QueryRefused) else None) or (None, None)
    return Diagnostic(
        code=fault.rule or "invalid", severity=Severity.ERROR, message=fault.message, query=query, line=line,
        column=column, replace=fault.hint or None,
    )  # fmt: skip


def of_failure(failure: ConstantFailure, steps: Sequence[SqlQueryStep]) -> Diagnostic:
    fault, text, place = failure.fault, text_of(failure.expression), origin_of(failure.expression)
    condition = UNREADABLE if isinstance(fault, str) else fault.getCondition()
    said = f"the pattern is no regular expression: {fault}" if isinstance(fault, str) else message_of(fault)
    number = next((number for number, step in enumerate(steps) if step.query == text), None)
    line, column = place if place is not None and number is not None else (None, None)
    return Diagnostic(
        code=rule_of(condition), severity=Severity.ERROR, message=f"{said}: in every row that has a value here",
        query=len(steps) - 1 if number is None else number, line=line, column=column, replace=hint_of_data(condition),
    )  # fmt: skip


def of_phrase(phrase: Phrase, query: int) -> Diagnostic:
    line, column = phrase.place
    severity = Severity.ERROR if phrase.certain else Severity.WARNING
    return Diagnostic(
        code=phrase.code, severity=severity, message=phrase.message, query=query, line=line, column=column,
        replace=phrase.replace,
    )  # fmt: skip


def in_other_words(said: Diagnostic, phrases: Sequence[Phrase], *, fully: bool) -> list[Diagnostic]:
    """Reports phrases of another dialect as errors, in place of the error ``said`` that they cause.

    ``fully``: nothing of the query could be read, so ``said`` has nothing to add. If ``said`` has no place, it is taken
    to be caused by the phrases: it is found again once they are corrected.
    """
    certain = [of_phrase(phrase, said.query) for phrase in phrases if phrase.certain]
    here = said.line is None or any((each.line, each.column) == (said.line, said.column) for each in certain)
    return certain if certain and (fully or here) else [*certain, said]


def certainly(doubt: Diagnostic) -> Diagnostic:
    return msgspec.structs.replace(doubt, severity=Severity.ERROR)


def refusal(diagnostics: Sequence[Diagnostic], steps: int) -> Invalid:
    """Joins all errors of several queries, one per line, under the rule of the first."""
    first = diagnostics[0]
    if len(diagnostics) == 1:
        return Invalid(first.message, rule=first.code, hint=first.replace or "", place=_place(first, steps))
    remedies = dict.fromkeys(each.replace for each in diagnostics if each.replace)
    lines = (_line(each, steps, first.code) for each in diagnostics)
    return Invalid("\n".join(lines), rule=first.code, hint="; ".join(remedies))


def _line(diagnostic: Diagnostic, steps: int, rule: str) -> str:
    place = _place(diagnostic, steps)
    own = f" [{diagnostic.code}]" if diagnostic.code != rule else ""
    return f"{place}: {diagnostic.message}{own}" if place else f"{diagnostic.message}{own}"


def _place(diagnostic: Diagnostic, steps: int) -> str:
    query = [f"query {diagnostic.query}"] if steps > 1 else []
    line = [f"line {diagnostic.line}, column {diagnostic.column}"] if diagnostic.line is not None else []
    return ", ".join(query + line)
