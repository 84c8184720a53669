"""Analyses the queries of a transform over empty views, and plans them over filled ones.

Analysis is done once per text and input schemas; its result holds nothing of the session. A query is judged before
anything runs: a statement that is not a query has no rule in the walk, so it is refused, and never executed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st

from chain.errors import Invalid
from chain.model.source import SqlQueryStep
from engines.contract import Diagnostic, Severity, Vocab
from engines.spark.analysis.classify import Classification, classify
from engines.spark.analysis.determinism import QueryFinding, literals
from engines.spark.analysis.dialects import QUOTED, foreign, may_be_foreign
from engines.spark.analysis.influence import VersionedInput
from engines.spark.analysis.monotone import Zone
from engines.spark.analysis.parsed import PlanSize
from engines.spark.analysis.phrases import Phrase
from engines.spark.analysis.refusals import as_of_unsaid
from engines.spark.analysis.tree import PlanNode, parse_plan
from engines.spark.analysis.walk import Walk
from engines.spark.catalyst.plans import frame_of
from engines.spark.catalyst.types import slice_types
from engines.spark.sql.constant_faults import failing
from engines.spark.sql.diagnostics import (
    certainly,
    diagnostic_at,
    diagnostic_of,
    in_other_words,
    of_failure,
    of_fault,
    of_phrase,
)
from engines.spark.sql.input_views import QueryInput, check_versions, name_inputs, readings_of
from engines.spark.sql.parsing import analyse_query, as_json, parse_query, words_of
from engines.spark.sql.spark_errors import NOT_DETERMINISTIC, blames_query
from engines.spark.sql.time_patterns import unreadable, zones_in
from engines.spark.sql.views import name_view

REMEMBERED: Final = 256
"""Most queries whose analysis is kept."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """The result of analysing a query: a classification and its columns, or else errors; and warnings."""

    classification: Classification | None
    columns: pa.Schema | None
    """Columns with the types that slices hold; ``None`` if there are errors."""
    diagnostics: tuple[Diagnostic, ...]


class Analyst:
    """Analyses queries and remembers the results. Safe to use from several threads: at
    worst a text is analysed twice."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[object, ...], Analysis] = OrderedDict()
        self._zones: dict[str, Zone] = {}

    def analyse(
        self, session: SparkSession, steps: Sequence[SqlQueryStep], inputs: Sequence[QueryInput], vocab: Vocab
    ) -> Analysis:
        """Analyses the queries, over views that it names in ``session``. Faults are in the result."""
        known = self.recall(steps, inputs, vocab)
        if known is None:
            zones = zones_in(session, [step.query for step in steps], self._zones)
            known = _analyse(session, steps, inputs, vocab, zones)
            self._known[_key(steps, inputs, vocab)] = known
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return known

    def recall(self, steps: Sequence[SqlQueryStep], inputs: Sequence[QueryInput], vocab: Vocab) -> Analysis | None:
        """Returns an earlier result for the same queries and inputs, or ``None``; needs no session."""
        return self._known.get(_key(steps, inputs, vocab))


def _key(steps: Sequence[SqlQueryStep], inputs: Sequence[QueryInput], vocab: Vocab) -> tuple[object, ...]:
    seen = tuple((replace(view, schema=st.StructType()), view.schema.json()) for view in inputs)
    return tuple(steps), seen, vocab


def run_queries(session: SparkSession, steps: Sequence[SqlQueryStep]) -> Any:
    """Returns the analysed plan of the last query over the views of this session; the others become views.

    Executes nothing yet. Only for queries that ``Analyst`` accepted.
    """
    sizes: dict[str, PlanSize] = {}
    for step in steps[:-1]:
        query = parse_query(session, step.query, sizes)
        sizes[step.alias or ""] = query.judgement.size
        name_view(frame_of(session, analyse_query(session, query)), step.alias or "")
    return analyse_query(session, parse_query(session, steps[-1].query, sizes))


def _analyse(
    session: SparkSession, steps: Sequence[SqlQueryStep], inputs: Sequence[QueryInput], vocab: Vocab,
    zones: Mapping[str, Zone],
) -> Analysis:  # fmt: skip
    event_times = {view.alias: view.event_time for view in inputs}
    temporal = {view.alias: view.primary_key for view in inputs if view.primary_key}
    readings = readings_of(inputs)
    for view in inputs:
        check_versions(view)
    are_named = False  # views are named only once a text can be parsed
    sizes: dict[str, PlanSize] = {}
    names = {name for view in inputs for name in view.columns.names}
    warnings: list[Diagnostic] = []
    for number, step in enumerate(steps):
        last = number == len(steps) - 1
        phrases = _phrases(session, step.query, names)
        warnings += [of_phrase(phrase, number) for phrase in phrases if not phrase.certain]
        try:
            query = parse_query(session, step.query, sizes)
            if not are_named:
                name_inputs(session, inputs)
                are_named = True
            plan = analyse_query(session, query)
            root = parse_plan(as_json(plan), zones)
        except PySparkException as fault:
            said = diagnostic_of(fault, step.query, number)
            return Analysis(None, None, (*in_other_words(said, phrases, fully=True), *warnings))
        except Invalid as fault:
            said = of_fault(fault, number)
            return Analysis(None, None, (*in_other_words(said, phrases, fully=False), *warnings))
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
                QueryFinding("not-deterministic", "Spark says that the query is not deterministic", NOT_DETERMINISTIC)
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
                shape = replace(
                    shape, exact=True
                )  # only its name differs from sum's, whose overflow is an error, not null
            return Analysis(shape, _columns(frame, shape), (*_unsaid(shape, inputs, number), *warnings))
        name_view(frame, step.alias or "")
        names.update(frame.columns)
    raise Invalid("the transform has no query", rule="no-query", hint="write query: select … from an input")


def _unsaid(shape: Classification | None, inputs: Sequence[QueryInput], query: int) -> Iterator[Diagnostic]:
    """Yields warnings about inputs that may or may not be changelogs, where the query's meaning depends on it."""
    unknown = {view.alias for view in inputs if view.changes is None and not view.log}
    for path in shape.paths if shape is not None else ():
        if path.input in unknown and isinstance(path.life, VersionedInput) and not path.life.clamped:
            said = as_of_unsaid(path.input, path.life.keys)
            yield Diagnostic(
                code=said.code, severity=Severity.WARNING, message=said.message, query=query, replace=said.replace
            )


def _certain(
    session: SparkSession, plan: Any, root: PlanNode, steps: Sequence[SqlQueryStep], doubts: Sequence[Diagnostic]
) -> Iterator[Diagnostic]:
    """Yields errors for expressions that fail for every row. If such an expression has a quoted text that was doubted
    to be meant as a column, the doubt is reported in place of the failure."""
    told = set()
    for failure in failing(session, plan, root):
        if not isinstance(failure.fault, str) and not blames_query(failure.fault):
            continue
        texts = {f"`{part.fields.get('value')}`" for part in failure.node.preorder() if part.kind == "Literal"}
        said = next((certainly(each) for each in doubts if each.code == QUOTED and each.replace in texts), None)
        said = said or of_failure(failure, steps)
        if said not in told:
            told.add(said)
            yield said


def _phrases(session: SparkSession, text: str, columns: Collection[str]) -> list[Phrase]:
    """Returns the phrases of a query that may be of another dialect; none for a text that is too
    large to be cut into words."""
    if not may_be_foreign(text):
        return []
    try:
        return foreign(words_of(session, text), columns)
    except Invalid:
        return []


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
