"""Analyses the queries of a transform over empty views, and plans them over filled ones.

Analysis is done once per text and input schemas; its result holds nothing of the session. A query is judged before
anything runs: a statement that is not a query has no rule in the walk, so it is refused, and never executed.

To name views, parse, analyse, rewrite and optimise a query takes Spark longer than to compute a thousand rows, and
gives the same result each time: a plan depends on the texts, on the columns of the inputs and on the hidden columns
carried through it; of the rows it depends only on there being no more than ``FEW_ROWS``. So a plan is made once, over
empty placeholders for the inputs, which are then replaced by rows. Its names are resolved already: kept plans run in
one session, in which nothing is ever named, and without the records that Spark keeps of queries for its web pages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from weakref import WeakKeyDictionary

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import convert_exception
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st
from pyspark.util import _load_from_socket

from chain.errors import Invalid
from chain.model.source import SqlQueryStep
from engines.contract import Diagnostic, Severity, Vocab
from engines.spark.analysis.classify import Classification, classify
from engines.spark.analysis.determinism import QueryFinding, literals
from engines.spark.analysis.dialects import QUOTED, foreign, may_be_foreign
from engines.spark.analysis.influence import VersionedInput
from engines.spark.analysis.lexical import Phrase
from engines.spark.analysis.monotone import Zone
from engines.spark.analysis.parsed import PlanSize
from engines.spark.analysis.refusals import as_of_unsaid
from engines.spark.analysis.tree import PlanNode, parse_plan
from engines.spark.analysis.walk import Walk
from engines.spark.catalyst.exact import complete_plan, first_exact, quick_plans
from engines.spark.catalyst.plans import frame_of, inline_ctes, items, jvm_object, widen_plan
from engines.spark.catalyst.types import slice_types
from engines.spark.rows.tables import arrow_columns, frame_of_rows
from engines.spark.sql.diagnostics import (
    NOT_DETERMINISTIC,
    blames_query,
    certainly,
    diagnostic_at,
    diagnostic_of,
    failing,
    in_other_words,
    of_failure,
    of_fault,
    of_phrase,
)
from engines.spark.sql.parsing import analyse_query, as_json, parse_query, words_of
from engines.spark.sql.time_patterns import unreadable, zones_in
from engines.spark.sql.views import (
    FEW_ROWS,
    QueryInput,
    check_versions,
    name_inputs,
    name_view,
    readings_of,
    without_hidden,
)

REMEMBERED: Final = 256
"""Most queries whose analysis is kept, and most whose plans are."""


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
    session: SparkSession,
    steps: Sequence[SqlQueryStep],
    inputs: Sequence[QueryInput],
    vocab: Vocab,
    zones: Mapping[str, Zone],
) -> Analysis:
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
            others = [warning for warning in warnings if (warning.query, warning.line, warning.column) not in raised]
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
        said = next((certainly(doubt) for doubt in doubts if doubt.code == QUOTED and doubt.replace in texts), None)
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
    kept = [column for column in frame.schema if column.name not in left_out]
    for column in kept:
        if "timestamp_ntz" in column.dataType.simpleString():
            raise Invalid(
                f"column {column.name} is of type {column.dataType.simpleString()}, which a dataset cannot hold: a time"
                " without a zone",
                rule="output-type",
                hint=f"cast({column.name} as timestamp)",
            )
    return slice_types(kept)


_SPARK: Final = "org.apache.spark"
_SETTLED: Final = {"callSite.short": "transaction", "callSite.long": "transaction"}
"""Settings that spare Spark a walk through the stack for each query."""
_ONE: Final = "scala.collection.immutable.Map$Map1"
"""Scala's map of one key; it is a partial function too, by which a plan can be transformed."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """The prepared queries of one JVM."""

    session: SparkSession
    """The session in which kept plans run."""
    properties: Any
    """The session's settings, which tasks receive."""
    queries: OrderedDict[tuple[object, ...], PreparedQuery] = field(default_factory=OrderedDict)

    @classmethod
    def of(cls, session: SparkSession) -> _Kept:
        own = session.newSession()
        within: Any = own._jsparkSession
        convert = jvm_object(session, "scala.jdk.javaapi.CollectionConverters.asJava")
        properties = jvm_object(session, "java.util.HashMap")(convert(within.sessionState().conf().getAllConfs()))
        for name, value in _SETTLED.items():
            properties.put(name, value)
        return cls(own, properties)


