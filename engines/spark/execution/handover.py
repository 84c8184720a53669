"""Hands a dataset over from one query to the next: the new query continues as if it had always run.

Rows that the old query emitted stay. In final mode the new query emits from where the old one's output ends; in log
mode from the next block on; in table mode it writes the difference between both tables, at the tick that was reached.
The state is rebuilt from the blocks, never converted: it is a function of the cut. Spec:
docs/spec/engine-semantics.md#handover.

``Replay`` runs a query over all blocks up to a cut, a few at a time, without emitting rows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

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
from engines.spark.analysis.monotone import EARLIEST, MILLISECOND
from engines.spark.analysis.tables import TableShape
from engines.spark.catalyst.plans import HIDDEN_ROUND
from engines.spark.catalyst.types import as_written
from engines.spark.execution.tables import (
    ENTER,
    FIRST,
    LEAVE,
    ROWS,
    WAITING,
    WRITTEN,
    TableInput,
    accumulate,
    plain,
    reevaluate,
    state_columns,
)
from engines.spark.execution.transform import SharedCaches, Transaction, check_tick, identity_of
from engines.spark.output.slice import output_schema, schema_in_force, slice_of
from engines.spark.planning.lateness import Ruling, rule
from engines.spark.planning.slice_facts import InputWindows, Sessions
from engines.spark.planning.table_transaction import TableStep, plan_table, plan_windows, windows_of
from engines.spark.planning.transaction import InputFacts, TransactionStep, next_checkpoint, plan_step
from engines.spark.rows.changelog import row_codes
from engines.spark.rows.ticks import differences, rounds_of
from engines.spark.sql.diagnostics import answer_faults, refusal
from engines.spark.state.checkpoint import VERSION, StateCheckpoint
from engines.spark.state.files import Kept, State, Tables, load, pack, save, unpack

NOT_SETTLED: Final = "running-not-settled"
"""Rule of the fault that ``rebuild`` raises for a query whose running aggregates lack rows that may still come."""
CHUNK: Final = 64
"""Blocks of history that are read at a time to rebuild a table."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The state of a query as after an uninterrupted run up to a cut."""

    checkpoint: StateCheckpoint
    tables: Mapping[str, Kept]
    rows: pa.Table | None = None
    """In table mode all rows of the table, in the types that Spark gave; else ``None``."""


