"""From one query to the next: the new one goes on where the old one stopped, as if it had always run.

What the old one has emitted stays. In final mode the new one emits from the old one's bound on; in log mode from the
next block on; in table mode the difference between both tables, at the tick that was reached. The state is rebuilt from
the blocks, never translated: it is a function of the cut. Engine semantics, section 12.
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

from chain.data.changelog import says_changelog
from chain.data.evolution import as_in_force, enlarged
from chain.data.parquet import write_slice
from chain.errors import Invalid
from chain.instant import from_millis
from chain.model.events import OffsetInterval
from engines.contract import (
    DerivationNeeded,
    MigrateOutcome,
    MigrateRequest,
    Success,
    TransformInput,
    TransformRequest,
)
from engines.spark.analysis.classify import Classification, Mode
from engines.spark.analysis.monotone import EARLIEST, MILLISECOND
from engines.spark.analysis.tables import TableShape
from engines.spark.arranged import Kept, Tables, pack, unpack
from engines.spark.changes import row_codes
from engines.spark.checkpoint import VERSION, Checkpoint
from engines.spark.incremental import InputFacts, next_checkpoint, plan_step
from engines.spark.lateness import Ruling, rule
from engines.spark.output import output_schema, schema_in_force, slice_of
from engines.spark.plans import HIDDEN_ROUND
from engines.spark.queries import answered, as_text
from engines.spark.rounds import differences, rounds_of
from engines.spark.sessions import Sessions
from engines.spark.spark_types import as_written
from engines.spark.state import State, load, save
from engines.spark.tables import ENTER, LEAVE, WAITING, WRITTEN, Source, accumulate, dated, evaluate_anew
from engines.spark.ticking import TableStep, plan_table
from engines.spark.transform import Control, Transaction, Workbench, check_tick, identity_of

CHUNK: Final = 64
"""Blocks of history that a table is rebuilt from at a time."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a query would have, had it always run up to a cut."""

    checkpoint: Checkpoint
    tables: Mapping[str, Kept]
    rows: pa.Table | None = None
    """In table mode all of the table, in the types that Spark gave."""


class _NewDerivation(Exception):
    """Why the new query cannot go on where the old one stopped."""


def run_migration(session: SparkSession, request: MigrateRequest, control: Control, bench: Workbench) -> MigrateOutcome:
    """``session`` is this request's alone. Raises Environment, and what Spark raises when the fault is the engine's."""

    def run() -> MigrateOutcome:
        try:
            with tempfile.TemporaryDirectory(prefix="handover-") as folder:
                return _Handover(session, request, control, bench, Path(folder)).run()
        except _NewDerivation as reason:
            return DerivationNeeded(message=str(reason))

    return answered(run)


class _Handover:
    def __init__(
        self, session: SparkSession, request: MigrateRequest, control: Control, bench: Workbench, folder: Path
    ) -> None:
        old = _as_transaction(request, old=True)
        self._request = request
        self._control = control
        # Both may call an input by the same name and mean other columns.
        self._old = _Past(session.newSession(), old, control, bench, folder)
        self._new = _Past(session, _as_transaction(request, old=False), control, bench, folder)

    def run(self) -> MigrateOutcome:
        request = self._request
        if self._is_relabelled():
            return self._relabel()
        old, _ = self._analysed_old()
        new, columns = self._new.analysed()
        _check_carries_over(old, new)
        try:
            told = enlarged(request.output_schema, output_schema(columns, request.vocab))
            schema = schema_in_force(columns, request.vocab, told)
        except Invalid as fault:
            raise _NewDerivation(f"its columns differ: {fault}") from fault
        self._check_meaning(new)
        if request.judge_only:
            return Success(schema=told)
        state = self._loaded(old.mode.value)
        assert state.checkpoint is not None
        since = None if state.checkpoint.g is None else state.checkpoint.g * MILLISECOND
        done = self._new.rebuild(new, since)
        _check_cut(state.checkpoint, done.checkpoint, new.mode)
        rows = None
        if old.table is not None and new.table is not None and since is not None:
            former = self._old.table_of(old.table, state.tables, since)
            rows = self._differences(former, done.rows, old.table, new.table, schema)
        save(request.new_checkpoint_path, done.checkpoint, done.tables)
        interval = None
        if rows is not None and rows.num_rows:
            write_slice(rows, Path(request.new_data_path))
            start = request.next_offset
            interval = OffsetInterval(start=start, end=start + rows.num_rows - 1)
        g = state.checkpoint.g
        return Success(
            new_offset_interval=interval,
            new_watermark=None if g is None else from_millis(g),
            schema=told,
        )

    def _is_relabelled(self) -> bool:
        """The same query over the same columns, for another engine: state is neutral to engines."""
        bare = [msgspec.structs.replace(each, version=None)
                for each in (self._request.old_transform, self._request.transform)]  # fmt: skip
        return bare[0] == bare[1] and self._old.knows == self._new.knows

    def _relabel(self) -> MigrateOutcome:
        request = self._request
        if not request.judge_only:
            state = self._loaded(None)
            assert state.checkpoint is not None
            checkpoint = msgspec.structs.replace(state.checkpoint, transform=identity_of(request.transform))
            save(request.new_checkpoint_path, checkpoint, state.tables)
        return Success(schema=request.output_schema)

    def _loaded(self, mode: str | None) -> State:
        request = self._request
        if not request.prev_checkpoint_path:
            raise Invalid("a handover needs the checkpoint of the query so far", rule="checkpoint")
        return load(request.prev_checkpoint_path, identity_of(request.old_transform), mode)

    def _analysed_old(self) -> tuple[Classification, pa.Schema]:
        try:
            return self._old.analysed()
        except Invalid as fault:
            raise _NewDerivation(f"this engine does not run the query so far: {fault}") from fault

    def _check_meaning(self, new: Classification) -> None:
        """Consumers chose how they read the rows by whether they can be taken back."""
        now, said = self._new.changes(new), says_changelog(self._request.output_schema)
        if said is not None and now is not None and said != now:
            raise _NewDerivation(f"its rows can{'' if now else 'not'} be taken back, unlike those so far")

    def _differences(
        self, old: pa.Table | None, new: pa.Table | None, before: TableShape, after: TableShape, schema: pa.Schema
    ) -> pa.Table | None:
        """What takes the old table to the new one, as ops in the order of any tick."""
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
        return vocab.offset_column, vocab.operation_type_column, vocab.system_time_column


