"""Runs a query over all blocks up to a cut without emitting rows, to compute the state of an uninterrupted run.

State is a function of the cut, so it can be made from the blocks, a few at a time. Spec:
docs/spec/engine-semantics.md#state, #handover.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from chain.data.evolution import as_in_force
from chain.errors import Invalid
from engines.spark.analysis.classify import Classification, Mode
from engines.spark.analysis.monotone import EARLIEST, MILLISECOND
from engines.spark.analysis.tables import TableShape
from engines.spark.catalyst.plans import HIDDEN_ROUND
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
from engines.spark.execution.transform import Transaction, check_tick, identity_of
from engines.spark.planning.lateness import Ruling, rule
from engines.spark.planning.slice_facts import InputWindows, Sessions
from engines.spark.planning.table_transaction import TableStep, plan_table, plan_windows, windows_of
from engines.spark.planning.transaction import InputFacts, TransactionStep, next_checkpoint, plan_step
from engines.spark.sql.diagnostics import refusal
from engines.spark.state.checkpoint import VERSION, StateCheckpoint
from engines.spark.state.files import Kept, State, Tables, pack, unpack

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
        ids = {each.query_alias: str(each.dataset_id) for each in self._request.query_inputs}
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
        self, shape: Classification, table: TableShape, planned: tuple[TransactionStep, TableStep, tuple[int, ...]],
        since: int | None,
    ) -> Rebuilt:  # fmt: skip
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