class Replay(Transaction):
    """Runs a query over all blocks up to a cut and emits nothing."""

    _ruling: Ruling
    """The rules on late rows; set by ``analysed``."""

    @property
    def knows(self) -> list[tuple[str, str, str]]:
        """Lists (dataset id, alias, columns as JSON) of the inputs."""
        ids = {input_.query_alias: str(input_.dataset_id) for input_ in self._request.query_inputs}
        return [(ids[alias], alias, schema.json()) for alias, schema in self._inputs.schemas.items()]

    def analyse(self) -> tuple[Classification, pa.Schema]:
        """Returns the query's classification and columns. Raises Invalid for a query that this engine does not run."""
        query = self._query
        found = self._caches.analyst.analyse(self._session, query.steps, self._inputs.views(), self._request.vocab)
        if found.classification is None or found.columns is None:
            raise refusal(found.diagnostics, len(query.steps))
        self._ruling = rule(query, found.classification, self._inputs.changelogs)
        check_tick(self._ruling.shape, query)
        return self._ruling.shape, found.columns

    @property
    def windows(self) -> Mapping[str, InputWindows]:
        """The windows by alias, if late rows correct windows; known after the query was analysed."""
        return windows_of(self._ruling, self._query.declarations)

    def changes(self, shape: Classification) -> bool | None:
        """Whether output rows can be retracted; ``None``: not known."""
        return shape.changelog(self._inputs.can_change(alias) for alias in self._inputs.schemas)

    def rebuild(self, shape: Classification, since: int | None) -> Rebuilt:
        """Rebuilds the state in which output before ``since`` (microseconds) has been emitted. Raises Invalid."""
        facts = self._inputs.facts(self._ruling, self._blocks(State()))
        if shape.table is not None:
            return self._rebuilt_table(shape, shape.table, facts, since)
        identity = identity_of(self._request.transform)
        if shape.mode is Mode.LOG:
            step = replace(plan_step(shape, facts, None), watermark=since)
            return Rebuilt(next_checkpoint(shape, identity, step, {}, None), {})
        start = StateCheckpoint(
            v=VERSION, transform=identity, mode=shape.mode.value, g=None if since is None else since // MILLISECOND,
            inputs=(), late={}, untimed={},
        )  # fmt: skip
        # With the earliest limit nothing is settled beyond what has been emitted already.
        step = plan_step(shape, facts, start, Sessions(self._inputs.vocabs).oldest, EARLIEST)
        late = self._late(step, self._query.declarations)
        versions = self._versions(step, State())
        checkpoint = next_checkpoint(shape, identity, replace(step, watermark=since), late, None)
        return Rebuilt(checkpoint, {**self._rows_to_keep(step, versions), **self._earlier_rows(shape, facts, since)})

    def _earlier_rows(
        self, shape: Classification, facts: tuple[InputFacts, ...], since: int | None
    ) -> Mapping[str, Kept]:
        """Returns the state of an OVER query over history before ``since`` (microseconds).

        Raises Invalid if more rows from before ``since`` may come.
        """
        if not shape.running or since is None:
            return {}
        step = plan_step(shape, facts, None, Sessions(self._inputs.vocabs).oldest, since)
        if step.watermark is None or step.watermark < since:
            raise Invalid(
                "rows from before the time up to which all is out may still come, and count in what it adds up",
                rule=NOT_SETTLED,
            )
        if step.idle:
            return {}
        self._show(self._ruling, step, self._versions(step, State()))
        return self._over_history(shape.running, step, {})[1]

    def _rebuilt_table(
        self, shape: Classification, table: TableShape, facts: tuple[InputFacts, ...], since: int | None
    ) -> Rebuilt:
        """Rebuilds a changing table; reads its history a few blocks at a time, and keeps a row per key or the rows that
        stand.

        Windows are rebuilt as of the tick that the inputs have reached, which need not be the watermark of the output.
        """
        windows, grid = self.windows, self._query.declarations.tick
        if windows:
            return self._rebuilt_windows(
                shape, table, plan_windows(shape, facts, windows, None, self._request.vocab, grid), since
            )
        whole, ticking, waiting = plan_table(facts, None, grid)
        state = self._state_at(table, ticking, since)
        ticks = [tick for tick in (*ticking.ticks, *waiting) if since is None or tick > since]
        reached = whole.watermark
        ahead = reached is not None and (since is None or reached > since)
        step = replace(whole, watermark=since, settled=reached if ahead else None)
        checkpoint = next_checkpoint(shape, identity_of(self._request.transform), step, {}, None, ticks)
        return Rebuilt(checkpoint, state, None if since is None else self.table_of(table, _round_trip(state), since))

    def _rebuilt_windows(
        self,
        shape: Classification,
        table: TableShape,
        planned: tuple[TransactionStep, TableStep, tuple[int, ...]],
        since: int | None,
    ) -> Rebuilt:
        """Rebuilds all windows, for the comparison, and keeps in the state those that something can still change."""
        whole, ticking, waiting = planned
        until = ticking.until
        state = self._state_at(table, replace(ticking, closing=None), until)
        rows = None if until is None else self.table_of(table, _round_trip(state), until)
        if ticking.closing is not None:
            closed = replace(_at(ticking, until), since=until, ticks=(), blocks=dict.fromkeys(ticking.blocks, ()))
            state = self._kept_up(table, closed, _round_trip(state))
        late = self._late(whole, self._query.declarations)
        identity = identity_of(self._request.transform)
        return Rebuilt(
            next_checkpoint(shape, identity, replace(whole, watermark=since), late, None, waiting), state, rows
        )

    def _state_at(self, table: TableShape, ticking: TableStep, until: int | None) -> dict[str, Kept]:
        nothing = replace(_at(ticking, until), blocks=dict.fromkeys(ticking.blocks, ()))
        state: dict[str, Kept] = {}
        for alias, blocks in ticking.blocks.items():
            for start in range(0, len(blocks), CHUNK):
                self._control.check()
                few = replace(nothing, blocks={**nothing.blocks, alias: blocks[start : start + CHUNK]})
                state = self._kept_up(table, few, _round_trip(state))
        return state

    def _kept_up(self, table: TableShape, step: TableStep, former: Tables) -> dict[str, Kept]:
        """Returns the state after a step, computed as a transaction computes it."""
        sources = self._sources(self.windows)
        if self._keeps_rows(table):
            first = table.first and not self._changes and not self.windows
            return reevaluate(table, step, sources, former, self._evaluate, first).state
        return accumulate(self._session, table, step, sources, former, self._evaluate, self._split).state

    def table_of(self, shape: TableShape, state: Tables, since: int) -> pa.Table | None:
        """Returns all rows of the table that ``state`` represents, at its latest tick."""
        sources = self._sources(self.windows)
        if self._keeps_rows(shape):
            alive = {alias: _alive(state, alias, source, since) for alias, source in sources.items()}
            return self._evaluate(alive).drop_columns([HIDDEN_ROUND])
        parts = [each for name, each in state.items() if name.startswith(f"{WRITTEN}/")]
        if not parts:
            return None
        written = pa.concat_tables(parts)
        if not shape.bare:
            return written
        empty = {alias: _in_round(plain(state_columns(source).empty_table())) for alias, source in sources.items()}
        return self._split(empty).whole(_in_round(written)).drop_columns([HIDDEN_ROUND])

    def _keeps_rows(self, table: TableShape) -> bool:
        return table.merge is None or self._changes

    @property
    def _changes(self) -> bool:
        return any(self._inputs.can_change(alias) is not False for alias in self._inputs.schemas)


