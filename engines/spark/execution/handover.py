"""Hands a dataset over from one query to the next: the new query continues as if it had always run.

Rows that the old query emitted stay. In final mode the new query emits from where the old one's output ends; in log
mode from the next block on; in table mode it writes the difference between both tables, at the tick that was reached.
The state is rebuilt from the blocks, never converted: it is a function of the cut. Spec:
docs/spec/engine-semantics.md#handover.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from chain.data.evolution import as_in_force, enlarged
from chain.data.parquet import write_slice
from chain.errors import Invalid
from chain.instant import from_millis
from chain.model.changelog import says_changelog
from chain.model.events import OffsetInterval
from engines.contract import (
    DerivationNeeded,
    MigrateOutcome,
    MigrateRequest,
    Success,
    TransformRequest,
    TransformRequestInput,
)
from engines.request_control import RequestControl
from engines.spark.analysis.classify import Classification, Mode
from engines.spark.analysis.monotone import MILLISECOND
from engines.spark.analysis.tables import TableShape
from engines.spark.catalyst.types import as_written
from engines.spark.execution.replay import NOT_SETTLED, Replay
from engines.spark.execution.transform import SharedCaches, identity_of
from engines.spark.output.slice import output_schema, schema_in_force, slice_of
from engines.spark.rows.changelog import row_codes
from engines.spark.rows.ticks import differences, rounds_of
from engines.spark.sql.spark_errors import answer_faults
from engines.spark.state.checkpoint import StateCheckpoint
from engines.spark.state.files import State, load, save


class _NewDerivation(Exception):
    """The new query cannot continue where the old one stopped; the message says why."""


def run_migration(
    session: SparkSession, request: MigrateRequest, control: RequestControl, caches: SharedCaches
) -> MigrateOutcome:
    """Runs a migration; ``session`` is this request's alone. Raises Environment, and Spark's faults of the engine."""

    def run() -> MigrateOutcome:
        try:
            with tempfile.TemporaryDirectory(prefix="handover-") as folder:
                return _Handover(session, request, control, caches, Path(folder)).run()
        except _NewDerivation as reason:
            return DerivationNeeded(message=str(reason))

    return answer_faults(run, request.transform)


class _Handover:
    def __init__(
        self,
        session: SparkSession,
        request: MigrateRequest,
        control: RequestControl,
        caches: SharedCaches,
        folder: Path,
    ) -> None:
        old = _as_transaction(request, old=True)
        self._request = request
        self._control = control
        # Both may call an input by the same name and mean other columns, so each has a session of its own.
        self._old = Replay(session.newSession(), old, control, caches, folder)
        self._new = Replay(session, _as_transaction(request, old=False), control, caches, folder)

    def run(self) -> MigrateOutcome:
        request = self._request
        if self._is_relabelled():
            return self._relabel()
        old, _ = self._analysed_old()
        new, columns = self._new.analyse()
        _check_carries_over(old, new)
        self._check_windows()
        try:
            told = enlarged(request.output_schema, output_schema(columns, request.vocab))
            schema = schema_in_force(columns, request.vocab, told)
        except Invalid as fault:
            raise _NewDerivation(f"its columns differ: {fault}") from fault
        self._check_meaning(new)
        if request.judge_only:
            return Success(schema=told)
        state = self._load(old.mode.value)
        assert state.checkpoint is not None
        since = None if state.checkpoint.g is None else state.checkpoint.g * MILLISECOND
        try:
            done = self._new.rebuild(new, since)
        except Invalid as fault:
            if fault.rule != NOT_SETTLED:
                raise
            raise _NewDerivation(fault.message) from fault
        _check_cut(state.checkpoint, done.checkpoint, new.mode)
        rows = None
        if old.table is not None and new.table is not None:
            former = self._former(old, old.table, state, since)
            rows = self._differences(former, done.rows, old.table, new.table, schema)
        save(request.new_checkpoint_path, done.checkpoint, done.tables)
        interval = None
        if rows is not None and rows.num_rows:
            write_slice(rows, Path(request.new_data_path))
            start = request.next_offset
            interval = OffsetInterval(start=start, end=start + rows.num_rows - 1)
        g = state.checkpoint.g
        return Success(new_offset_interval=interval, new_watermark=None if g is None else from_millis(g), schema=told)

    def _former(self, old: Classification, table: TableShape, state: State, since: int | None) -> pa.Table | None:
        """Returns all rows of the old table. If it is of windows, they are rebuilt, since the state
        has dropped closed ones."""
        if self._old.windows:
            return self._old.rebuild(old, since).rows
        return None if since is None else self._old.table_of(table, state.tables, since)

    def _is_relabelled(self) -> bool:
        """Whether only the engine's version differs, not the query or its columns: state
        does not depend on the engine."""
        bare = [msgspec.structs.replace(each, version=None)
                for each in (self._request.old_transform, self._request.transform)]  # fmt: skip
        return bare[0] == bare[1] and self._old.knows == self._new.knows

    def _relabel(self) -> MigrateOutcome:
        request = self._request
        if not request.judge_only:
            state = self._load(None)
            assert state.checkpoint is not None
            checkpoint = msgspec.structs.replace(state.checkpoint, transform=identity_of(request.transform))
            save(request.new_checkpoint_path, checkpoint, state.tables)
        return Success(schema=request.output_schema)

    def _load(self, mode: str | None) -> State:
        request = self._request
        if not request.prev_checkpoint_path:
            raise Invalid("a handover needs the checkpoint of the query so far", rule="checkpoint")
        return load(request.prev_checkpoint_path, identity_of(request.old_transform), mode)

    def _analysed_old(self) -> tuple[Classification, pa.Schema]:
        try:
            return self._old.analyse()
        except Invalid as fault:
            raise _NewDerivation(f"this engine does not run the query so far: {fault}") from fault

    def _check_windows(self) -> None:
        if bool(self._old.windows) != bool(self._new.windows):
            raise _NewDerivation(
                f"late rows correct its windows {'so far' if self._old.windows else 'from now on'}, and a table that "
                "changes for ever is no such windows"
            )
        read = {each.dataset_id for each in self._request.query_inputs}
        for each in self._request.old_inputs if self._old.windows else ():
            if each.dataset_id not in read:
                raise _NewDerivation(
                    f"it reads {each.query_alias} no more, of which the windows were made that it would correct"
                )

    def _check_meaning(self, new: Classification) -> None:
        """Raises _NewDerivation if the output becomes a changelog or ceases to be one: consumers
        chose their reading by that."""
        now, said = self._new.changes(new), says_changelog(self._request.output_schema)
        if said is not None and now is not None and said != now:
            raise _NewDerivation(f"its rows can{'' if now else 'not'} be taken back, unlike those so far")

    def _differences(
        self, old: pa.Table | None, new: pa.Table | None, before: TableShape, after: TableShape, schema: pa.Schema
    ) -> pa.Table | None:
        """Returns the rows, with ops in the order of any tick, that change the old table
        into the new one; ``None``: no rows."""
        columns = pa.schema([field.with_nullable(True) for field in schema if field.name not in self._supplied])
        tables = [as_in_force(as_written(table, columns), columns) for table in (old, new) if table is not None]
        both = pa.concat_tables([columns.empty_table(), *tables])
        if not both.num_rows:
            return None
        count = 0 if old is None else old.num_rows
        codes = row_codes(both.select(after.keys))
        ticks = np.repeat([0, 1], [count, both.num_rows - count])
        rounds = rounds_of(codes, np.ones(len(codes), np.int64), np.array([0, 1], np.int64))
        at = np.searchsorted(rounds.places, codes * 2 + ticks)
        changed, ops = differences(both, at, rounds, after.keys, before.single and after.single)
        request = self._request
        return slice_of(changed, pa.array(ops), schema, request.vocab, request.system_time, request.next_offset)

    @property
    def _supplied(self) -> tuple[str, ...]:
        vocab = self._request.vocab
        return vocab.offset, vocab.operation_type, vocab.system_time


def _check_carries_over(old: Classification, new: Classification) -> None:
    if old.mode is not new.mode:
        raise _NewDerivation(
            f"its rows leave in another way: {old.mode.value} mode so far, {new.mode.value} mode from now on"
        )
    if old.table is not None and new.table is not None and set(old.table.keys) != set(new.table.keys):
        raise _NewDerivation(
            f"its table gets another primary key: {_list_keys(old.table.keys)} so far, now {_list_keys(new.table.keys)}"
        )


def _check_cut(old: StateCheckpoint, new: StateCheckpoint, mode: Mode) -> None:
    """Raises Invalid unless both checkpoints are of the same cut, else rows would be lost or come twice; raises
    _NewDerivation if rows of several inputs would change their order."""
    reached = {item.id: item for item in old.inputs}
    for item in new.inputs:
        known = reached.get(item.id)
        if (known.block if known is not None else None) != item.block:
            raise Invalid(
                f"input {item.alias}: the blocks given do not end where the checkpoint does",
                rule="checkpoint-order",
                hint="give every block up to the last one that was consumed",
            )
    if mode is not Mode.LOG or max(len(old.inputs), len(new.inputs)) == 1:
        return
    if {(item.id, item.w) for item in old.inputs} != {(item.id, item.w) for item in new.inputs}:
        raise _NewDerivation("rows of several inputs leave in the order of their watermarks, which others would change")


def _list_keys(keys: tuple[str, ...]) -> str:
    return ", ".join(keys) or "none"


def _as_transaction(request: MigrateRequest, *, old: bool) -> TransformRequest:
    inputs: tuple[TransformRequestInput, ...] = request.old_inputs if old else request.query_inputs
    blocks = {each.dataset_id: each.blocks or () for each in request.query_inputs}
    return TransformRequest(
        dataset_id=request.dataset_id,
        dataset_alias=str(request.dataset_id),
        system_time=request.system_time,
        vocab=request.vocab,
        transform=request.old_transform if old else request.transform,
        query_inputs=tuple(msgspec.structs.replace(each, blocks=blocks.get(each.dataset_id, ())) for each in inputs),
        next_offset=request.next_offset,
        new_checkpoint_path=request.new_checkpoint_path,
        new_data_path=request.new_data_path,
        output_schema=request.output_schema,
    )
