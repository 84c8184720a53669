"""Derives the origins of records of a transform's output; ``docs/explanation/provenance.md`` defines them.

One call of ``derive`` answers one request; it reads slices, runs queries over some of their rows and writes nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit

from chain.data.operations import CORRECT_FROM, CORRECT_TO
from chain.errors import Invalid
from engines.contract import (
    MAX_WITNESSES,
    ProvenanceOutcome,
    ProvenancePath,
    ProvenanceRequest,
    ProvenanceRow,
    ProvenanceSuccess,
    RecordProvenance,
)
from engines.request_control import RequestControl
from engines.spark.analysis.classify import Mode, Path
from engines.spark.analysis.lexical import quote_name
from engines.spark.catalyst.plans import HIDDEN, carry_hidden, frame_of
from engines.spark.execution.inputs import VersionRows, advance, net
from engines.spark.execution.transform import SharedCaches
from engines.spark.output.slice import placed_log_rows, same_rows, stated_ops
from engines.spark.planning.transaction import SliceRead
from engines.spark.provenance.question import (
    FoundLineage,
    ProvenanceContext,
    ShownInputs,
    microseconds_of,
    numbers,
    path_views,
    reaching,
    record_of,
    rows_of,
)
from engines.spark.provenance.row_lineage import LINEAGE, pick, trace
from engines.spark.provenance.table_mode import TableTracer
from engines.spark.rows.tables import read_rows
from engines.spark.sql.diagnostics import answer_faults
from engines.spark.sql.views import name_view


class _Finder(Protocol):
    def find(self, place: int) -> FoundLineage: ...


def derive(
    session: SparkSession, request: ProvenanceRequest, control: RequestControl, caches: SharedCaches
) -> ProvenanceOutcome:
    """Derives origins; ``session`` is this request's alone. Raises Environment, and Spark's faults of the engine."""
    return answer_faults(lambda: _derive(session, request, control, caches), request.transform)


def _derive(
    session: SparkSession, request: ProvenanceRequest, control: RequestControl, caches: SharedCaches
) -> ProvenanceSuccess:
    context = ProvenanceContext(session, request, caches.analyst, caches.slices)
    if request.column is not None and request.column not in context.data.column_names:
        raise Invalid(
            f"the records have no column {request.column!r} that a query made",
            rule="provenance-column",
            hint=f"columns: {', '.join(context.data.column_names)}",
        )
    places = [context.place_of(offset) for offset in request.offsets]
    finder = _finder(context)
    records: list[RecordProvenance] = []
    paths: tuple[ProvenancePath, ...] = ()
    inputs = {alias: number for number, alias in enumerate(context.aliases)}
    for offset, place in zip(request.offsets, places, strict=True):
        control.check()
        control.progress()
        found = finder.find(place)
        records.append(record_of(found, offset, int(context.ops[place]), min(request.limit, MAX_WITNESSES)))
        paths = path_views(found.traced, inputs, len(context.query.steps) - 1)
    return ProvenanceSuccess(mode=context.shape.mode.value, paths=paths, records=tuple(records))


def _finder(context: ProvenanceContext) -> _Finder:
    if context.shape.mode is Mode.LOG:
        return LogTracer(context)
    if context.shape.table is not None:
        return TableTracer(context, context.shape.table)
    return FinalTracer(context)


class LogTracer:
    """Traces records in log mode: each comes from one row of one input, in an order that the transaction fixed.

    The transaction is run again over the same blocks with offsets carried along, which gives the input row of each
    record; that row alone is then traced through the query. Spec: docs/spec/engine-semantics.md#modes, #operations.
    """

    def __init__(self, context: ProvenanceContext) -> None:
        self._context = context
        self._reads = context.steps()[1].reads
        for number, (alias, reads) in enumerate(self._reads.items()):
            name_view(context.inputs.view(context.session, alias, reads, number), alias)
        frame = carry_hidden(context.session, context.plan(), HIDDEN)
        result = frame.toArrow().drop_columns(list(context.shape.dropped))
        self._rows, self._ops, self._places = placed_log_rows(result, context.data.schema)
        if context.shape.operation is not None:
            self._ops = stated_ops(self._rows, context.shape.operation)

    def find(self, place: int) -> FoundLineage:
        context = self._context
        if place >= self._rows.num_rows or not self._is(place):
            raise context.unlike(place)
        source, offset = (int(each) for each in self._places[:, place])
        shown = ShownInputs(context)
        others: tuple[ProvenanceRow, ...] = ()
        for number, alias in enumerate(self._reads):
            rows = read_rows((), context.inputs.schemas[alias])
            if number == source:
                read = rows_of(context, alias, self._reads[alias])
                own = np.asarray(read.column(context.inputs.vocabs[alias].offset)) == offset
                rows, others = read.filter(pa.array(own)), self._other_half(alias, read, offset)
            shown.show(alias, rows)
        plan = context.plan()
        traced = trace(context.session, plan, context.step_numbers, context.request.column)
        result = frame_of(context.session, traced.plan).toArrow()
        same = np.flatnonzero(context.matching(result, place))
        if not len(same):
            raise context.unlike(place)
        # Equal output rows of one input row differ only in their path through the query.
        before = int(
            np.sum(np.all(self._places[:, :place] == self._places[:, place : place + 1], axis=0) & self._equal(place))
        )
        lineages = sorted(numbers(result.column(LINEAGE).take(pa.array(same))), key=lambda each: each.tolist())
        return FoundLineage(traced, lineages[min(before, len(lineages) - 1)], shown, others=others)

    def _other_half(self, alias: str, rows: pa.Table, offset: int) -> tuple[ProvenanceRow, ...]:
        """Finds the other half of a correction: whether it was emitted decides the op of this half."""
        vocab = self._context.inputs.vocabs[alias]
        offsets = np.asarray(rows.column(vocab.offset))
        ops = np.asarray(rows.column(vocab.operation_type))
        if self._context.inputs.is_log(alias):
            return ()
        op = int(ops[offsets == offset][0])
        wanted = {CORRECT_FROM: (offset + 1, CORRECT_TO), CORRECT_TO: (offset - 1, CORRECT_FROM)}.get(op)
        if wanted is None or not np.any((offsets == wanted[0]) & (ops == wanted[1])):
            return ()
        return (ProvenanceRow(input=self._context.aliases.index(alias), offset=wanted[0], role="decides"),)

    def _equal(self, place: int) -> np.ndarray:
        """Marks the rows before ``place`` that equal the row there."""
        one = self._rows.take(pa.array(np.full(place, place)))
        return same_rows(self._rows.slice(0, place), one)

    def _is(self, place: int) -> bool:
        """Whether the row computed now is the record in the slice."""
        mine = self._rows.slice(place, 1).select(self._context.data.column_names)
        same = same_rows(mine, self._context.data.slice(place, 1))
        return bool(same[0]) and self._ops[place].as_py() == self._context.ops[place]


class FinalTracer:
    """Traces records in final mode: runs the query over the rows whose influence reaches a record's event time.

    Spec: docs/spec/engine-semantics.md#final-mode, #influence.
    """

    def __init__(self, context: ProvenanceContext) -> None:
        self._context = context
        self._earlier, self._step = context.steps()
        self._versions = {alias: self._version(alias) for alias in self._step.versions}

    def find(self, place: int) -> FoundLineage:
        context, vocab = self._context, self._context.request.vocab
        time = context.data.column(vocab.event_time)[place]
        at, step = microseconds_of(time), self._step
        settled = step.emit_until is not None and at < step.emit_until
        since = context.reached[0] if context.shape.running else step.emit_from
        out = since is not None and at < since and not context.counts_late
        if not settled or out:
            raise context.unlike(place)
        shown = ShownInputs(context)
        for alias, reads in step.reads.items():
            shown.show(alias, self._rows(alias, reads, at))
        for alias, versions in self._versions.items():
            shown.show(alias, versions.seen)
        plan = context.plan()
        traced = trace(context.session, plan, context.step_numbers, context.request.column, context.shape.running)
        result = self._alike(frame_of(context.session, traced.plan), place).toArrow()
        instants = pc.floor_temporal(result.column(vocab.event_time).cast(pa.timestamp("us")), unit="millisecond").cast(
            pa.int64()
        )
        result = result.filter(pc.equal(instants, at))
        same = np.flatnonzero(context.matching(result, place))
        number = context.equal_before(place)
        if number >= len(same):
            raise context.unlike(place)
        lineages = numbers(result.column(LINEAGE).take(pa.array(same)))
        chosen = lineages[pick([lineage.tolist() for lineage in lineages], number)]
        return FoundLineage(traced, chosen, shown)

    def _alike(self, frame: DataFrame, place: int) -> DataFrame:
        """Selects the rows that agree with the record in columns whose values are the same in SQL as in a slice.

        Spark applies this down to the scans as far as keys allow, so of a window only the record's group is computed.
        """
        wanted = [
            col(quote_name(name)).eqNullSafe(lit(value)) for name, value in self._context.plain_values(place).items()
        ]
        return frame.where(reduce(and_, wanted)) if wanted else frame

    def _rows(self, alias: str, reads: Sequence[SliceRead], at: int) -> pa.Table:
        """Reads the rows of an input that can reach ``at``. If rows are retracted, reads all that the transaction read,
        since any of them may retract one."""
        context = self._context
        if context.changes(alias):
            return net(rows_of(context, alias, reads), context.inputs.vocabs[alias])
        paths = [path for path in context.shape.paths if path.input == alias]
        whole = context.shape.running > 0
        return rows_of(context, alias, [narrow(read, paths, at, whole) for read in reads])

    def _version(self, alias: str) -> VersionRows:
        """Returns the versions that the transaction saw, computed from the input's first statement on."""
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


def narrow(read: SliceRead, paths: Sequence[Path], at: int, history: bool = False) -> SliceRead:
    """Narrows a read to rows that can reach the output time ``at`` (microseconds). ``history``: and to
    all earlier rows."""
    low, high = reaching(paths, at)
    return dataclasses.replace(read, low=read.low if history else max(read.low, low), high=min(read.high, high))
