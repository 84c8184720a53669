"""Begins renditions: from captured bytes, or from what the active rendition contains at one time.

The chain, its name, its place in the collection and, from a snapshot, all that stands come in one transaction.
Spec: docs/spec/collections.md#from-raw, #from-snapshot.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import trio

from chain.errors import Conflict
from chain.ids import DatasetId
from chain.instant import from_millis
from chain.libraries import np
from chain.model.events import DatasetKind, MetadataEvent, Seed
from chain.multihash import Multihash
from chain.state import ChainState, load_state
from odfd.api.datasets.rendition_effects import RenditionEffects
from odfd.api.resources.apply import BASE_KIND
from odfd.datasets import captures
from odfd.datasets.catalog import Catalog
from odfd.datasets.creation import declaration
from odfd.datasets.visibility import Mark, Marks
from odfd.ingest.copying import Copied, offsets_of, snapshot_events
from odfd.ingest.driver import IngestDependencies
from odfd.ingest.file_writer import staged_folder
from odfd.queries.planning import fold_of
from odfd.renditions import tables
from odfd.renditions.notice import without_notice
from odfd.renditions.tables import CollectionState, Member
from odfd.renditions.timeline import RenditionRow
from odfd.resources.store import Resources
from odfd.runtime.clock import Clock
from odfd.state.directory import StateDirectory
from odfd.trust.signing.owner_commit import OwnerCommitter

Standing = Callable[[DatasetId, Multihash, str, Path], Awaitable[None]]
"""Writes the offsets, a column of this name, of rows that stand in a dataset up to a block, to a Parquet file."""


class RenditionOrigins:
    """Begins the renditions of one node."""

    def __init__(
        self,
        home: StateDirectory,
        ingest: IngestDependencies,
        committer: OwnerCommitter,
        clock: Clock,
        effects: RenditionEffects,
        standing: Standing,
    ) -> None:
        self._home, self._ingest, self._committer = home, ingest, committer
        self._clock, self._effects, self._standing = clock, effects, standing

    def from_raw(self, dataset: DatasetId, command: str) -> int:
        """Begins one at the time of the first capture. Returns its number. Raises Refused."""
        state = self._effects.state(dataset)
        if (made := _made(state, command)) is not None:
            return made
        since = self._effects.whole(state)[0].time
        number = len(state.members)

        def member(born: DatasetId) -> Member:
            row = RenditionRow(number=number, shards=(str(born),), since=since, reason="from raw")
            return Member(row=row, origin="raw", command=command)

        self._begin(state, load_state(self._home.chains.chain(state.active.dataset)), member, Copied((), ()), raw=True)
        return number

    async def from_snapshot(self, dataset: DatasetId, command: str) -> int:
        """Begins one with what the active rendition contains now. Nobody writes it meanwhile. Raises Refused."""
        state = await trio.to_thread.run_sync(self._effects.state, dataset)
        if (made := _made(state, command)) is not None:
            return made
        await trio.to_thread.run_sync(self._effects.check_owned, state)
        active = state.active
        chain = self._home.chains.chain(active.dataset)
        known = await trio.to_thread.run_sync(load_state, chain)
        since = await trio.to_thread.run_sync(self._effects.time_of, state)
        await trio.to_thread.run_sync(self._effects.run_on, active, since + 1)
        standing = await self._offsets(active.dataset, known)

        def begin() -> int:
            copied = snapshot_events(self._ingest, chain, known, standing, from_millis(since))
            with self._home.database.read() as connection:
                raw = captures.is_captured(connection, active.dataset)
            number = len(state.members)

            def member(born: DatasetId) -> Member:
                row = RenditionRow(number=number, shards=(str(born),), since=since, reason="from snapshot")
                copies = known.size - active.synced
                return Member(row=row, origin="snapshot", command=command, of=active.row.number, copied=copies)

            self._begin(state, known, member, copied, raw=raw)
            return number

        return await trio.to_thread.run_sync(begin)

    async def _offsets(self, dataset: DatasetId, known: ChainState) -> np.ndarray | None:
        """Offsets of the rows that stand; ``None``: all do."""
        if known.schema is None or fold_of(known)[0] == "log":
            return None
        assert known.head is not None
        async with staged_folder(self._ingest.settings.staging) as folder:
            path = folder / "standing"
            await self._standing(dataset, known.head, known.vocab.offset, path)
            return await trio.to_thread.run_sync(offsets_of, path, known.vocab.offset)

    def _begin(
        self,
        state: CollectionState,
        known: ChainState,
        member: Callable[[DatasetId], Member],
        copied: Copied,
        *,
        raw: bool,
    ) -> None:
        """The chain of a new rendition with its name and its place in the collection, in one transaction."""
        active = state.active.dataset
        base = self._home.name_of(active)
        known = msgspec.structs.replace(known, set_info=without_notice(known.set_info))
        declared = declaration(known, base)
        with self._home.newborn() as born:
            new = member(born)

            def together(connection: sqlite3.Connection) -> None:
                resources, now = Resources(connection), self._clock.now()
                Catalog(resources).add(f"{base}.r{new.row.number}", born, now)
                folder = resources.get(BASE_KIND, str(active))
                resources.apply(BASE_KIND, str(born), folder.spec if folder else b"", now)
                if raw:
                    captures.begin(connection, born, now)
                Marks(connection).put(born, Mark.PRIVATE, now)  # whatever the settings publish
                latest = tables.of(connection, active)
                if len(latest.members) != new.row.number:
                    raise Conflict("another rendition was begun", rule="rendition-command", hint="do it again")
                tables.keep(connection, msgspec.structs.replace(latest, members=(*latest.members, new)))

            seed = Seed(dataset_id=born, dataset_kind=DatasetKind.ROOT)
            events: tuple[MetadataEvent, ...] = (seed, *declared.metadata, *copied.events)
            self._committer.commit_now(born, None, events, copied.objects, from_millis(new.row.since), together)


def _made(state: CollectionState, command: str) -> int | None:
    """The rendition that a command made already."""
    return next((each.row.number for each in state.members if each.command == command), None)
