"""Answers queries: plans which slices are read, holds them, and passes on what a confined process makes of them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Final

import msgspec
import trio

from chain.errors import Invalid
from chain.multihash import Multihash
from chain.store.files import DAMAGED, ObjectDamaged
from engines.errors import LimitExceeded
from engines.query.frames import COLUMNS, END, HEAD, PLAIN, ROWS, SCHEMA, frame
from engines.query.reader import QueryProcess, QueryProcesses
from engines.query.requests import ALL_ROWS, Execute, RowsWanted
from engines.query.views import SliceView
from odfd.control import wire
from odfd.queries.planning import OWNER, Asker, PlannedView, Planner, QueryPlan
from odfd.queries.slices import HashedFiles
from odfd.state.damage import DamageRegistry
from odfd.state.directory import StateDirectory
from odfd.verify.damage import Spot

MAX_SQL: Final = 1 << 20
"""Characters of a statement."""
_PASSED: Final = (SCHEMA, ROWS, COLUMNS, PLAIN, END)
SendFrame = Callable[[bytes], Awaitable[None]]
"""Takes a whole frame; waits while whoever asked does not read."""


class QueryService:
    """The API service for SQL over datasets."""

    def __init__(
        self, home: StateDirectory, planner: Planner, processes: QueryProcesses, damage: DamageRegistry
    ) -> None:
        self._home, self._planner, self._processes, self._damage = home, planner, processes, damage
        self._files = HashedFiles()

    async def answer(
        self, request: wire.QueryRequest, send: SendFrame, asker: Asker = OWNER, rows: RowsWanted = ALL_ROWS
    ) -> None:
        """Frames (``engines.query.frames``): what is read, rows as they are computed, the end.

        Raises Invalid for what is no query, NotFound for a dataset that is not here, Refused for what is not relied on
        or needs too much, Environment for a slice that is damaged. Cancelled, it leaves nothing behind.
        """
        if len(request.sql) > MAX_SQL:
            raise Invalid(
                f"the query has {len(request.sql):,} characters", rule="query-size", hint=f"at most {MAX_SQL:,}"
            )
        seconds = self._processes.limits.seconds
        async with self._processes.one() as process:
            with trio.move_on_after(seconds):
                await self._answer(process, (request, asker, rows), send)
                return
        raise LimitExceeded(
            f"the query took more than {seconds:g} s", rule="query-deadline", hint="query.seconds sets the limit"
        )

    async def _answer(
        self, process: QueryProcess, asked: tuple[wire.QueryRequest, Asker, RowsWanted], send: SendFrame
    ) -> None:
        request, asker, rows = asked
        named = await process.prepare(request.sql)
        plan = await trio.to_thread.run_sync(lambda: self._planner.plan(named.tables, request, asker))
        with self._held(plan):
            files = await trio.to_thread.run_sync(lambda: self._sound(plan))
            await trio.to_thread.run_sync(lambda: process.link({str(name): path for name, path in files.items()}))
            views = [_placed(planned, process) for planned in plan.views]
            wanted = Execute(
                views=tuple(views),
                places=tuple(plan.places),
                parameters=request.parameters,
                explain=request.explain,
                rows=msgspec.structs.replace(rows, plain=request.plain),
            )
            await self._pass_on(process.execute(wanted), plan, send)

    async def _pass_on(
        self, frames: AsyncGenerator[tuple[bytes, bytes], None], plan: QueryPlan, send: SendFrame
    ) -> None:
        """What is read is told with the first rows: until then a fault is the whole answer."""
        head: bytes | None = frame(HEAD, msgspec.json.encode(plan.head))
        async with aclosing(frames) as each:
            async for kind, content in each:
                if kind not in _PASSED:
                    continue
                if head is not None:
                    await send(head)
                    head = None
                await send(frame(kind, content))
                if kind == END:
                    return

    @contextlib.contextmanager
    def _held(self, plan: QueryPlan) -> Iterator[None]:
        """No collection takes what the query reads."""
        with self._home.objects.holds.hold(plan.objects()):
            yield

    def _sound(self, plan: QueryPlan) -> Mapping[Multihash, Path]:
        """Files whose bytes are what their names say. Raises ObjectDamaged, NotFound, and notes the damage."""
        found: dict[Multihash, Path] = {}
        for name, planned in plan.objects().items():
            try:
                found[name] = self._files.path(self._home.objects, name)
            except ObjectDamaged as fault:
                number = next(each.sequence for each in planned.slices if each.slice.physical_hash == name)
                self._damage.found(planned.dataset, [Spot(number, DAMAGED, str(fault))])
                raise
        return found


def _placed(planned: PlannedView, process: QueryProcess) -> SliceView:
    files = tuple(process.seen(str(each.slice.physical_hash)) for each in planned.slices)
    return msgspec.structs.replace(planned.view, files=files)
