"""Opens a request for provenance: the transform, its inputs up to the transaction, the requested records.

Made for one request. The transaction is planned again from the inputs' blocks alone, by the functions that planned it
when it ran; no checkpoint is read, so none has to be stored or trusted. Spec: docs/spec/engine-semantics.md#law,
#modes, #state.

Also encodes the answer in the contract's form: rows up to the limit, paths with their steps, missing rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from chain.data.parquet import open_slice
from chain.errors import Invalid
from engines.contract import (
    MAX_QUESTIONS,
    ProvenanceAbsence,
    ProvenancePath,
    ProvenanceRequest,
    ProvenanceRow,
    ProvenanceStep,
    RecordProvenance,
)
from engines.spark.analysis.classify import Classification
from engines.spark.analysis.classify import Path as InputPath
from engines.spark.analysis.declarations import DeclaredQuery, read_query
from engines.spark.analysis.influence import SessionWindow
from engines.spark.analysis.lexical import quote_name
from engines.spark.analysis.monotone import EARLIEST, LATEST, MILLISECOND, least
from engines.spark.catalyst.exact import complete_plan
from engines.spark.catalyst.types import as_written
from engines.spark.execution.inputs import Inputs, micros
from engines.spark.output.slice import same_rows, stated_ops
from engines.spark.planning.lateness import rule
from engines.spark.planning.slice_facts import InputWindows, Sessions, SliceReader
from engines.spark.planning.table_transaction import windows_of
from engines.spark.planning.transaction import (
    BlockFacts,
    InputFacts,
    SliceRead,
    TransactionStep,
    next_checkpoint,
    plan_step,
)
from engines.spark.provenance.row_lineage import PATH, ROW, ROWS, PathOperator, RowWitness, Traced, witnesses
from engines.spark.rows.tables import event_times, frame_of_rows, read_rows
from engines.spark.sql.diagnostics import refusal
from engines.spark.sql.queries import Analyst, run_queries
from engines.spark.sql.views import name_view
from engines.spark.state.checkpoint import StateCheckpoint

MAX_ROWS: Final = 20_000_000
"""Most input rows on which one record may depend, since they are held in memory."""


class NotReproduced(Invalid):
    """The query over these inputs does not give the record, so its origin cannot be determined."""

    def __init__(self, offset: int) -> None:
        super().__init__(
            f"record {offset} does not come out of its query over these inputs",
            rule="provenance-not-reproduced",
            hint="odfctl verify --level reproduced shows which transaction differs",
        )


class ProvenanceContext:
    """The transform, inputs and slice of one request. ``data``, ``ops``: the whole slice without system columns."""

    def __init__(
        self, session: SparkSession, request: ProvenanceRequest, analyst: Analyst, slices: SliceReader
    ) -> None:
        self.session = session
        self.request = request
        self.query: DeclaredQuery = read_query(request.transform)
        _check(request)
        self.inputs = Inputs(request.query_inputs, self.query, slices)
        self.slices = slices
        self.aliases = [given.query_alias for given in request.query_inputs]
        found = analyst.analyse(session, self.query.steps, self.inputs.views(), request.vocab)
        if found.classification is None:
            raise refusal(found.diagnostics, len(self.query.steps))
        ruling = rule(self.query, found.classification, self.inputs.changelogs)
        self.windows: Mapping[str, InputWindows] = windows_of(ruling, self.query.declarations)
        """Windows by alias, if late rows correct windows."""
        self.shape: Classification = ruling.shape
        self.counts_late = bool(ruling.reach)
        """Whether there may be records earlier than the settled time."""
        with open_slice(Path(request.data_path)) as source:
            records = pa.Table.from_batches(list(source.batches()), schema=source.schema)
        system = (request.vocab.offset, request.vocab.operation_type, request.vocab.system_time)
        self.data = records.drop_columns(list(system)).replace_schema_metadata(None)
        self._offsets = np.asarray(records.column(request.vocab.offset)).astype(np.int64)
        self.ops = np.asarray(records.column(request.vocab.operation_type)).astype(np.int64)
        blocks = {given.query_alias: given.blocks or () for given in request.query_inputs}
        self.facts = self.inputs.facts(ruling, blocks)

    @property
    def reached(self) -> tuple[int | None, int | None]:
        """The output's progress before and after the transaction, in microseconds; it may have been held back."""
        marks = self.request.watermark_before, self.request.watermark_after
        before, after = (None if mark is None else micros(mark) for mark in marks)
        return before, after

    @property
    def step_numbers(self) -> dict[str, int]:
        """Number of each named query, by name."""
        return {step.alias: number for number, step in enumerate(self.query.steps) if step.alias}

    def plan(self) -> Any:
        """Returns the query's plan over the views of the session, with aggregates as exact as in the original run."""
        plan = run_queries(self.session, self.query.steps)
        return complete_plan(self.session, plan) if self.shape.exact else plan

    def place_of(self, offset: int) -> int:
        """Returns a record's index in its slice. Raises Invalid."""
        found = np.flatnonzero(self._offsets == offset)
        if not len(found):
            raise Invalid(f"the slice holds no record {offset}", rule="provenance-record")
        return int(found[0])

    def before(self) -> tuple[InputFacts, ...]:
        """Returns the inputs as of the end of the previous transaction."""
        known = [tuple(block for block in given.blocks if block.reopened) for given in self.facts]
        return _as_new(dataclasses.replace(g, blocks=blocks) for g, blocks in zip(self.facts, known, strict=True))

    def steps(self) -> tuple[TransactionStep | None, TransactionStep]:
        """Returns all earlier transactions planned as one, if any, and the transaction itself; for log
        and final mode."""
        if self.shape.running:
            # Rows depend on all before them, so the inputs are read from their first blocks on.
            oldest = Sessions(self.inputs.vocabs).oldest
            return None, plan_step(self.shape, _as_new(self.facts), None, oldest, self.reached[1])
        earlier, first, previous = self.before(), None, None
        if any(given.blocks for given in earlier):
            first = plan_step(self.shape, earlier, None, Sessions(self.inputs.vocabs).oldest, self.reached[0])
            previous = self.checkpoint(first)
        # Sessions remembers results for the blocks of one plan, so this plan needs another.
        oldest = Sessions(self.inputs.vocabs).oldest
        return first, plan_step(self.shape, self.facts, previous, oldest, self.reached[1])

    def checkpoint(self, step: TransactionStep, ticks: Sequence[int] = ()) -> StateCheckpoint:
        return next_checkpoint(self.shape, "", step, {}, None, ticks)

    def plain_values(self, place: int) -> dict[str, object]:
        """Returns a record's columns of types with unambiguous equality: text, whole numbers, booleans."""
        plain = (pa.types.is_string, pa.types.is_signed_integer, pa.types.is_boolean)
        return {
            field.name: self.data.column(field.name)[place].as_py()
            for field in self.data.schema
            if any(test(field.type) for test in plain)
        }

    def unlike(self, place: int) -> NotReproduced:
        """Makes the error for a record at ``place`` that the query does not reproduce."""
        return NotReproduced(int(self._offsets[place]))

    def changes(self, alias: str) -> bool:
        """Whether the query sees an input with any row that retracts another."""
        if self.inputs.is_log(alias):
            return False
        given = next(input_ for input_ in self.request.query_inputs if input_.query_alias == alias)
        paths = [block.data_path for block in given.blocks or () if block.data_path is not None]
        return any(self.slices.facts(Path(path), given.vocab).changes for path in paths)

    def equal_before(self, place: int) -> int:
        """Counts records of the slice before this one that are equal to it."""
        one = self.data.take(pa.array(np.full(place, place)))
        return int(np.sum(same_rows(self.data.slice(0, place), one) & (self.ops[:place] == self.ops[place])))

    def matching(self, rows: pa.Table, place: int) -> np.ndarray:
        """Marks the rows of a result, in Spark's types, that equal the record at ``place``."""
        mine = as_written(rows.select(self.data.column_names), self.data.schema)
        same = same_rows(mine, self.data.take(pa.array(np.full(mine.num_rows, place))))
        if self.shape.operation is None:
            return same
        stated = np.asarray(stated_ops(rows, self.shape.operation))
        both: np.ndarray = same & (stated == self.ops[place])
        return both


