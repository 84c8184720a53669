"""Executes one transaction of a transform: classifies, plans, queries, orders, writes, and reports the result.

One call of ``run_transform`` is one request and leaves nothing behind but its two files. A transaction in which nothing
becomes settled runs no query. Spec: docs/spec/engine-semantics.md#law, #modes, #influence, #changelogs, #output,
#state.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from chain.data.arrow_schema import from_arrow
from chain.data.operations import APPEND
from chain.data.parquet import write_slice
from chain.errors import Invalid
from chain.instant import from_millis
from chain.model.changelog import says_changelog, with_changelog
from chain.model.events import OffsetInterval
from chain.model.schema import DataSchema
from chain.model.source import Transform
from chain.multihash import Multihash
from chain.wording import plural
from engines.contract import InputBlock, RowCounts, Success, TransformOutcome, TransformRequest
from engines.request_control import RequestControl
from engines.spark.analysis.classify import Classification, Mode
from engines.spark.analysis.declarations import Declarations, DeclaredQuery, Late, LatePolicy, read_query
from engines.spark.analysis.lexical import quote_name
from engines.spark.analysis.monotone import MILLISECOND
from engines.spark.analysis.tables import TableShape
from engines.spark.catalyst.exact import run_exactly
from engines.spark.catalyst.partial_aggregates import Partials
from engines.spark.catalyst.plans import HIDDEN, HIDDEN_ROUND, HIDDEN_ROW, carry_hidden, frame_of
from engines.spark.catalyst.running_windows import RunningQuery
from engines.spark.catalyst.types import as_written
from engines.spark.execution.foreign_coordinators import blocks_of, kept_rows
from engines.spark.execution.inputs import Inputs, VersionRows, advance, micros
from engines.spark.execution.running_aggregates import keep_unchanged, run_over_history
from engines.spark.execution.tables import (
    FIRST,
    NO_SCANS,
    WRITTEN,
    Scans,
    TableInput,
    accumulate,
    reevaluate,
    scan_rows,
    unite,
)
from engines.spark.output.slice import (
    behind,
    final_rows,
    is_large,
    log_rows,
    schema_in_force,
    slice_of,
    stated_ops,
    write_in_runs,
)
from engines.spark.planning.lateness import Ruling, rule
from engines.spark.planning.slice_facts import InputWindows, Sessions, SliceReader, rows_before
from engines.spark.planning.table_transaction import plan_table, plan_windows, windows_of
from engines.spark.planning.transaction import InputFacts, TransactionStep, next_checkpoint, plan_step
from engines.spark.rows.tables import frame_of_rows
from engines.spark.sql.diagnostics import answer_faults, refusal
from engines.spark.sql.queries import Analyst, prepare_query, run_queries
from engines.spark.sql.views import name_input, name_view
from engines.spark.state.checkpoint import StateCheckpoint
from engines.spark.state.files import Kept, State, StoredTable, load, save


@dataclass(frozen=True, slots=True)
class SharedCaches:
    """Caches that transactions share within a process."""

    analyst: Analyst
    slices: SliceReader


def run_transform(
    session: SparkSession | Callable[[], SparkSession],
    request: TransformRequest,
    control: RequestControl,
    caches: SharedCaches,
) -> TransformOutcome:
    """Runs a transaction; ``session`` is this request's alone, or a function that opens one once Spark is needed.

    Raises Environment, and Spark's exceptions when the fault is the engine's.
    """

    def run() -> TransformOutcome:
        with _folder(request) as folder:
            return Transaction(session, request, control, caches, Path(folder)).run()

    return answer_faults(run, request.transform)


def identity_of(transform: Transform) -> str:
    """Returns the digest of a transform, by which a checkpoint names its query."""
    return str(Multihash.sha3_256(msgspec.json.encode(transform, order="sorted")))


def _folder(request: TransformRequest) -> contextlib.AbstractContextManager[str]:
    """Makes a folder for rows out of the checkpoint; only an empty name if the coordinator mounts slices again."""
    if all(given.blocks is not None for given in request.query_inputs):
        return contextlib.nullcontext("")
    return tempfile.TemporaryDirectory(prefix="transaction-")


def check_tick(shape: Classification, query: DeclaredQuery) -> None:
    """Raises Invalid for a declared grid of ticks in a query that makes no changing table."""
    if query.declarations.tick is not None and shape.mode is not Mode.TABLE:
        raise Invalid(
            "SET odf.tick says when a table that changes for ever is looked at, and this query makes none",
            rule="tick",
            hint="leave it out",
        )


class Transaction:
    """Runs one transaction of a transform."""

    def __init__(
        self, session: SparkSession | Callable[[], SparkSession], request: TransformRequest, control: RequestControl,
        caches: SharedCaches, folder: Path,
    ) -> None:  # fmt: skip
        self._given = session
        self._request = request
        self._control = control
        self._caches = caches
        self._folder = folder
        self._query = read_query(request.transform)
        self._foreign = {given.query_alias for given in request.query_inputs if given.blocks is None}
        self._inputs = Inputs(request.query_inputs, self._query, caches.slices)

    @functools.cached_property
    def _session(self) -> SparkSession:
        return self._given() if callable(self._given) else self._given

    def run(self) -> TransformOutcome:
        request, query, stage = self._request, self._query, self._control.stage
        stage("planning")
        views, analyst = self._inputs.views(), self._caches.analyst
        analysis = analyst.recall(query.steps, views, request.vocab)
        if analysis is None:
            analysis = analyst.analyse(self._session, query.steps, views, request.vocab)
        shape = analysis.classification
        if shape is None or analysis.columns is None:
            raise refusal(analysis.diagnostics, len(query.steps))
        ruling = rule(query, shape, self._inputs.changelogs)
        shape = ruling.shape
        check_tick(shape, query)
        schema = schema_in_force(analysis.columns, request.vocab, request.output_schema)
        identity = identity_of(request.transform)
        stage("reading")
        state = load(request.prev_checkpoint_path, identity, shape.mode.value)
        facts = self._inputs.facts(ruling, self._blocks(state))
        if shape.table is not None:
            return self._table(ruling, shape.table, facts, state, identity, schema)
        step = plan_step(shape, facts, state.checkpoint, Sessions(self._inputs.vocabs).oldest, self._limit)
        late = self._late(step, query.declarations)
        versions = self._versions(step, state)
        self._control.check()
        stage("computing")
        rows, running = None, keep_unchanged(state.stored)
        if not step.idle:
            if shape.running:
                self._show(ruling, step, versions)
                result, running = self._over_history(shape.running, step, state.stored)
                rows = self._settle(result, 0, step, schema, shape.operation)
            else:
                rows = self._rows(ruling, step, schema, versions)
        self._control.check()
        stage("writing")
        if ruling.behind is not None:
            known = state.checkpoint.g if state.checkpoint is not None else None
            mark = behind(
                rows if isinstance(rows, pa.Table) else None,
                request.vocab,
                ruling.behind,
                None if known is None else known * MILLISECOND,
            )
            step = dataclasses.replace(step, watermark=mark)
        checkpoint = next_checkpoint(shape, identity, step, late, state.checkpoint)
        save(
            request.new_checkpoint_path, self._embedding(checkpoint), {**self._rows_to_keep(step, versions), **running}
        )
        changelog = shape.changelog(self._inputs.can_change(alias) for alias in self._inputs.schemas)
        by_time = shape.mode is Mode.LOG and shape.operation is None and self._inputs.by_time
        return self._answer(rows, step, late, schema, changelog, by_time)

    @property
    def _limit(self) -> int | None:
        return None if self._request.emission_limit is None else micros(self._request.emission_limit)

    def _table(
        self, ruling: Ruling, table: TableShape, facts: tuple[InputFacts, ...], state: State, identity: str,
        schema: pa.Schema,
    ) -> TransformOutcome:  # fmt: skip
        """Runs a transaction in table mode."""
        request = self._request
        # If it is unknown whether rows can be taken back, all that stand are kept: right in both cases.
        changelog = any(self._inputs.can_change(alias) is not False for alias in self._inputs.schemas)
        if changelog and any(name.startswith((f"{WRITTEN}/", f"{FIRST}:")) for name in state.tables):
            raise Invalid(
                "an input that only grew is a changelog now, and the rows that it had are not kept",
                rule="append-only",
                hint="derive it again",
            )
        windows, grid = windows_of(ruling, self._query.declarations), self._query.declarations.tick
        step, ticking, waiting = (
            plan_windows(ruling.shape, facts, windows, state.checkpoint, request.vocab, grid)
            if windows
            else plan_table(facts, state.checkpoint, grid, self._limit)
        )
        late = self._late(step, self._query.declarations)
        sources = self._sources(windows)
        self._control.check()
        self._control.stage("computing")
        if changelog or table.merge is None:
            first = table.first and not changelog and not windows
            done = reevaluate(table, ticking, sources, state.tables, self._evaluate, first)
        else:
            done = accumulate(self._session, table, ticking, sources, state.tables, self._evaluate, self._split)
        self._control.check()
        self._control.stage("writing")
        rows = None
        if done.rows is not None:
            written = as_written(done.rows, schema)
            rows = slice_of(
                written, pa.array(done.ops), schema, request.vocab, request.system_time, request.next_offset
            )
        checkpoint = next_checkpoint(ruling.shape, identity, step, late, state.checkpoint, waiting)
        save(request.new_checkpoint_path, checkpoint, done.state)
        return self._answer(rows, step, late, schema, changelog=True)

    def _sources(self, windows: Mapping[str, InputWindows] = MappingProxyType({})) -> dict[str, TableInput]:
        return {
            alias: TableInput(columns, self._inputs.vocabs[alias], self._inputs.is_log(alias), windows.get(alias))
            for alias, columns in self._inputs.schemas.items()
        }

    def _evaluate(self, rows: Mapping[str, pa.Table], scans: Scans = NO_SCANS) -> pa.Table:
        """Runs the query over rows in memory, and carries through the column with the round that each row is for."""
        numbered = any(HIDDEN_ROW in table.column_names for table in rows.values())
        hidden = (HIDDEN_ROUND, HIDDEN_ROW) if numbered else (HIDDEN_ROUND,)
        return run_exactly(
            self._session,
            self._plan_over(rows, scans),
            lambda plan: carry_hidden(self._session, plan, hidden).toArrow(),
        )

    def _split(self, rows: Mapping[str, pa.Table], scans: Scans = NO_SCANS) -> Partials:
        return Partials.of(self._session, self._plan_over(rows, scans))

    def _plan_over(self, rows: Mapping[str, pa.Table], scans: Scans) -> Any:
        for alias, table in rows.items():
            visible = [quote_name(name) for name in table.column_names if name not in (HIDDEN_ROUND, HIDDEN_ROW)]
            schema, vocab = self._inputs.schemas[alias], self._inputs.vocabs[alias]
            frames = scan_rows(self._session, scans.get(alias, ()), schema, vocab)
            if table.num_rows or not frames:
                frames.append(frame_of_rows(self._session, table))
            name_view(unite(frames).selectExpr(*visible), alias)
        self._control.progress()
        return run_queries(self._session, self._query.steps)

    def _answer(
        self,
        rows: pa.Table | int | None,
        step: TransactionStep,
        late: Mapping[str, int],
        schema: pa.Schema,
        changelog: bool | None,
        by_time: bool = False,
    ) -> TransformOutcome:
        interval = None
        count = rows if isinstance(rows, int) else 0 if rows is None else rows.num_rows
        if self._foreign and not count:
            # The reference coordinator reads the output's schema from the file, even from one without rows.
            write_slice(schema.empty_table(), Path(self._request.new_data_path))
        if count:
            if not isinstance(rows, int):
                write_slice(rows, Path(self._request.new_data_path))
            start = self._request.next_offset
            interval = OffsetInterval(start=start, end=start + count - 1)
        watermark = None if step.watermark is None else from_millis(step.watermark // MILLISECOND)
        # The dataset's own schema if it has one, with its attributes, even if it does not state whether rows change.
        told = self._schema_to_state(from_arrow(schema), changelog, by_time)
        dropped = sum(late.values())
        counts = RowCounts(late=dropped, untimed=sum(step.untimed.values()))
        return Success(new_offset_interval=interval, new_watermark=watermark, schema=told, late=dropped, rows=counts)

    def _schema_to_state(self, schema: DataSchema, changelog: bool | None, by_time: bool) -> DataSchema:
        """Returns the output schema to state: as in force, but with changes allowed once an input was corrected."""
        said = self._request.output_schema
        if said is not None and (says_changelog(said) is not False or changelog is False):
            return said
        return with_changelog(said or schema, changelog, by_time=by_time)

    def _blocks(self, state: State) -> dict[str, tuple[InputBlock, ...]]:
        declared = self._query.declarations
        return {
            given.query_alias: given.blocks
            if given.blocks is not None
            else blocks_of(given, state, declared.lateness_of(given.query_alias), self._folder)
            for given in self._request.query_inputs
        }

    def _late(self, step: TransactionStep, declared: Declarations) -> dict[str, int]:
        late: dict[str, int] = {}
        for check in step.late_checks:
            count, first = rows_before(Path(check.path), self._inputs.vocabs[check.alias], check.threshold)
            if count and declared.late_of(check.alias) == LatePolicy(Late.FAIL):
                raise Invalid(
                    f"input {check.alias}: {plural(count, 'row')} of a block came later than its watermark allows, "
                    f"the first at offset {first}",
                    rule="late",
                    hint="SET odf.late = 'drop' to continue without such rows",
                )
            late[check.alias] = late.get(check.alias, 0) + count
        return late

    def _versions(self, step: TransactionStep, state: State) -> dict[str, VersionRows]:
        found = {}
        for alias, each in step.versions.items():
            changelog = self._inputs.changelog(alias)
            if changelog and not each.life.clamped:
                raise Invalid(
                    f"input {alias} is a changelog: an as-of join would match its retractions",
                    rule="as-of-changelog",
                    hint=f"declare it: temporalTables: [{{name: {alias}, primaryKey: [...]}}]",
                )
            former = state.tables.get(f"versions:{alias}")
            schema, vocab = self._inputs.schemas[alias], self._inputs.vocabs[alias]
            told = changelog if each.life.clamped else False
            found[alias] = advance(each, former, schema, vocab, told, self._inputs.ranks_by_time(alias))
        return found

    def _embedding(self, checkpoint: StateCheckpoint) -> StateCheckpoint:
        """Removes the open blocks from the checkpoint where the coordinator cannot mount
        them; their rows are kept instead."""
        inputs = tuple(
            msgspec.structs.replace(item, open=()) if item.alias in self._foreign else item
            for item in checkpoint.inputs
        )
        return msgspec.structs.replace(checkpoint, inputs=inputs)

    def _rows_to_keep(self, step: TransactionStep, versions: Mapping[str, VersionRows]) -> dict[str, pa.Table]:
        """Returns the part of the state that is rows: versions, and rows of inputs whose blocks
        cannot be mounted again."""
        embedded = {alias: reads for alias, reads in step.kept.items() if alias in self._foreign}
        return {
            **{f"versions:{alias}": each.kept for alias, each in versions.items()},
            **kept_rows(embedded, self._inputs.schemas, self._inputs.vocabs),
        }

    def _show(self, ruling: Ruling, step: TransactionStep, versions: Mapping[str, VersionRows]) -> None:
        """Registers the views that the query reads."""
        for number, (alias, reads) in enumerate(step.reads.items()):
            origin = number if ruling.shape.mode is Mode.LOG or ruling.reach else None
            name_input(self._inputs.view(self._session, alias, reads, origin), self._inputs.schemas[alias], alias)
        for alias, each in versions.items():
            name_view(frame_of_rows(self._session, each.seen), alias)

    def _over_history(
        self, windows: int, step: TransactionStep, former: Mapping[str, StoredTable]
    ) -> tuple[pa.Table, dict[str, Kept]]:
        """Returns the settled rows of a query with OVER over all history, and its new state."""
        if step.emit_until is None:
            raise AssertionError("a query ran though nothing is settled")
        query = RunningQuery.of(self._session, run_queries(self._session, self._query.steps), windows)
        self._control.progress()
        return run_over_history(self._session, query, windows, former, step.emit_from, step.emit_until)

    def _rows(
        self, ruling: Ruling, step: TransactionStep, schema: pa.Schema, versions: Mapping[str, VersionRows]
    ) -> pa.Table | int:
        """Returns the rows to write, or how many were written already."""
        shape = ruling.shape
        one_by_one = shape.mode is Mode.LOG or bool(ruling.reach)
        large = not one_by_one and is_large(step.paths)
        request = self._request
        hidden: tuple[str, ...] = ()
        if one_by_one:
            hidden = HIDDEN if ruling.reach else self._inputs.hidden_columns(step.reads)

        def run(frame: DataFrame) -> pa.Table | int:
            self._control.progress()
            if not large:
                return frame.toArrow()
            return write_in_runs(
                self._session, frame, Path(request.new_data_path), schema, request.vocab.event_time,
                lambda run, before: self._settle(run, before, step, schema, shape.operation),
            )  # fmt: skip

        seen = {alias: each.seen for alias, each in versions.items()}
        few = None if large else self._inputs.few(step.reads, seen, one_by_one)
        if few is not None:
            rows, widths = few
            query = prepare_query(self._session, self._query.steps, rows, widths, hidden, shape.exact)
            self._control.progress()
            result = query.run(rows)
        else:
            self._show(ruling, step, versions)
            plan = run_queries(self._session, self._query.steps)
            show = functools.partial(carry_hidden, names=hidden) if hidden else frame_of
            result = run_exactly(self._session, plan, lambda made: run(show(self._session, made)), shape.exact)
        if isinstance(result, int):
            return result
        if shape.mode is Mode.LOG:
            rows, ops = log_rows(result.drop_columns(list(shape.dropped)), schema)
            if shape.operation is not None:
                ops = stated_ops(rows, shape.operation)
            return slice_of(rows, ops, schema, request.vocab, request.system_time, request.next_offset)
        return self._settle(result, 0, step, schema, shape.operation)

    def _settle(
        self, result: pa.Table, before: int, step: TransactionStep, schema: pa.Schema, operation: str | None
    ) -> pa.Table:
        """Returns rows of final mode as rows of the slice; ``before``: number of rows written already."""
        if step.emit_until is None:
            raise AssertionError("a query ran though nothing is settled")
        request = self._request
        rows = final_rows(result, schema, request.vocab, step.emit_from, step.emit_until)
        ops = pa.repeat(pa.scalar(APPEND, pa.int32()), rows.num_rows)
        if operation is not None:
            ops = stated_ops(rows, operation)
        return slice_of(rows, ops, schema, request.vocab, request.system_time, request.next_offset + before)
