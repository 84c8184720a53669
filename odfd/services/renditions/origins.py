"""Begins renditions: from captured bytes, or from what the active rendition contains at one time.

The chain, its name, its place in the collection and, from a snapshot, all rows that stand are written in one
transaction. Spec: docs/spec/collections.md#from-raw, #from-snapshot.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec
import trio

from chain.errors import Conflict, Invalid, Refused
from chain.ids import DatasetId
from chain.instant import Instant, from_millis, render
from chain.libraries import np
from chain.model.events import Seed, SetTransform
from chain.multihash import Multihash
from chain.state import ChainState, load_state
from odfd.datasets.commit import Commit, CommitPart, Committer
from odfd.datasets.creation import declaration
from odfd.ingest.copying import Copied, Layout, Standing, offsets_of, snapshot_events
from odfd.ingest.driver import IngestDependencies
from odfd.ingest.file_writer import staged_folder
from odfd.ingest.local_files import BASE_KIND
from odfd.ingest.sharded_writes import check_source
from odfd.queries.log_columns import fold_of
from odfd.renditions.successor import without_notice
from odfd.renditions.timeline import RenditionRow
from odfd.resources import records
from odfd.runtime.clock import Clock
from odfd.services.renditions.effects import RenditionEffects
from odfd.store import collections
from odfd.store.captures import BoundCapture
from odfd.store.catalog import Catalog
from odfd.store.collections import CollectionState, Member
from odfd.store.directory import StateDirectory
from odfd.store.visibility import Marks, VisibilityMark

BEGUN: Final = Copied((), ())
"""The first contents of a chain that begins without rows."""
WriteOffsets = Callable[[DatasetId, Multihash, str, Path], Awaitable[None]]
"""Writes the offsets of the rows that stand in a dataset up to a block to a Parquet file, as a named column."""


class RenditionOrigins:
    """Begins new renditions of collections on one node."""

    def __init__(
        self,
        home: StateDirectory,
        ingest: IngestDependencies,
        committer: Committer,
        clock: Clock,
        effects: RenditionEffects,
        standing: WriteOffsets,
    ) -> None:
        self._home, self._ingest, self._committer = home, ingest, committer
        self._clock, self._effects, self._standing = clock, effects, standing

    def from_raw(self, dataset: DatasetId, command: str, layout: Layout | None = None) -> int:
        """Begins a rendition at the time of the first capture. Returns its number. Raises Refused, Invalid.

        ``layout``: its shards; ``None`` for those of the active one.
        """
        state = self._effects.state(dataset)
        if (made := _find_made(state, command)) is not None:
            return made
        active = state.active
        shards = layout or Layout(len(active.shards), active.row.by)
        check_layout(shards, load_state(self._home.chains.chain(active.dataset)))
        source = self._effects.whole(state)
        if shards.shards > 1:
            _check_times(source)
        since, number = source[0].time, len(state.members)

        def member(born: tuple[str, ...]) -> Member:
            row = RenditionRow(number=number, shards=born, by=shards.by, since=since, reason="from raw")
            return Member(row=row, origin="raw", command=command)

        self.begin(state, member, from_millis(since), [BEGUN] * shards.shards)
        return number

    async def from_snapshot(self, dataset: DatasetId, command: str, layout: Layout | None = None) -> int:
        """Begins a rendition with all that the active one contains now. Nobody may write that one meanwhile.

        ``layout``: its shards; ``None`` for those of the active one. Raises Refused, Invalid.
        """
        state, shards, known, since = await trio.to_thread.run_sync(self._complete, dataset, command, layout)
        if (made := _find_made(state, command)) is not None:
            return made
        active = state.active
        chains = self._effects.chains(active)
        sources = []
        for shard, chain, own in zip(active.shards, chains, known, strict=True):
            sources.append(Standing(chain, own, await self._offsets(shard, own)))

        def begin() -> int:
            copied = snapshot_events(self._ingest, sources, shards, from_millis(since))
            number = len(state.members)

            def member(born: tuple[str, ...]) -> Member:
                row = RenditionRow(number=number, shards=born, by=shards.by, since=since, reason="from snapshot")
                copies = sum(each.size for each in known) - active.synced
                return Member(row=row, origin="snapshot", command=command, of=active.row.number, copied=copies)

            self.begin(state, member, from_millis(since), copied)
            return number

        return await trio.to_thread.run_sync(begin)

    def _complete(
        self, dataset: DatasetId, command: str, layout: Layout | None
    ) -> tuple[CollectionState, Layout, Sequence[ChainState], int]:
        """Completes the active rendition up to the time of a snapshot, unless the command made its rendition already.

        Returns the collection, the layout, the states of the chains, and that time. Raises Refused, Invalid.
        """
        state = self._effects.state(dataset)
        layout = layout or Layout(len(state.active.shards), state.active.row.by)
        if _find_made(state, command) is not None:
            return state, layout, (), 0
        self._effects.check_owned(state)
        known = [load_state(chain) for chain in self._effects.chains(state.active)]
        check_layout(layout, known[0])
        since = self._effects.time_of(state)
        self._effects.run_on(state.active, since + 1)
        return state, layout, known, since

    async def _offsets(self, dataset: DatasetId, known: ChainState) -> np.ndarray | None:
        """Returns the offsets of the rows that stand; ``None`` if all do."""
        if known.schema is None or fold_of(known)[0] == "log":
            return None
        assert known.head is not None
        async with staged_folder(self._ingest.settings.staging) as folder:
            path = folder / "standing"
            await self._standing(dataset, known.head, known.vocab.offset, path)
            return await trio.to_thread.run_sync(offsets_of, path, known.vocab.offset)

    def begin(
        self,
        state: CollectionState,
        made: Callable[[tuple[str, ...]], Member],
        time: Instant,
        contents: Sequence[Copied],
        transform: SetTransform | None = None,
    ) -> None:
        """Begins the chains of a new rendition, declared as the active one, with its place in the collection.

        All in one transaction. ``made``: makes it of the ids of its chains; ``contents``: what each has at first.
        ``transform``: over other inputs than the active one's. Raises Conflict, Invalid.
        """
        active = state.active.dataset
        known = load_state(self._home.chains.chain(active))
        known = msgspec.structs.replace(known, set_info=without_notice(known.set_info))
        declared = declaration(known, self._home.name_of(active))
        metadata = [(transform if isinstance(each, SetTransform) else each) or each for each in declared.metadata]
        with ExitStack() as stack:
            born = [stack.enter_context(self._home.newborn()) for _ in contents]
            new = made(tuple(map(str, born)))

            def together(connection: sqlite3.Connection) -> None:
                now = self._clock.now()
                folder = records.get(connection, BASE_KIND, str(active))
                Catalog(connection).check_inner(active, new.row.number, len(born))
                for each in born:
                    records.put(connection, BASE_KIND, str(each), folder.body if folder else b"", now)
                    Marks(connection).put(each, VisibilityMark.PRIVATE, now)  # private, whatever the settings publish
                latest = collections.of(connection, active)
                if len(latest.members) != new.row.number:
                    raise Conflict("another rendition was begun", rule="rendition-command", hint="repeat the command")
                collections.keep(connection, msgspec.structs.replace(latest, members=(*latest.members, new)))

            parts = [
                CommitPart(
                    dataset=each,
                    expected=None,
                    events=(Seed(dataset_id=each, dataset_kind=declared.kind), *metadata, *said.events),
                    objects=said.objects,
                    time=time,
                )
                for each, said in zip(born, contents, strict=True)
            ]
            self._committer.commit_now(Commit(parts=parts, also=together))


def check_layout(layout: Layout, known: ChainState) -> None:
    """Raises Refused or Invalid if the dataset cannot have several shards."""
    if layout.shards == 1:
        return
    if not layout.by:
        raise Invalid(
            "no column decides the shard of a row", rule="shard-column", hint="odfctl … --shards N --by COLUMN"
        )
    for event in (known.polling_source, *known.active_push_sources.values()):
        if event is not None:
            check_source(layout.by, event)
    if known.schema is None:
        raise Refused(
            "the dataset has no columns yet, so none can decide the shard of a row",
            rule="shard-column",
            hint="they come with its first data",
        )


def _check_times(source: Sequence[BoundCapture]) -> None:
    """Raises Refused if two captures have one time, which a transaction of shards has alone."""
    for one, other in pairwise(source):
        if one.time == other.time:
            raise Refused(
                f"two captured transactions have the time {render(from_millis(one.time))}; shards have one at a time",
                rule="shard-times",
                hint="odfctl rendition create NAME --from raw --shards 1; then --from snapshot has several shards",
            )


def _find_made(state: CollectionState, command: str) -> int | None:
    """Returns the number of the rendition that a command made already, or ``None``."""
    return next((member.row.number for member in state.members if member.command == command), None)
