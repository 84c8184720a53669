"""Gives the process of a query the slices that it reads: protects, hashes and links them. No process sees others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
import trio

from chain.errors import Fault
from chain.ids import DatasetId
from chain.multihash import Multihash
from engines.query.reader import QueryProcess
from engines.query.requests import UNREADABLE
from engines.query.views import SliceView
from odfd.queries.planning import PlannedView
from odfd.store.directory import StateDirectory


class QueryInputs:
    """Gives slices to the processes of one node's queries."""

    def __init__(self, home: StateDirectory) -> None:
        self._home = home

    @contextmanager
    def hold(self, views: Sequence[PlannedView]) -> Iterator[None]:
        """Protects the files of views from garbage collection."""
        with self._home.objects.holds.hold(_objects(views)):
            yield

    async def show(self, views: Sequence[PlannedView], process: QueryProcess) -> tuple[SliceView, ...]:
        """Checks and links the files of views. Returns the views with paths for the process. Raises
        ObjectDamaged, SliceMissing, Environment."""
        files = await trio.to_thread.run_sync(lambda: self.sound(views))
        chains = [each for planned in views for each in (planned, *planned.shards)]
        files |= {_name(planned): planned.fold.path for planned in chains if planned.fold is not None}
        files |= {planned.table.path.name: planned.table.path for planned in views if planned.table is not None}
        await trio.to_thread.run_sync(lambda: process.link(files))
        return tuple(_place(planned, process) for planned in views)

    def paths(self, planned: PlannedView) -> tuple[str, ...]:
        """Returns the paths of the slices of a view that is held and shown."""
        return tuple(str(self._home.objects.path(slice_.slice.physical_hash)) for slice_ in planned.slices)

    def sound(self, views: Sequence[PlannedView], *, again: bool = False) -> dict[str, Path]:
        """Returns the files of views, whose bytes match their hashes. Raises as ``SliceFiles.path``.

        ``again``: hashes also what was hashed lately.
        """
        if again:
            for name, dataset, block in _list_slices(views):
                self._home.slices.check_again(name, dataset, block)
        return {str(name): self._home.slices.path(name, dataset, block) for name, dataset, block in _list_slices(views)}

    @asynccontextmanager
    async def told_apart(self, views: Sequence[PlannedView]) -> AsyncIterator[None]:
        """Turns the fault of a process that cannot read a slice into that of the slice which is damaged by now.

        The disk may lose bytes after they were hashed, and without a change of the file's time.
        """
        try:
            yield
        except Fault as fault:
            if fault.rule != UNREADABLE:
                raise
            await trio.to_thread.run_sync(self._check_again, fault, list(_list_slices(views)))
            raise

    def _check_again(self, fault: Fault, slices: Sequence[tuple[Multihash, DatasetId, int]]) -> None:
        """Hashes the slice that a fault names, or all. Raises as ``SliceFiles.path``."""
        for name, dataset, block in [slice_ for slice_ in slices if str(slice_[0]) in fault.message] or slices:
            self._home.slices.check_again(name, dataset, block)


def _list_slices(views: Sequence[PlannedView]) -> Iterator[tuple[Multihash, DatasetId, int]]:
    """Yields the slices of views, each with its dataset and the number of its block."""
    for planned in views:
        for shard in planned.shards or (planned,):
            yield from ((slice_.slice.physical_hash, shard.dataset, slice_.sequence) for slice_ in shard.slices)


def _objects(views: Sequence[PlannedView]) -> Mapping[Multihash, PlannedView]:
    """Returns each object once, with a view that reads it."""
    return {slice_.slice.physical_hash: planned for planned in views for slice_ in planned.slices}


def _name(planned: PlannedView) -> str:
    assert planned.fold is not None
    return f"fold {planned.fold.file.content}"


def _place(planned: PlannedView, process: QueryProcess) -> SliceView:
    if planned.shards and planned.view.fold != "log":
        parts = (_place(shard, process) for shard in planned.shards)
        named = (
            msgspec.structs.replace(each, name=f"{planned.view.name} shard {place}") for place, each in enumerate(parts)
        )
        return msgspec.structs.replace(planned.view, parts=tuple(named))
    files = tuple(process.path_inside(str(slice_.slice.physical_hash)) for slice_ in planned.slices)
    if planned.table is not None:
        files = (process.path_inside(planned.table.path.name),)
    earlier = None if planned.fold is None else process.path_inside(_name(planned))
    return msgspec.structs.replace(planned.view, files=files, earlier=earlier)
