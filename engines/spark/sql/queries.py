"""Analyses the queries of a transform over empty views, and runs them over filled ones.

Analysis is done once per text and input schemas; its verdict holds nothing of the session. A query is judged before
anything runs: a statement that is not a query has no rule in the walk, so it is refused, and never executed.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st

from chain.errors import Invalid
from chain.model.source import SqlQueryStep, Transform
from engines.contract import InvalidQuery, Vocabulary
from engines.faults import Diagnostic, Severity
from engines.spark.analysis.classify import Classification, classify
from engines.spark.analysis.determinism import Finding, literals
from engines.spark.analysis.dialects import QUOTED, foreign, may_be_foreign
from engines.spark.analysis.hints import NOT_DETERMINISTIC, hint_of, hint_of_data
from engines.spark.analysis.input_kinds import Readings
from engines.spark.analysis.parsed import Size
from engines.spark.analysis.phrases import Phrase
from engines.spark.analysis.refusals import HOP_CALENDAR, Refused
from engines.spark.analysis.tree import Node, parse_plan
from engines.spark.analysis.walk import VALID_FROM, VALID_TO, Walk
from engines.spark.analysis.zones import Zone
from engines.spark.catalyst.plans import frame_of, origin_of, place_of, text_of
from engines.spark.catalyst.types import slice_types
from engines.spark.sql.constant_faults import UNREADABLE, Failure, failing
from engines.spark.sql.parsing import analysed, as_json, parsed, words_of
from engines.spark.sql.time_patterns import unreadable
from engines.spark.sql.views import name_empty_view, name_view
from engines.spark.sql.zones import zones_in

Answer = TypeVar("Answer")
REMEMBERED: Final = 256
"""Queries whose analysis is kept."""
_CONF_ADVICE: Final = re.compile(r" (If necessary set|To tolerate the error|If you did not qualify) .*?(?=SQLSTATE|$)")
"""Advice of Spark's that would not help: a query cannot change settings."""
_TRY_ADVICE: Final = re.compile(r" (Use|Try) `?(try_\w+|get)\b.*?(?= SQLSTATE|$)")
"""Advice that the hint gives, in fewer words."""
_LABELS: Final = re.compile(r"^\[[A-Z][A-Z0-9_.]+\] | SQLSTATE: \w{5}")
"""Names of the condition, which the rule says."""
_POSITION: Final = re.compile(r"line (\d+),? pos(?:ition)? (\d+)")
_CALENDAR_WINDOW: Final = re.compile(r"Intervals greater than a month is not supported \((.*)\)")
_CONTEXT: Final = re.compile(r"== SQL.*\(line (\d+), position (\d+)\) ==")
_BLAME_QUERY: Final = ("0A", "21", "22", "23", "42", "46", "54")
"""Classes of SQLSTATE that blame the query or its data; the others blame the engine."""
_DATA: Final = "22"


@dataclass(frozen=True, slots=True)
class InputView:
    """An input as a query sees it."""

    alias: str
    schema: st.StructType
    event_time: str
    primary_key: tuple[str, ...] = ()
    """If there is one, the query sees the versions of each key, with when they were in force."""
    operation: str = "op"
    """Name of the column that says whether a row adds or takes back."""
    changes: bool | None = None
    """Whether rows can be taken back; ``None``: not known."""
    log: bool = False
    """The query sees every statement as an event."""
    offset: str = "offset"
    """Name of the column that numbers the rows of the input's chain."""

    @property
    def columns(self) -> st.StructType:
        """All that the query sees."""
        if not self.primary_key:
            return self.schema
        times = [st.StructField(name, st.TimestampType()) for name in (VALID_FROM, VALID_TO)]
        return st.StructType([*self.schema, *times])


@dataclass(frozen=True, slots=True)
class Analysis:
    """What came of looking at a query: a classification and the columns it gives, or errors; and warnings."""

    classification: Classification | None
    columns: pa.Schema | None
    """As slices hold them."""
    diagnostics: tuple[Diagnostic, ...]


