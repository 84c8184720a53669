"""Caches the current rows of datasets (folds of their changelogs), so that a query folds only rows added since.

A fold is made after a query that had much to fold, by a process that reads this dataset alone: hostile rows in one
dataset cannot change the fold of another. No query waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
import trio

from chain.errors import Fault
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.store.base import ChainReader
from engines.query.reader import QueryProcess, QueryProcesses
from odfd.queries.folds import FoldStore
from odfd.queries.inputs import QueryInputs
from odfd.queries.planning import PlannedView, QueryPlan
from odfd.store.directory import StateDirectory

LEAST_ROWS: Final = 100_000
"""Rows since the last fold that are worth a new one; fewer are folded as fast as a fold is loaded."""
_SHARE: Final = 4
"""A fold is made again once a quarter of its size has been added."""
Failed = Callable[[DatasetId, Fault], None]


class FoldCache:
    """Stores the folds of one node. ``failed`` is called for a fold that could not be made; queries work without it."""

    def __init__(
        self,
        home: StateDirectory,
        store: FoldStore,
        processes: QueryProcesses,
        inputs: QueryInputs,
        failed: Failed,
        least: int = LEAST_ROWS,
    ) -> None:
        self._home, self._store, self._processes, self._inputs = home, store, processes, inputs
        self._failed, self._least = failed, least
        self._making: set[DatasetId] = set()
        self._made = trio.Event()
        self._alone = trio.CapacityLimiter(1)

    def shorten(self, plan: QueryPlan) -> QueryPlan:
        """Returns an equivalent plan that reads folds instead of slices where possible. In a worker thread."""
        return msgspec.structs.replace(plan, views=[self._shorten(view) for view in plan.views])

    def after(self, plan: QueryPlan) -> None:
        """Decides after a query whether to store a fold, and starts it."""
        for planned in (shard for view in plan.views for shard in view.shards or (view,)):
            if _is_folded(planned) and planned.dataset not in self._making and self._is_due(planned):
                self._making.add(planned.dataset)
                self._processes.later(partial(self._make, planned))

    def _shorten(self, planned: PlannedView) -> PlannedView:
        """Of shards, each has a fold of its own, at the last block of its chain."""
        if planned.shards and planned.view.fold != "log":
            shards = [self._shorten(shard) for shard in planned.shards]
            slices = [slice_ for shard in shards for slice_ in shard.slices]
            return msgspec.structs.replace(planned, shards=shards, slices=slices)
        if not (_is_folded(planned) and self._store.most):
            return planned
        chain = self._home.chains.chain(planned.dataset)
        fold = self._store.find(planned.dataset, planned.view, planned.cut.size, partial(_is_in, chain))
        if fold is None:
            return planned
        rest = [slice_ for slice_ in planned.slices if slice_.sequence >= fold.file.size]
        return msgspec.structs.replace(planned, slices=rest, fold=fold)

    def _is_due(self, planned: PlannedView) -> bool:
        rows = sum(
            slice_.slice.offset_interval.end - slice_.slice.offset_interval.start + 1 for slice_ in planned.slices
        )
        size = sum(slice_.slice.size for slice_ in planned.slices)
        held = 0 if planned.fold is None else planned.fold.file.rows
        return rows >= max(self._least, held // _SHARE) and size <= self._store.most

    async def wait_settled(self) -> None:
        """Waits until no fold is being made."""
        while self._making:
            await self._made.wait()

    async def _make(self, planned: PlannedView) -> None:
        try:
            async with self._alone, self._processes.one() as process:
                with trio.move_on_after(self._processes.limits.seconds), self._inputs.hold((planned,)):
                    await self._save(planned, process)
        except Fault as fault:
            self._failed(planned.dataset, fault)
        finally:
            self._making.discard(planned.dataset)
            self._made.set()
            self._made = trio.Event()

    async def _save(self, planned: PlannedView, process: QueryProcess) -> None:
        await process.prepare("SELECT 1")
        (view,) = await self._inputs.show((planned,), process)
        path, seen = process.reserve("fold")
        rows = (await process.save_fold(view, seen, self._store.most)).rows
        cut = (planned.cut.size, planned.cut.block)
        await trio.to_thread.run_sync(self._store.keep, planned.dataset, path, planned.view, cut, rows)


def _is_folded(planned: PlannedView) -> bool:
    return planned.view.fold != "log" and planned.view.until is None


def _is_in(chain: ChainReader, number: int, block: str) -> bool:
    head = chain.head()
    return head is not None and number < head.size and chain.block_at(number).hash == Multihash.parse(block)