class _Past(Transaction):
    """A query over all blocks up to a cut, of which nothing is to be emitted."""

    _ruling: Ruling
    """Known once the query was analysed."""

    @property
    def knows(self) -> list[tuple[str, str, str]]:
        """Inputs with their columns."""
        ids = {each.query_alias: str(each.dataset_id) for each in self._request.query_inputs}
        return [(ids[alias], alias, schema.json()) for alias, schema in self._inputs.schemas.items()]

    def analysed(self) -> tuple[Classification, pa.Schema]:
        """Raises Invalid for a query that this engine does not run."""
        query = self._query
        found = self._bench.analyst.analyse(self._session, query.steps, self._inputs.views(), self._request.vocab)
        if found.classification is None or found.columns is None:
            raise Invalid(as_text(found.diagnostics, len(query.steps)), rule="query")
        self._ruling = rule(query, found.classification, self._inputs.changelogs)
        if self._ruling.windows is not None:
            raise _NewDerivation("late rows correct its windows, and how they stand cannot be handed over yet")
        check_tick(found.classification, query)
        return found.classification, found.columns

    def changes(self, shape: Classification) -> bool | None:
        """Whether output rows can be taken back; ``None``: not known."""
        return shape.changelog(self._inputs.can_change(alias) for alias in self._inputs.schemas)

    def rebuild(self, shape: Classification, since: int | None) -> Rebuilt:
        """If output before ``since`` (microseconds) is out."""
        facts = self._inputs.facts(self._ruling, self._blocks(State()))
        if shape.table is not None:
            return self._rebuilt_table(shape, shape.table, facts, since)
        identity = identity_of(self._request.transform)
        if shape.mode is Mode.LOG:
            step = replace(plan_step(shape, facts, None), watermark=since)
            return Rebuilt(next_checkpoint(shape, identity, step, {}, None), {})
        start = Checkpoint(
            v=VERSION, transform=identity, mode=shape.mode.value, g=None if since is None else since // MILLISECOND,
            inputs=(), late={}, untimed={},
        )  # fmt: skip
        # With the earliest limit nothing is settled but what is out already.
        step = plan_step(shape, facts, start, Sessions(self._inputs.vocabs).oldest, EARLIEST)
        late = self._late(step, self._query.declarations)
        versions = self._versions(step, State())
        checkpoint = next_checkpoint(shape, identity, replace(step, watermark=since), late, None)
        return Rebuilt(checkpoint, self._kept(step, versions))

    def _rebuilt_table(
        self, shape: Classification, table: TableShape, facts: tuple[InputFacts, ...], since: int | None
    ) -> Rebuilt:
        """History is read a few blocks at a time: what is kept is a row for each key, or the rows that stand."""
        whole, ticking, waiting = plan_table(facts, None, self._query.declarations.tick)
        nothing = replace(_at(ticking, since), blocks=dict.fromkeys(ticking.blocks, ()))
        sources = self._sources()
        state: dict[str, Kept] = {}
        for alias, blocks in ticking.blocks.items():
            for start in range(0, len(blocks), CHUNK):
                self._control.check()
                few = replace(nothing, blocks={**nothing.blocks, alias: blocks[start : start + CHUNK]})
                former = _stored(state)
                if self._is_changelog:
                    state = evaluate_anew(table, few, sources, former, self._evaluate).state
                else:
                    state = accumulate(self._session, table, few, sources, former, self._evaluate, self._split).state
        ticks = [tick for tick in (*ticking.ticks, *waiting) if since is None or tick > since]
        reached = whole.watermark
        ahead = reached is not None and (since is None or reached > since)
        step = replace(whole, watermark=since, settled=reached if ahead else None)
        checkpoint = next_checkpoint(shape, identity_of(self._request.transform), step, {}, None, ticks)
        return Rebuilt(checkpoint, state, None if since is None else self.table_of(table, _stored(state), since))

    def table_of(self, shape: TableShape, state: Tables, since: int) -> pa.Table | None:
        """All rows of the table that ``state`` stands for, at the tick that it has reached."""
        if self._is_changelog:
            alive = {alias: _alive(state, alias, source, since) for alias, source in self._sources().items()}
            return self._evaluate(alive).drop_columns([HIDDEN_ROUND])
        parts = [each for name, each in state.items() if name.startswith(f"{WRITTEN}/")]
        if not parts:
            return None
        written = pa.concat_tables(parts)
        if not shape.bare:
            return written
        empty = {
            alias: _in_round(dated(source).empty_table().drop_columns([ENTER, LEAVE]))
            for alias, source in self._sources().items()
        }
        return self._split(empty).whole(_in_round(written)).drop_columns([HIDDEN_ROUND])

    @property
    def _is_changelog(self) -> bool:
        return any(self._inputs.can_change(alias) is not False for alias in self._inputs.schemas)


