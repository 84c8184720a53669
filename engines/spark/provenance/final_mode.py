"""Traces records in final mode: runs the query over the input rows that can bear on the record's event time.

Which these are the query's influence intervals say, turned round. Spec: docs/spec/engine-semantics.md#final-mode,
#influence.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import reduce
from operator import and_

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, lit

from chain.errors import Invalid
from engines.spark.analysis.classify import Path
from engines.spark.catalyst.plans import frame_of
from engines.spark.execution.inputs import net
from engines.spark.execution.versions import VersionRows, advance
from engines.spark.planning.transaction import Read
from engines.spark.provenance.answers import FoundLineage
from engines.spark.provenance.input_bounds import reaching
from engines.spark.provenance.question import ProvenanceContext, Shown, microseconds_of, numbers, quoted, rows_of
from engines.spark.provenance.row_numbers import pick
from engines.spark.provenance.tracing import LINEAGE, trace


class FinalTracer:
    """For the records of one request."""

    def __init__(self, context: ProvenanceContext) -> None:
        self._context = context
        self._earlier, self._step = context.steps()
        self._versions = {alias: self._version(alias) for alias in self._step.versions}

    def find(self, place: int) -> FoundLineage:
        context, vocab = self._context, self._context.request.vocab
        time = context.data.column(vocab.event_time_column)[place]
        at, step = microseconds_of(time), self._step
        settled = step.emit_until is not None and at < step.emit_until
        since = context.reached[0] if context.shape.running else step.emit_from
        out = since is not None and at < since and not context.counts_late
        if not settled or out:
            raise context.unlike(place)
        shown = Shown(context)
        for alias, reads in step.reads.items():
            shown.show(alias, self._rows(alias, reads, at))
        for alias, versions in self._versions.items():
            shown.show(alias, versions.seen)
        plan = context.plan()
        traced = trace(context.session, plan, context.step_numbers, context.request.column, context.shape.running)
        result = self._alike(frame_of(context.session, traced.plan), place).toArrow()
        instants = pc.floor_temporal(
            result.column(vocab.event_time_column).cast(pa.timestamp("us")), unit="millisecond"
        ).cast(pa.int64())
        result = result.filter(pc.equal(instants, at))
        same = np.flatnonzero(context.matching(result, place))
        number = context.equal_before(place)
        if number >= len(same):
            raise context.unlike(place)
        lineages = numbers(result.column(LINEAGE).take(pa.array(same)))
        chosen = lineages[pick([lineage.tolist() for lineage in lineages], number)]
        return FoundLineage(traced, chosen, shown)

    def _alike(self, frame: DataFrame, place: int) -> DataFrame:
        """Rows that agree with the record in columns whose values are the same in SQL as in a slice.

        Spark takes this down to the scans as far as keys go, so of a window only the record's group is made.
        """
        wanted = [col(quoted(name)).eqNullSafe(lit(value)) for name, value in self._context.plain_values(place).items()]
        return frame.where(reduce(and_, wanted)) if wanted else frame

    def _rows(self, alias: str, reads: Sequence[Read], at: int) -> pa.Table:
        """What was taken back is taken back by whatever the transaction saw, so there its whole interval is read."""
        context = self._context
        if context.changes(alias):
            return net(rows_of(context, alias, reads), context.inputs.vocabs[alias])
        paths = [path for path in context.shape.paths if path.input == alias]
        whole = context.shape.running > 0
        return rows_of(context, alias, [narrowed(read, paths, at, whole) for read in reads])

    def _version(self, alias: str) -> VersionRows:
        """Who was in force, from the input's first statement on."""
        context, step = self._context, self._step.versions[alias]
        changelog = context.inputs.changelog(alias)
        if changelog and not step.life.clamped:
            raise Invalid(f"input {alias} is a changelog under an as-of join", rule="as-of-changelog")
        told = changelog if step.life.clamped else False
        schema, vocab = context.inputs.schemas[alias], context.inputs.vocabs[alias]
        former, by_time = None, context.inputs.ranks_by_time(alias)
        if self._earlier is not None:
            former = advance(self._earlier.versions[alias], None, schema, vocab, told, by_time).kept
        return advance(step, former, schema, vocab, told, by_time)


def narrowed(read: Read, paths: Sequence[Path], at: int, history: bool = False) -> Read:
    """Of the rows that the transaction saw only those that can reach the output time ``at`` (microseconds).

    ``history``: and those before them, however long.
    """
    low, high = reaching(paths, at)
    return dataclasses.replace(read, low=read.low if history else max(read.low, low), high=min(read.high, high))