def _as_new(inputs: Iterable[InputFacts]) -> tuple[InputFacts, ...]:
    """Returns the inputs with all blocks marked as new."""
    return tuple(
        dataclasses.replace(given, blocks=tuple(dataclasses.replace(block, reopened=False) for block in given.blocks))
        for given in inputs
    )


def _check(request: ProvenanceRequest) -> None:
    if not 0 < len(request.offsets) <= MAX_QUESTIONS:
        raise Invalid(
            f"{len(request.offsets)} records", rule="provenance-records", hint=f"ask for 1 to {MAX_QUESTIONS}"
        )
    for given in request.query_inputs:
        if given.blocks is None:
            raise Invalid(
                f"input {given.query_alias} was given without its blocks",
                rule="provenance-blocks",
                hint="state the blocks of each input from its first to the cut",
            )


class ShownInputs:
    """Shows rows of inputs to a session as views, each row with an identifying number."""

    def __init__(self, context: ProvenanceContext) -> None:
        self._context = context
        self._sources: list[np.ndarray] = []
        self._offsets: list[np.ndarray] = []
        self._count = 0

    def show(self, alias: str, rows: pa.Table) -> None:
        """Registers the view of an input; the query does not see the number."""
        context = self._context
        offsets = np.asarray(rows.column(context.inputs.vocabs[alias].offset)).astype(np.int64)
        numbers = np.arange(self._count, self._count + len(offsets))
        self._count += len(offsets)
        if self._count > min(MAX_ROWS, ROWS):
            raise Invalid(
                f"the record bears on more than {MAX_ROWS:,} rows of its inputs",
                rule="provenance-size",
                hint="ask for a record of a shorter window",
            )
        self._sources.append(np.full(len(offsets), context.aliases.index(alias)))
        self._offsets.append(offsets)
        frame = frame_of_rows(context.session, rows.append_column(ROW, pa.array(numbers)))
        visible = [quote_name(name) for name in rows.column_names]
        name_view(frame.selectExpr(*visible), alias)

    @property
    def sources(self) -> np.ndarray:
        return np.concatenate([np.empty(0, np.int64), *self._sources])

    @property
    def offsets(self) -> np.ndarray:
        return np.concatenate([np.empty(0, np.int64), *self._offsets])


