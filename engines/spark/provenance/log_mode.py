"""Traces records in log mode, where each comes from one row of one input, in an order that the transaction fixed.

Which row it was the transaction itself says, run again over the same blocks with offsets carried along; the way it took
through the query is then traced for that row alone. Spec: docs/spec/engine-semantics.md#modes, #operations.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from chain.data.operations import CORRECT_FROM, CORRECT_TO
from engines.contract import ProvenanceRow
from engines.spark.catalyst.plans import HIDDEN, carried, frame_of
from engines.spark.output.slice import placed_log_rows, same_rows, stated_ops
from engines.spark.provenance.answers import FoundLineage
from engines.spark.provenance.question import ProvenanceContext, Shown, numbers, rows_of
from engines.spark.provenance.tracing import LINEAGE, trace
from engines.spark.rows.tables import read_rows
from engines.spark.sql.views import name_view


class LogTracer:
    """For the records of one request."""

    def __init__(self, context: ProvenanceContext) -> None:
        self._context = context
        self._reads = context.steps()[1].reads
        for number, (alias, reads) in enumerate(self._reads.items()):
            name_view(context.inputs.view(context.session, alias, reads, number), alias)
        frame = carried(context.session, context.plan(), HIDDEN)
        result = frame.toArrow().drop_columns(list(context.shape.dropped))
        self._rows, self._ops, self._places = placed_log_rows(result, context.data.schema)
        if context.shape.operation is not None:
            self._ops = stated_ops(self._rows, context.shape.operation)

    def find(self, place: int) -> FoundLineage:
        context = self._context
        if place >= self._rows.num_rows or not self._is(place):
            raise context.unlike(place)
        source, offset = (int(each) for each in self._places[:, place])
        shown = Shown(context)
        others: tuple[ProvenanceRow, ...] = ()
        for number, alias in enumerate(self._reads):
            rows = read_rows((), context.inputs.schemas[alias])
            if number == source:
                read = rows_of(context, alias, self._reads[alias])
                own = np.asarray(read.column(context.inputs.vocabs[alias].offset_column)) == offset
                rows, others = read.filter(pa.array(own)), self._other_half(alias, read, offset)
            shown.show(alias, rows)
        plan = context.plan()
        traced = trace(context.session, plan, context.step_numbers, context.request.column)
        result = frame_of(context.session, traced.plan).toArrow()
        same = np.flatnonzero(context.matching(result, place))
        if not len(same):
            raise context.unlike(place)
        # Equal rows of one input row differ in nothing but the way they took.
        before = int(np.sum(np.all(self._places[:, :place] == self._places[:, place : place + 1], axis=0)
                            & self._equal(place)))  # fmt: skip
        lineages = sorted(numbers(result.column(LINEAGE).take(pa.array(same))), key=lambda each: each.tolist())
        return FoundLineage(traced, lineages[min(before, len(lineages) - 1)], shown, others=others)

    def _other_half(self, alias: str, rows: pa.Table, offset: int) -> tuple[ProvenanceRow, ...]:
        """Of a correction: whether its other half came out decides the op of this one."""
        vocab = self._context.inputs.vocabs[alias]
        offsets = np.asarray(rows.column(vocab.offset_column))
        ops = np.asarray(rows.column(vocab.operation_type_column))
        if self._context.inputs.is_log(alias):
            return ()
        op = int(ops[offsets == offset][0])
        wanted = {CORRECT_FROM: (offset + 1, CORRECT_TO), CORRECT_TO: (offset - 1, CORRECT_FROM)}.get(op)
        if wanted is None or not np.any((offsets == wanted[0]) & (ops == wanted[1])):
            return ()
        return (ProvenanceRow(input=self._context.aliases.index(alias), offset=wanted[0], role="decides"),)

    def _equal(self, place: int) -> np.ndarray:
        """Which of the rows before are equal to the one at ``place``."""
        one = self._rows.take(pa.array(np.full(place, place)))
        return same_rows(self._rows.slice(0, place), one)

    def _is(self, place: int) -> bool:
        """Whether what came out now is what the slice holds."""
        mine = self._rows.slice(place, 1).select(self._context.data.column_names)
        same = same_rows(mine, self._context.data.slice(place, 1))
        return bool(same[0]) and self._ops[place].as_py() == self._context.ops[place]