_KEPT: Final[WeakKeyDictionary[Any, _Kept]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class _Plan:
    frame: DataFrame
    """DataFrame of the analysed plan, with the columns of the result."""
    root: Any
    """The optimised plan, an object of the JVM."""
    inputs: Sequence[tuple[Any, str]]
    """The leaves of the plan, each with the alias of its input; a union or join of an input with itself has several."""

    def run(self, data: Mapping[str, Any], properties: Any) -> pa.Table:
        session, root = self.frame.sparkSession, self.root
        for leaf, alias in self.inputs:
            filled = leaf.copy(leaf.output(), data[alias], leaf.isStreaming(), leaf.stream())
            root = root.transformUp(jvm_object(session, _ONE)(leaf, filled))
        plan = jvm_object(session, f"{_SPARK}.sql.execution.QueryExecution.prepareExecutedPlan")
        # Spark sets these in SQLExecution, which this way leaves out: tasks would cast and divide by its defaults.
        session.sparkContext._jsc.sc().getLocalProperties().putAll(properties)
        try:
            rows = self.frame._jdf.toArrowBatchRdd(plan(session._jsparkSession, root))
            where = jvm_object(session, f"{_SPARK}.api.python.PythonRDD.collectAndServe")(rows)
        except Py4JJavaError as fault:  # a job that failed because of a row has a cause, a cancelled one none
            raise convert_exception(fault.java_exception.getCause() or fault.java_exception) from None
        columns = arrow_columns(self.frame.schema)
        with _load_from_socket(where, NoOpSerializer()) as messages:
            return pa.Table.from_batches([pa.ipc.read_record_batch(message, columns) for message in messages], columns)


@dataclass(frozen=True, slots=True)
class PreparedQuery:
    """A query with plans that were made earlier, to be run over rows in memory."""

    analysed: Any
    aliases: Sequence[str]
    hidden: tuple[str, ...]
    """Hidden columns that are carried through."""
    plans: Sequence[_Plan]
    """Plans to try, the quickest first; they may fail where the complete plan does not."""
    kept: _Kept

    def run(self, rows: Mapping[str, pa.Table]) -> pa.Table:
        """Runs the query over rows in memory, with exact aggregates."""
        data = {alias: _relation(self.kept.session, rows[alias]).data() for alias in self.aliases}
        return first_exact(self._all(), lambda plan: plan.run(data, self.kept.properties))

    def _all(self) -> Iterator[_Plan]:
        yield from self.plans
        session = self.kept.session
        yield _plan_query(session, complete_plan(session, self.analysed), self.aliases, self.hidden)


def prepare_query(
    session: SparkSession, steps: Sequence[SqlQueryStep], rows: Mapping[str, pa.Table], widths: Mapping[str, int],
    hidden: tuple[str, ...], exact: bool,
) -> PreparedQuery:  # fmt: skip
    """Prepares a query, or returns it if it was prepared before. ``widths``: by alias, the number of leading columns
    that the query sees; ``hidden``: columns to carry through it."""
    gateway = session.sparkContext._gateway
    kept = _KEPT.get(gateway) or _KEPT.setdefault(gateway, _Kept.of(session))
    key = tuple(steps), tuple((alias, table.schema, widths[alias]) for alias, table in rows.items()), hidden, exact
    found = kept.queries.get(key)
    if found is None:
        for number, (alias, table) in enumerate(rows.items()):
            name_view(without_hidden(session, _bare(session, table.schema, number), widths[alias]), alias)
        plan = inline_ctes(session, run_queries(session, steps))
        plans = [_plan_query(kept.session, each, tuple(rows), hidden) for each in quick_plans(session, plan, exact)]
        found = kept.queries[key] = PreparedQuery(plan, tuple(rows), hidden, plans, kept)
        while len(kept.queries) > REMEMBERED:
            kept.queries.popitem(last=False)
    return found


def _bare(session: SparkSession, schema: pa.Schema, number: int) -> DataFrame:
    """Makes the placeholder of an input.

    It has more (null) rows than will ever be put in its place, since the optimiser would make use of there being few;
    their number identifies the input in whatever place Spark copied it to. It is one partition, so that grouping and
    joining need no exchange.
    """
    relation = _relation(session, schema.empty_table())
    none = session.sparkContext._gateway.new_array(jvm_object(session, "java.lang.Object"), FEW_ROWS + 1 + number)
    data = jvm_object(session, "scala.collection.immutable.ArraySeq.unsafeWrapArray")(none)
    bare = relation.copy(relation.output(), data, relation.isStreaming(), relation.stream())
    return frame_of(session, bare).coalesce(1)


def _plan_query(session: SparkSession, plan: Any, aliases: Sequence[str], hidden: tuple[str, ...]) -> _Plan:
    frame = frame_of(session, widen_plan(session, plan, hidden) if hidden else plan)
    root = frame._jdf.queryExecution().optimizedPlan()
    inputs = [(leaf, aliases[leaf.data().size() - FEW_ROWS - 1]) for leaf in items(root.collectLeaves())]
    return _Plan(frame, root, inputs)


def _relation(session: SparkSession, rows: pa.Table) -> Any:
    return frame_of_rows(session, rows)._jdf.queryExecution().analyzed()
