"""Gives the process of a query the slices that it reads: protects, hashes and links them. No process sees others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import trio

from chain.multihash import Multihash
from chain.store.files import DAMAGED, ObjectDamaged
from engines.query.reader import QueryProcess
from engines.query.views import SliceView
from odfd.datasets.reading import name_damaged
from odfd.queries.planning import PlannedView
from odfd.queries.slices import HashedFiles
from odfd.state.damage import DamageRegistry
from odfd.state.directory import StateDirectory
from odfd.verify.damage import DamagedBlock


class QueryInputs:
    """Gives slices to the processes of one node's queries."""

    def __init__(self, home: StateDirectory, damage: DamageRegistry) -> None:
        self._home, self._damage = home, damage
        self._files = HashedFiles()

    @contextmanager
    def held(self, views: Sequence[PlannedView]) -> Iterator[None]:
        """Protects the files of views from garbage collection."""
        with self._home.objects.holds.hold(_objects(views)):
            yield

    async def show(self, views: Sequence[PlannedView], process: QueryProcess) -> tuple[SliceView, ...]:
        """Checks and links the files of views. Returns the views with paths for the process. Raises
        ObjectDamaged, NotFound, Environment."""
        files = await trio.to_thread.run_sync(lambda: self.sound(views))
        chains = [each for planned in views for each in (planned, *planned.shards)]
        files |= {_name(planned): planned.fold.path for planned in chains if planned.fold is not None}
        files |= {planned.table.path.name: planned.table.path for planned in views if planned.table is not None}
        await trio.to_thread.run_sync(lambda: process.link(files))
        return tuple(_placed(planned, process) for planned in views)

    def paths(self, planned: PlannedView) -> tuple[str, ...]:
        """Returns the paths of the slices of a view that is held and shown."""
        return tuple(str(self._home.objects.path(each.slice.physical_hash)) for each in planned.slices)

    def sound(self, views: Sequence[PlannedView]) -> dict[str, Path]:
        """Returns the files of views, whose bytes match their hashes. Raises ObjectDamaged, after
        recording the damage; NotFound."""
        found: dict[str, Path] = {}
        for name, planned in _objects(views).items():
            try:
                found[str(name)] = self._files.path(self._home.objects, name)
            except ObjectDamaged as fault:
                number, owner = next(
                    (each.sequence, shard)
                    for shard in (planned.shards or (planned,))
                    for each in shard.slices
                    if each.slice.physical_hash == name
                )
                self._damage.found(owner.dataset, [DamagedBlock(number, DAMAGED, str(fault))])
                with self._home.catalog() as catalog:
                    entry = catalog.find(owner.dataset)
                if entry is not None:
                    name_damaged(fault, entry.name, number)
                raise
        return found


def _objects(views: Sequence[PlannedView]) -> Mapping[Multihash, PlannedView]:
    """Returns each object once, with a view that reads it."""
    return {each.slice.physical_hash: planned for planned in views for each in planned.slices}


def _name(planned: PlannedView) -> str:
    assert planned.fold is not None
    return f"fold {planned.fold.file.content}"


def _placed(planned: PlannedView, process: QueryProcess) -> SliceView:
    if planned.shards and planned.view.fold != "log":
        parts = (_placed(each, process) for each in planned.shards)
        named = (
            msgspec.structs.replace(each, name=f"{planned.view.name} shard {place}") for place, each in enumerate(parts)
        )
        return msgspec.structs.replace(planned.view, parts=tuple(named))
    files = tuple(process.seen(str(each.slice.physical_hash)) for each in planned.slices)
    if planned.table is not None:
        files = (process.seen(planned.table.path.name),)
    earlier = None if planned.fold is None else process.seen(_name(planned))
    return msgspec.structs.replace(planned.view, files=files, earlier=earlier)