def _alive(state: Tables, alias: str, source: Source, since: int) -> pa.Table:
    """Rows of an input that count at the tick ``since``, for one round."""
    names = [name for name in state if name.startswith(f"rows:{alias}/") or name == f"{WAITING}:{alias}"]
    rows = pa.concat_tables([dated(source).empty_table(), *(as_in_force(state[name], dated(source)) for name in names)])
    enter, leave = (np.asarray(rows.column(name)) for name in (ENTER, LEAVE))
    return _in_round(rows.filter(pa.array((enter < since) & (leave >= since))).drop_columns([ENTER, LEAVE]))


def _in_round(rows: pa.Table) -> pa.Table:
    return rows.append_column(HIDDEN_ROUND, pa.array(np.zeros(rows.num_rows, np.int64)))


def _stored(state: Mapping[str, Kept]) -> Tables:
    """As a checkpoint would give it back."""
    described, parts = pack(state)
    return unpack(described, memoryview(b"".join(parts)))


def _at(step: TableStep, since: int | None) -> TableStep:
    """All of the past as one tick."""
    return replace(step, since=None, until=since, ticks=() if since is None else (since,), grid=None)


def _check_carries_over(old: Classification, new: Classification) -> None:
    if old.mode is not new.mode:
        raise _NewDerivation(
            f"its rows leave in another way: {old.mode.value} mode so far, {new.mode.value} mode from now on"
        )
    if old.table is not None and new.table is not None and set(old.table.keys) != set(new.table.keys):
        raise _NewDerivation(
            f"its table gets another primary key: {_listed(old.table.keys)} so far, now {_listed(new.table.keys)}"
        )


def _check_cut(old: Checkpoint, new: Checkpoint, mode: Mode) -> None:
    """Both must stand for the same cut, else rows would be lost or come twice."""
    reached = {item.id: item for item in old.inputs}
    for item in new.inputs:
        known = reached.get(item.id)
        if (known.block if known is not None else None) != item.block:
            raise Invalid(
                f"input {item.alias}: the blocks given do not end where the checkpoint does", rule="checkpoint-order",
                hint="give every block up to the last one that was consumed",
            )  # fmt: skip
    if mode is not Mode.LOG or max(len(old.inputs), len(new.inputs)) == 1:
        return
    if {(item.id, item.w) for item in old.inputs} != {(item.id, item.w) for item in new.inputs}:
        raise _NewDerivation("rows of several inputs leave in the order of their watermarks, which others would change")


def _listed(keys: tuple[str, ...]) -> str:
    return ", ".join(keys) or "none"


def _as_transaction(request: MigrateRequest, *, old: bool) -> TransformRequest:
    inputs: tuple[TransformInput, ...] = request.old_inputs if old else request.query_inputs
    return TransformRequest(
        dataset_id=request.dataset_id,
        dataset_alias=str(request.dataset_id),
        system_time=request.system_time,
        vocab=request.vocab,
        transform=request.old_transform if old else request.transform,
        query_inputs=tuple(msgspec.structs.replace(each, blocks=each.blocks or ()) for each in inputs),
        next_offset=request.next_offset,
        new_checkpoint_path=request.new_checkpoint_path,
        new_data_path=request.new_data_path,
        output_schema=request.output_schema,
    )
