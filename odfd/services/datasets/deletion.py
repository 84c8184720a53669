"""Deletes datasets: what the database has of one goes in one transaction, and the rest after it, over crashes.

With or without its chain, all that was concluded about it goes with its declaration. What is left then is recorded: the
workers that still use its chains, files made of them, and that it is to be told. The objects of one that is purged are
removed at once; after a crash in between the collector does that, and a person sees nothing of them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec
import trio

from chain.errors import Environment, Refused
from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import Multihash
from chain.wording import agree, plural
from odfd.control.assembly import Context
from odfd.datasets import failing
from odfd.ingest import segments
from odfd.ingest.local_files import BASE_KIND
from odfd.mirrors.scheduler import MirrorScheduler
from odfd.queries import folds
from odfd.resources import records
from odfd.runtime.subjects import about
from odfd.services.execution import quarantine
from odfd.services.ingest.sources import TAKEN
from odfd.services.resources.set_controllers import SETS
from odfd.services.views.dataset_states import DatasetStates
from odfd.store import collections, mirror_specs, row_counts, spool, unmanaged, visibility
from odfd.store import flow_runs as flows
from odfd.store.catalog import Catalog, DatasetEntry
from odfd.store.damage import Damage
from odfd.store.directory import FOLDS, SEGMENTS, StateDirectory
from odfd.store.holdings import Holdings
from odfd.store.ledger.log import Ledger
from odfd.store.references import drop_references

KIND: Final = "deleted-dataset"
"""The kind of the records that say what is left of a deleted dataset, by the id of its resource."""
IN_USE: Final = "dataset-in-use"


class _Left(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a deleted dataset."""

    name: str
    chains: tuple[str, ...]
    """Their dids, the one that its name meant first."""
    blocks: int
    is_purged: bool = False
    flows: tuple[tuple[str, bool], ...]
    """The names of its flows, each with whether it stays, and waits for the dataset."""