def _alive(state: Tables, alias: str, source: TableInput, since: int) -> pa.Table:
    """Returns the rows of an input that count at the tick ``since``, as one round."""
    names = [
        name
        for name in state
        if name.startswith((f"{ROWS}:{alias}/", f"{FIRST}:{alias}/")) or name == f"{WAITING}:{alias}"
    ]
    rows = pa.concat_tables(
        [state_columns(source).empty_table(), *(as_in_force(state[name], state_columns(source)) for name in names)]
    )
    enter, leave = (np.asarray(rows.column(name)) for name in (ENTER, LEAVE))
    return _in_round(plain(rows.filter(pa.array((enter < since) & (leave >= since)))))


def _in_round(rows: pa.Table) -> pa.Table:
    return rows.append_column(HIDDEN_ROUND, pa.array(np.zeros(rows.num_rows, np.int64)))


def _round_trip(state: Mapping[str, Kept]) -> Tables:
    """Packs a state and unpacks it again, into the form in which a checkpoint gives it."""
    described, parts = pack(state)
    return unpack(described, memoryview(b"".join(parts)))


def _at(step: TableStep, since: int | None) -> TableStep:
    """Changes a step into one that takes all of the past as a single tick, ``since``."""
    return replace(step, since=None, until=since, ticks=() if since is None else (since,), grid=None)


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
        bare = [
            msgspec.structs.replace(each, version=None)
            for each in (self._request.old_transform, self._request.transform)
        ]
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
            raise Invalid("a query takeover needs the checkpoint of the old query", rule="checkpoint")
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
        read = {input_.dataset_id for input_ in self._request.query_inputs}
        for input_ in self._request.old_inputs if self._old.windows else ():
            if input_.dataset_id not in read:
                raise _NewDerivation(
                    f"it no longer reads {input_.query_alias}, from which the windows that it would "
                    "correct were computed"
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
    blocks = {input_.dataset_id: input_.blocks or () for input_ in request.query_inputs}
    return TransformRequest(
        dataset_id=request.dataset_id,
        dataset_alias=str(request.dataset_id),
        system_time=request.system_time,
        vocab=request.vocab,
        transform=request.old_transform if old else request.transform,
        query_inputs=tuple(
            msgspec.structs.replace(input_, blocks=blocks.get(input_.dataset_id, ())) for input_ in inputs
        ),
        next_offset=request.next_offset,
        new_checkpoint_path=request.new_checkpoint_path,
        new_data_path=request.new_data_path,
        output_schema=request.output_schema,
    )