def rows_of(context: ProvenanceContext, alias: str, reads: Sequence[SliceRead]) -> pa.Table:
    """Reads the rows of some reads, also those without event time if a read has no bounds; opens only
    slices within bounds."""
    extents = {block.path: block for given in context.facts if given.alias == alias for block in given.blocks}
    schema, vocab = context.inputs.schemas[alias], context.inputs.vocabs[alias]
    parts = [read_rows((), schema)]
    for read in reads:
        bounded = read.low > EARLIEST or read.high < LATEST
        for path in read.paths:
            extent = extents[path]
            if bounded and not _meets(extent, read):
                continue
            rows = read_rows([path], schema)
            if bounded:
                times, timed = event_times(rows, vocab)
                rows = rows.filter(pa.array(timed & (times >= read.low) & (times < read.high)))
            parts.append(rows)
    return pa.concat_tables(parts)


def _meets(block: BlockFacts, read: SliceRead) -> bool:
    return block.first is not None and block.last is not None and block.first < read.high and block.last >= read.low


def numbers(column: pa.ChunkedArray) -> list[np.ndarray]:
    return [np.asarray(value.values) if value.is_valid else np.empty(0, np.int64) for value in column]


def microseconds_of(value: pa.Scalar) -> int:
    whole = value.cast(pa.timestamp("ms")) if pa.types.is_date(value.type) else value
    return int(pc.cast(whole, pa.timestamp("us", whole.type.tz)).value)


def reaching(paths: Sequence[InputPath], at: int) -> tuple[int, int]:
    """Returns the range of event times whose rows can reach the output time ``at`` (microseconds);
    unbounded below for sessions."""
    high = max((least(path.low, at + MILLISECOND) for path in paths), default=LATEST)
    if any(isinstance(path.life, SessionWindow) for path in paths):
        return EARLIEST, high
    return min((least(path.high, at) for path in paths), default=EARLIEST), high


_MAY_MISS: Final = frozenset({"left outer join", "right outer join", "full outer join", "left anti join", "asof join"})
"""Joins that can give a row even if one side has none."""


@dataclass(frozen=True, slots=True)
class FoundLineage:
    """The rows found for one record, before they are encoded."""

    traced: Traced
    lineage: np.ndarray
    shown: ShownInputs
    causes: frozenset[tuple[int, int]] = frozenset()
    """(number of the input, offset) of rows whose arrival caused a changing table to write the record."""
    others: tuple[ProvenanceRow, ...] = ()
    """Rows that contributed to the record without being on any path to it."""


def record_of(found: FoundLineage, offset: int, op: int, limit: int) -> RecordProvenance:
    """Encodes the provenance of a record, with at most ``limit`` rows."""
    told, count = witnesses(found.lineage, found.shown.sources, found.shown.offsets, limit)
    rows = [*(_row(each, found.causes) for each in told), *found.others]
    rows.sort(key=lambda row: (row.input, row.offset, -1 if row.path is None else row.path))
    return RecordProvenance(
        offset=offset,
        op=op,
        rows=tuple(rows[:limit]),
        count=count + len(found.others),
        absences=tuple(ProvenanceAbsence(path=path) for path in absent(found.traced.paths, found.lineage)),
    )


def _row(witness: RowWitness, causes: frozenset[tuple[int, int]]) -> ProvenanceRow:
    return ProvenanceRow(
        input=witness.source,
        offset=witness.offset,
        role="decides" if witness.decides else "value",
        path=witness.path,
        cause=(witness.source, witness.offset) in causes,
    )


def absent(paths: Sequence[Sequence[PathOperator]], lineage: np.ndarray) -> tuple[int, ...]:
    """Returns the paths without a row that meet a path with rows in a join that allows one side to be missing."""
    present = set(np.unique(lineage // PATH).tolist())
    met = {step.number for path in present for step in paths[path] if step.operator in _MAY_MISS}
    return tuple(
        number
        for number, steps in enumerate(paths)
        if number not in present and any(step.number in met for step in steps)
    )


def path_views(traced: Traced, inputs: Mapping[str, int], last: int) -> tuple[ProvenancePath, ...]:
    """Returns the paths; ``inputs``: number of each input by alias; ``last``: number of the last query."""
    return tuple(
        ProvenancePath(input=inputs[alias], steps=tuple(_step(reason, last) for reason in steps))
        for alias, steps in zip(traced.inputs, traced.paths, strict=True)
    )


def _step(reason: PathOperator, last: int) -> ProvenanceStep:
    return msgspec.convert(
        {
            "number": reason.number,
            "operator": reason.operator,
            "detail": reason.detail,
            "query": last if reason.query is None else reason.query,
            "line": reason.line,
            "column": reason.column,
            "hides": reason.hides,
        },
        ProvenanceStep,
    )
