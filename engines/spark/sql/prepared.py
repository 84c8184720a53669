"""Keeps plans of queries, so that a small transaction puts its rows into a plan that was made earlier.

To name views, parse, analyse, rewrite and optimise a query takes Spark longer than to compute a thousand rows, and
gives the same result each time: a plan depends on the texts, on the columns of the inputs and on the hidden columns
carried through it; of the rows it depends only on there being no more than ``FEW_ROWS``. So a plan is made once, over
empty placeholders for the inputs, which are then replaced by rows. Its names are resolved already: kept plans run in
one session, in which nothing is ever named, and without the records that Spark keeps of queries for its web pages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakKeyDictionary

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import convert_exception
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.util import _load_from_socket

from chain.model.source import SqlQueryStep
from engines.spark.catalyst.exact import complete_plan, first_exact, quick_plans
from engines.spark.catalyst.plans import frame_of, inline_ctes, items, jvm_object, widen_plan
from engines.spark.rows.tables import arrow_columns, frame_of_rows
from engines.spark.sql.queries import run_queries
from engines.spark.sql.views import FEW_ROWS, name_view, without_hidden

REMEMBERED: Final = 256
"""Most queries whose plans are kept."""
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
            return pa.Table.from_batches([pa.ipc.read_record_batch(each, columns) for each in messages], columns)


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
