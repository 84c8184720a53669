"""Alters the columns of a root of this node, or says what an alteration would change."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import trio

from chain.codec.manifest import render_manifest
from chain.errors import Conflict, NotFound, Refused
from chain.instant import Instant
from chain.model.events import SetDataSchema
from chain.state import ChainState
from chain.store.base import Head
from odfd.api.views.derivative_index import DerivativeIndex
from odfd.api.views.views import columns_view
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.control.board import task_ref
from odfd.datasets import captures
from odfd.datasets.catalog import DatasetEntry
from odfd.datasets.commit import CommitExtras, block_time
from odfd.ingest.alteration import Alteration, Altered, plan_alteration
from odfd.ingest.change_kind import altered_change_kind
from odfd.ingest.driver import ATTEMPTS, IngestDependencies, load
from odfd.runtime.subjects import about
from odfd.runtime.tasks import Report
from odfd.state.directory import StateDirectory


class SchemaAlterations:
    """Alters schemas for the ingest service, each request as a task."""

    def __init__(
        self, home: StateDirectory, deps: IngestDependencies, context: Context, derivatives: DerivativeIndex
    ) -> None:
        self._home = home
        self._deps = deps
        self._board = context.board
        self._events = context.events
        self._derivatives = derivatives

    async def submit(self, ref: str, request: wire.AlterSchemaRequest) -> wire.TaskRef:
        """Alters the columns of a root. Result: AlterSchemaResult."""
        entry = await trio.to_thread.run_sync(self._home.resolve, ref)

        async def work(report: Report) -> wire.AlterSchemaResult:
            async with self._home.turns.of(entry.id, report.waits_to_write(entry.name)):
                return await self.alter(entry, request)

        return task_ref(self._board.submit("alter", entry.name, work, about(entry.id)))

    async def alter(self, entry: DatasetEntry, request: wire.AlterSchemaRequest) -> wire.AlterSchemaResult:
        """Appends the change, or only plans it. No other writer may write the dataset meanwhile.

        Raises Refused if this node does not own the dataset, and whatever ``plan_alteration`` and a commit raise.
        """
        if not self._home.keys.has_dataset_key(entry.id):
            raise Refused(f"{entry.name} is not this node's own", rule="schema-owner", hint="ask its owner to alter it")
        wanted = Alteration(
            action=request.action,
            columns=request.columns,
            query=request.query,
            computed=request.computed,
            derived=request.derived,
        )
        if request.derived is not None:
            await trio.to_thread.run_sync(self._check_free, request.derived)
        for attempt in range(ATTEMPTS):
            state, upper, time = await trio.to_thread.run_sync(self._look, entry)
            altered = plan_alteration(state, wanted)
            planned = await trio.to_thread.run_sync(self._view, entry, state, request, altered)
            if request.dry_run or altered.derived is not None:
                return planned
            assert state.head is not None
            expected = Head(state.head, state.sequence_number)
            try:
                head = await self._deps.committer.commit(
                    entry.id, expected, altered.events, (), time, None, CommitExtras(upper=upper)
                )
            except Conflict:
                if attempt + 1 == ATTEMPTS:
                    raise
                continue
            added = ", ".join(column.name for column in planned.added)
            self._events.emit(
                "dataset.appended",
                entry.name,
                f"columns: {added}",
                about=about(entry.id),
                blocks=len(altered.events),
                records=0,
            )
            return msgspec.structs.replace(planned, outcome="altered", head=str(head.hash), blocks=len(altered.events))
        raise AssertionError("the last attempt returns or raises")

    def _check_free(self, name: str) -> None:
        """Raises Refused if there is a dataset with the name of the derived one to be declared."""
        with suppress(NotFound):
            there = self._home.resolve(name)
            raise Refused(f"there is a dataset {there.name} already", rule="schema-as", hint="choose another name")

    def _look(self, entry: DatasetEntry) -> tuple[ChainState, int, Instant]:
        """Returns the state, the frontier, and the time of the next block. Raises as ``load``."""
        upper, state = self._deps.store.upper(entry.id), load(self._deps, entry.id)
        return state, upper, block_time(state, self._deps.now(), upper)

    def _view(
        self, entry: DatasetEntry, state: ChainState, request: wire.AlterSchemaRequest, altered: Altered
    ) -> wire.AlterSchemaResult:
        assert state.schema is not None
        columns = columns_view(SetDataSchema(schema=altered.schema))
        with self._home.database.read() as connection:
            kept = captures.count(connection, entry.id)
        course = altered_change_kind(entry.name, state, altered, kept)
        before = {column.name for column in columns_view(state.schema)}
        return wire.AlterSchemaResult(
            ref=entry.name,
            action=request.action,
            outcome="planned",
            events=tuple(type(event).__name__ for event in altered.events),
            columns=columns,
            added=tuple(column for column in columns if column.name not in before) if altered.events else (),
            records=state.next_offset,
            derivations=tuple(each.name for each in self._derivatives.of(entry.id)),
            remarks=altered.remarks,
            course=course.word,
            course_text=course.text,
            manifest=None if altered.derived is None else render_manifest(altered.derived),
        )
