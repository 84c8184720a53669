"""Keeps the plans of queries: a small transaction puts its rows into one that was made before.

To name views, parse, analyse and rewrite a query takes Spark longer than a thousand rows do, and gives the same each
time: a plan depends on the texts, on the columns of the inputs and on what is carried through it, on nothing of the
rows. So it is made once over inputs without rows, and what stands for an input in it is replaced.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from chain.model.source import SqlQueryStep
from engines.spark.catalyst.exact import complete_plan, first_exact, quick_plans
from engines.spark.catalyst.plans import frame_of, inlined, items, jvm_object, widened
from engines.spark.rows.tables import frame_of_rows
from engines.spark.sql.queries import run_queries
from engines.spark.sql.views import name_view, without_hidden

Answer = TypeVar("Answer")
REMEMBERED: Final = 256
"""Queries whose plans are kept."""
_KEPT: Final[WeakKeyDictionary[Any, OrderedDict[tuple[object, ...], PreparedQuery]]] = WeakKeyDictionary()
"""Of each JVM. A plan holds nothing of a session."""


_ONE: Final = "scala.collection.immutable.Map$Map1"
"""A map of one key: to Scala it is a partial function, by which a plan can be transformed."""


@dataclass(frozen=True, slots=True)
class _Plan:
    root: Any
    inputs: Sequence[tuple[Any, str]]
    """Its leaves, and the input that each stands for: a union or join with itself has several for one."""

    def over(self, session: SparkSession, data: Mapping[str, Any]) -> DataFrame:
        root = self.root
        for leaf, alias in self.inputs:
            filled = leaf.copy(leaf.output(), data[alias], leaf.isStreaming(), leaf.stream())
            root = root.transformUp(jvm_object(session, _ONE)(leaf, filled))
        return frame_of(session, root)


@dataclass(frozen=True, slots=True)
class PreparedQuery:
    analysed: Any
    aliases: Sequence[str]
    hidden: tuple[str, ...]
    """Columns that are carried through."""
    plans: Sequence[_Plan]
    """The quickest first; they may fail of what the complete plan can do."""

    def run(self, session: SparkSession, rows: Mapping[str, pa.Table], run: Callable[[DataFrame], Answer]) -> Answer:
        """What ``run`` gives for the query over rows in memory, whose aggregates are exact."""
        data = {alias: _relation(session, rows[alias]).data() for alias in self.aliases}
        return first_exact((plan.over(session, data) for plan in self._all(session)), run)

    def _all(self, session: SparkSession) -> Iterator[_Plan]:
        yield from self.plans
        yield _planned(session, complete_plan(session, self.analysed), self.aliases, self.hidden)


def prepared(
    session: SparkSession, steps: Sequence[SqlQueryStep], rows: Mapping[str, pa.Table], widths: Mapping[str, int],
    hidden: tuple[str, ...], exact: bool,
) -> PreparedQuery:  # fmt: skip
    """The plans of a query over inputs with such columns, of which it sees the first ones, as many as ``widths`` says;
    ``hidden`` are carried through it. ``exact``: see ``run_exactly``.
    """
    kept = _KEPT.setdefault(session.sparkContext._gateway, OrderedDict())
    key = tuple(steps), tuple((alias, table.schema, widths[alias]) for alias, table in rows.items()), hidden, exact
    found = kept.get(key)
    if found is None:
        for number, (alias, table) in enumerate(rows.items()):
            name_view(without_hidden(session, _bare(session, table.schema, number), widths[alias]), alias)
        plan = inlined(session, run_queries(session, steps))
        plans = [_planned(session, each, tuple(rows), hidden) for each in quick_plans(session, plan, exact)]
        found = kept[key] = PreparedQuery(plan, tuple(rows), hidden, plans)
        while len(kept) > REMEMBERED:
            kept.popitem(last=False)
    return found


def _bare(session: SparkSession, schema: pa.Schema, number: int) -> DataFrame:
    """Stands for an input: a relation of ``number`` + 1 rows that are none, by which it is known again wherever Spark
    copied it to. As one partition, so that grouping and joining need no exchange.
    """
    relation = _relation(session, schema.empty_table())
    data = relation.data()
    for _ in range(number + 1):
        data = data.appended(None)
    bare = relation.copy(relation.output(), data, relation.isStreaming(), relation.stream())
    return frame_of(session, bare).coalesce(1)


def _planned(session: SparkSession, plan: Any, aliases: Sequence[str], hidden: tuple[str, ...]) -> _Plan:
    root = widened(session, plan, hidden) if hidden else plan
    return _Plan(root, [(leaf, aliases[leaf.data().size() - 1]) for leaf in items(root.collectLeaves())])


def _relation(session: SparkSession, rows: pa.Table) -> Any:
    return frame_of_rows(session, rows)._jdf.queryExecution().analyzed()