class DatasetDeletion:
    """Deletes the datasets of a node, and single renditions of them."""

    def __init__(
        self,
        home: StateDirectory,
        states: DatasetStates,
        scheduler: MirrorScheduler,
        context: Context,
        gone: Callable[[DatasetId], None],
    ) -> None:
        """``gone`` is called with the id of each deleted chain."""
        self._home, self._scheduler = home, scheduler
        self._views, self._sizes = states.views, states.sizes
        self._clock, self._events, self._gone = context.clock, context.events, gone
        self._unneeded: dict[str, Sequence[Multihash]] = {}
        """Objects of purged datasets that nothing named any more, by the keys of their records."""

    def record(self, connection: sqlite3.Connection, key: str, entry: DatasetEntry, *, purge: bool) -> None:
        """Deletes what the database has of a dataset beside its declaration; ``settle`` does the rest.

        ``key`` names its record. Its data stays as unmanaged (``UnmanagedService``) unless ``purge`` is set. Raises
        Refused while others derive from it, or a reader holds its history.
        """
        left, self._unneeded[key] = self._delete(connection, entry, purge=purge)
        records.put(connection, KIND, key, msgspec.json.encode(left), self._clock.now())

    async def settle(self, key: str) -> None:
        """Undoes what is left of a deleted dataset, and tells of it. May have been called before a crash."""
        left = await trio.to_thread.run_sync(self._find_left, key)
        if left is not None:
            await self._settle(left, self._unneeded.pop(key, ()), key)

    async def delete_rendition(self, dataset: DatasetId) -> None:
        """Deletes a rendition inside a collection, with its data. Raises NotFound; Refused as ``record``."""
        await self._settle(*await trio.to_thread.run_sync(self._delete_alone, dataset))

    def _delete_alone(self, dataset: DatasetId) -> tuple[_Left, Sequence[Multihash]]:
        with self._home.database.write() as connection:
            return self._delete(connection, Catalog(connection).resolve(str(dataset)), purge=True)

    def _delete(
        self, connection: sqlite3.Connection, entry: DatasetEntry, *, purge: bool
    ) -> tuple[_Left, Sequence[Multihash]]:
        """Deletes what the database has of a dataset; returns what is left, and the objects that nothing names."""
        catalog, now = Catalog(connection), self._clock.now()
        chains = catalog.chains_of(entry)
        readers = list(dict.fromkeys(other.name for chain in chains for other in self._views.readers.of(chain)))
        if readers:
            raise Refused(
                f"{', '.join(readers)} {agree(len(readers), 'derives', 'derive')} from {entry.name}",
                rule=IN_USE,
                hint=f"delete {agree(len(readers), 'it', 'them')} first: odfctl delete dataset {readers[0]}",
            )
        head = self._home.chains.chain(entry.id).head()
        blocks, stranded, unneeded = 0 if head is None else head.size, list[tuple[str, bool]](), list[Multihash]()
        if not entry.is_inner:
            for kind in (quarantine.KIND, TAKEN, SETS):
                records.remove(connection, kind, str(collections.of(connection, entry.id).id))
        for each in [catalog.resolve(str(chain)) for chain in chains][::-1]:  # the first is needed to name the others
            stranded += flows.forget(connection, each.id)
            if not purge:
                unmanaged.keep(connection, self._remaining(connection, each, now))
            self._home.chains.drop_in(connection, each.id, keep=not purge)
            named = self._forget(connection, each.id, purge=purge)
            unneeded += named if purge else ()
        left = _Left(
            name=entry.name, chains=tuple(map(str, chains)), blocks=blocks, is_purged=purge, flows=tuple(stranded)
        )
        return left, unneeded

    async def _settle(self, left: _Left, unneeded: Sequence[Multihash], key: str | None = None) -> None:
        """``key``: that of the record of the deletion, which ends then."""
        chains = list(map(DatasetId.parse, left.chains))
        # First: a round of a mirror that is under way would store blocks again behind the cleaning.
        await self._scheduler.dismiss(chains)
        await trio.to_thread.run_sync(self._clear, left, chains, unneeded, key)

    def _clear(self, left: _Left, chains: Sequence[DatasetId], unneeded: Sequence[Multihash], key: str | None) -> None:
        """Cleans up behind deleted chains, and tells of it."""
        self._clean(chains, unneeded)
        for chain in chains:
            self._gone(chain)
        for name, stays in left.flows:
            text = f"{left.name}, which it pulled, is deleted"
            self._events.emit("flow.stranded" if stays else "flow.deleted", name, text)
        text = f"{plural(left.blocks, 'block')} {'forgotten' if left.is_purged else 'kept as unmanaged'}"
        self._events.emit("dataset.deleted", left.name, text, about=about(left.chains[0]), id=left.chains[0])
        if key is not None:
            self._end(key)

    def _forget(self, connection: sqlite3.Connection, dataset: DatasetId, *, purge: bool) -> Sequence[Multihash]:
        """Deletes all that is concluded about a chain; returns the objects that nothing names any more."""
        now = self._clock.now()
        if purge:
            unmanaged.forget_data(connection, dataset, now)
        mirror_specs.drop(connection, dataset, now)
        records.remove(connection, BASE_KIND, str(dataset))
        visibility.mark_deleted(connection, dataset, now)
        Ledger(connection).forget(dataset)
        Damage(connection).forget(dataset)
        row_counts.COUNTS.forget(connection, dataset)
        records.remove(connection, failing.KIND, str(dataset))
        collections.forget(connection, dataset)
        spool.forget_reader(connection, dataset)
        return drop_references(connection, dataset)

    def _remaining(self, connection: sqlite3.Connection, entry: DatasetEntry, now: Instant) -> unmanaged.Unmanaged:
        """Describes what stays of a chain, before it is forgotten."""
        checked, head, size = Ledger(connection).chain(entry.id), self._home.chains.chain(entry.id).head(), None
        with suppress(Environment):  # a damaged chain has no known size, and is deleted all the same
            size = self._sizes.of((entry.id,)).get(entry.id)
        remains = unmanaged.Remains(
            blocks=0 if head is None else head.size,
            bytes=size,
            data=checked.data,
            epoch=checked.epoch,
            extent=Holdings(connection).extent(entry.id),
        )
        return unmanaged.Unmanaged(dataset=entry.id, name=entry.name, at=now, remains=remains)

    def _find_left(self, key: str) -> _Left | None:
        with self._home.database.read() as connection:
            found = records.get(connection, KIND, key)
        return None if found is None else msgspec.json.decode(found.body, type=_Left)

    def _clean(self, chains: Sequence[DatasetId], unneeded: Sequence[Multihash]) -> None:
        """Removes what is outside of the database, and what a mirror at work brought after the deletion."""
        self._home.objects.remove_all(unneeded)
        for chain in chains:
            with self._home.database.write() as connection:
                if Catalog(connection).find(chain) is not None:  # somebody brought it here again
                    continue
                if self._home.chains.chain(chain).head() is not None:
                    self._home.chains.drop_in(connection, chain)
                    self._forget(connection, chain, purge=False)
            segments.forget(self._home.folder(SEGMENTS), chain)
            folds.forget(self._home.folder(FOLDS), chain)

    def _end(self, key: str) -> None:
        with self._home.database.write() as connection:
            records.remove(connection, KIND, key)