class Analyst:
    """Analyses queries, and remembers. Safe to use from several threads: at worst a text is analysed twice."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[object, ...], Analysis] = OrderedDict()
        self._zones: dict[str, Zone] = {}

    def analyse(
        self, session: SparkSession, steps: Sequence[SqlQueryStep], inputs: Sequence[InputView], vocab: Vocabulary
    ) -> Analysis:
        """Judge the queries. Names views in ``session``. What is wrong with them is in the answer."""
        known = self.known(steps, inputs, vocab)
        if known is None:
            zones = zones_in(session, [step.query for step in steps], self._zones)
            known = _analyse(session, steps, inputs, vocab, zones)
            self._known[_key(steps, inputs, vocab)] = known
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return known

    def known(self, steps: Sequence[SqlQueryStep], inputs: Sequence[InputView], vocab: Vocabulary) -> Analysis | None:
        """What was found before, if these queries were judged already: that needs no session."""
        return self._known.get(_key(steps, inputs, vocab))


def _key(steps: Sequence[SqlQueryStep], inputs: Sequence[InputView], vocab: Vocabulary) -> tuple[object, ...]:
    seen = tuple((replace(view, schema=st.StructType()), view.schema.json()) for view in inputs)
    return tuple(steps), seen, vocab


def run_queries(session: SparkSession, steps: Sequence[SqlQueryStep]) -> Any:
    """The analysed plan of the last query over the views of this session; the others become views. Runs nothing yet.

    Only for queries that ``Analyst`` accepted.
    """
    sizes: dict[str, Size] = {}
    for step in steps[:-1]:
        query = parsed(session, step.query, sizes)
        sizes[step.alias or ""] = query.judgement.size
        name_view(frame_of(session, analysed(session, query)), step.alias or "")
    return analysed(session, parsed(session, steps[-1].query, sizes))


def _analyse(
    session: SparkSession, steps: Sequence[SqlQueryStep], inputs: Sequence[InputView], vocab: Vocabulary,
    zones: Mapping[str, Zone],
) -> Analysis:  # fmt: skip
    event_times = {view.alias: view.event_time for view in inputs}
    temporal = {view.alias: view.primary_key for view in inputs if view.primary_key}
    readings = _readings(inputs)
    for view in inputs:
        _check_versions(view)
    are_named = False  # a text that cannot be read needs no views
    sizes: dict[str, Size] = {}
    names = {name for view in inputs for name in view.columns.names}
    warnings: list[Diagnostic] = []
    for number, step in enumerate(steps):
        last = number == len(steps) - 1
        phrases = _phrases(session, step.query, names)
        warnings += [_of_phrase(phrase, number) for phrase in phrases if not phrase.certain]
        try:
            query = parsed(session, step.query, sizes)
            if not are_named:
                _name_inputs(session, inputs)
                are_named = True
            plan = analysed(session, query)
            root = parse_plan(as_json(plan), zones)
        except PySparkException as fault:
            said = diagnostic_of(fault, step.query, number)
            return Analysis(None, None, (*_in_other_words(said, phrases, fully=True), *warnings))
        except Invalid as fault:
            said = _of_fault(fault, number)
            return Analysis(None, None, (*_in_other_words(said, phrases, fully=False), *warnings))
        sizes[step.alias or ""] = query.judgement.size
        found = [*literals(query.judgement.undated), *unreadable(session, root)]
        if last:
            verdict = classify(root, event_times, vocab, temporal, readings, zones)
            found.extend(verdict.findings)
        else:
            walk = Walk(event_times, temporal, readings)
            walk.of(root)
            found.extend(walk.findings)
        if not found and not plan.deterministic():
            found.append(
                Finding("not-deterministic", "Spark says that the query is not deterministic", NOT_DETERMINISTIC)
            )
        if found:
            return Analysis(None, None, (*(diagnostic_at(each, plan, root, number) for each in found), *warnings))
        certain = list(_certain(session, plan, root, steps, warnings)) if last else []
        if certain:
            raised = {(each.query, each.line, each.column) for each in certain}
            others = [each for each in warnings if (each.query, each.line, each.column) not in raised]
            return Analysis(None, None, (*certain, *others))
        frame = frame_of(session, plan)
        if last:
            shape = verdict.classification
            if shape is not None and "try_sum(" in plan.toString():
                shape = replace(shape, exact=True)  # which is all that tells it from sum, and its null is no error
            return Analysis(shape, _columns(frame, shape), tuple(warnings))
        name_view(frame, step.alias or "")
        names.update(frame.columns)
    raise Invalid("the transform has no query", rule="no-query", hint="write query: select … from an input")


def _certain(
    session: SparkSession, plan: Any, root: Node, steps: Sequence[SqlQueryStep], doubts: Sequence[Diagnostic]
) -> Iterator[Diagnostic]:
    """What has no value in any row; in place of one that holds a text called like a column, what was said of that."""
    told = set()
    for failure in failing(session, plan, root):
        if not isinstance(failure.fault, str) and not blames_query(failure.fault):
            continue
        texts = {f"`{part.fields.get('value')}`" for part in failure.node.preorder() if part.kind == "Literal"}
        said = next((_certainly(each) for each in doubts if each.code == QUOTED and each.replace in texts), None)
        said = said or _of_failure(failure, steps)
        if said not in told:
            told.add(said)
            yield said


def _certainly(doubt: Diagnostic) -> Diagnostic:
    return msgspec.structs.replace(doubt, severity=Severity.ERROR)


def _of_failure(failure: Failure, steps: Sequence[SqlQueryStep]) -> Diagnostic:
    fault, text, place = failure.fault, text_of(failure.expression), origin_of(failure.expression)
    condition = UNREADABLE if isinstance(fault, str) else fault.getCondition()
    said = f"the pattern is no regular expression: {fault}" if isinstance(fault, str) else _told(fault)
    number = next((number for number, step in enumerate(steps) if step.query == text), None)
    line, column = place if place is not None and number is not None else (None, None)
    return Diagnostic(
        code=rule_of(condition), severity=Severity.ERROR, message=f"{said}: in every row that has a value here",
        query=len(steps) - 1 if number is None else number, line=line, column=column, replace=hint_of_data(condition),
    )  # fmt: skip


def _name_inputs(session: SparkSession, inputs: Sequence[InputView]) -> None:
    for view in inputs:
        name_empty_view(session, view.columns, view.alias)


def _phrases(session: SparkSession, text: str, columns: Collection[str]) -> list[Phrase]:
    """What of a query may be written in another dialect; none of a text that is too large to be cut into words."""
    if not may_be_foreign(text):
        return []
    try:
        return foreign(words_of(session, text), columns)
    except Invalid:
        return []


def _in_other_words(said: Diagnostic, phrases: Sequence[Phrase], *, fully: bool) -> list[Diagnostic]:
    """Phrases of another dialect as errors, in place of what ``said`` tells of them.

    ``fully``: it tells of nothing else, since nothing was understood. What has no place is looked for again later.
    """
    certain = [_of_phrase(phrase, said.query) for phrase in phrases if phrase.certain]
    here = said.line is None or any((each.line, each.column) == (said.line, said.column) for each in certain)
    return certain if certain and (fully or here) else [*certain, said]


def _of_phrase(phrase: Phrase, query: int) -> Diagnostic:
    line, column = phrase.place
    severity = Severity.ERROR if phrase.certain else Severity.WARNING
    return Diagnostic(
        code=phrase.code, severity=severity, message=phrase.message, query=query, line=line, column=column,
        replace=phrase.replace,
    )  # fmt: skip


def _readings(inputs: Sequence[InputView]) -> Readings:
    return Readings(
        operations={view.alias: view.operation for view in inputs},
        logs=frozenset(view.alias for view in inputs if view.log),
        changes={view.alias: view.changes for view in inputs},
        offsets={view.alias: view.offset for view in inputs},
    )


def _check_versions(view: InputView) -> None:
    missing = [name for name in view.primary_key if name not in view.schema.names]
    if missing:
        raise Invalid(
            f"temporal table {view.alias}: its primary key names {missing[0]}, which the input does not have",
            rule="temporal-table", hint=f"columns: {', '.join(view.schema.names)}",
        )  # fmt: skip
    taken = [name for name in (VALID_FROM, VALID_TO) if name in view.schema.names]
    if view.primary_key and taken:
        raise Invalid(
            f"temporal table {view.alias} has a column {taken[0]} of its own", rule="reserved-name",
            hint="rename it in a dataset between",
        )  # fmt: skip


def _columns(frame: DataFrame, found: Classification | None) -> pa.Schema:
    left_out = (*found.dropped, found.operation) if found is not None else ()
    kept = [field for field in frame.schema if field.name not in left_out]
    for field in kept:
        if "timestamp_ntz" in field.dataType.simpleString():
            raise Invalid(
                f"column {field.name} is of type {field.dataType.simpleString()}, which a dataset cannot hold: a time "
                "without a zone", rule="output-type", hint=f"cast({field.name} as timestamp)",
            )  # fmt: skip
    return slice_types(kept)


def diagnostic_at(finding: Finding, plan: Any, root: Node, query: int) -> Diagnostic:
    """Of query number ``query``, whose analysed plan is ``plan``, read into ``root``."""
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


def _of_fault(fault: Invalid, query: int) -> Diagnostic:
    line, column = (fault.at if isinstance(fault, Refused) else None) or (None, None)
    return Diagnostic(
        code=fault.rule or "invalid", severity=Severity.ERROR, message=fault.message, query=query, line=line,
        column=column, replace=fault.hint or None,
    )  # fmt: skip


def diagnostic_of(fault: PySparkException, text: str, query: int) -> Diagnostic:
    """What Spark says of query number ``query``, the words ``text``, with its place, and a remedy if one is known."""
    window = _CALENDAR_WINDOW.search(str(fault))
    if window is not None:
        return _calendar_window(window[1], text, query)
    place = _POSITION.search(str(fault))
    return Diagnostic(
        code=rule_of(fault.getCondition()),
        severity=Severity.ERROR,
        message=first_lines(fault),
        query=query,
        line=int(place[1]) if place is not None else None,
        column=int(place[2]) + 1 if place is not None else None,
        replace=hint_of(fault.getCondition()),
    )


def _calendar_window(interval: str, text: str, query: int) -> Diagnostic:
    """Of a window() of months, whose place Spark does not tell: where the interval stands as a literal."""
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
    context, position = _CONTEXT.search(str(fault)), _POSITION.search(str(fault))
    place, named = "", ""
    if context is not None:
        line, column, text = int(context[1]), int(context[2]), _fragment(fault)
        place = f"{_query_with(text, line, column, transform)}line {line}, column {column}"
        named = _in(text)
    elif position is not None:
        place = f"line {position[1]}, column {int(position[2]) + 1}"
    hint = hint_of_data(condition) if blames_data(fault) else hint_of(condition)
    return Invalid(f"{_told(fault)}{named}", rule=rule_of(condition), place=place, hint=hint)


def _told(fault: PySparkException) -> str:
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


def refusal(diagnostics: Sequence[Diagnostic], steps: int) -> Invalid:
    """All that is wrong with so many queries. Several things have a line each, and the rule of the first."""
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
