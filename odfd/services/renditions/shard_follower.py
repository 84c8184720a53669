"""Lets the mirror of a collection's first shard become a mirror of the whole collection, as its signed card says.

The card of the first shard lists all of them; the others are mirrored on the same terms. They are read as one once a
head of each names the collection: a key speaks for its own dataset alone, so nobody makes a dataset of others a part of
his collection. What is done next follows from the stored state, so an interrupted step is done again.
Spec: docs/spec/collections.md#mirrored-shards; ADR 68.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

import msgspec
import trio

from chain.errors import Invalid
from chain.ids import DatasetId
from chain.statements.card import CardShards
from odfd.control.assembly import Context
from odfd.mirrors.mirror_handover import unite
from odfd.mirrors.mirror_state import MirrorVisibility
from odfd.mirrors.scheduler import MirrorScheduler
from odfd.published.signed import beside
from odfd.runtime.subjects import about
from odfd.store import collections, mirror_specs
from odfd.store.catalog import inner_name
from odfd.store.directory import StateDirectory
from odfd.store.ledger.cards import Cards
from odfd.store.mirror_specs import MirrorSpec
from odfd.store.visibility import Visibility


class _Listed(msgspec.Struct, frozen=True):
    """A mirrored collection, by the card of its first shard."""

    spec: MirrorSpec
    """The terms of the first shard's mirror, which has the collection's name."""
    shards: CardShards
    is_united: bool
    """Whether the shards are read as one here already."""
    base: str
    """The collection's name, which the names of the other shards begin with."""
    number: int
    """The number of the rendition that they are, which is part of these names."""

    def name_of(self, place: int) -> str:
        return inner_name(self.base, self.number, place)


class ShardFollower:
    """Mirrors and unites the shards of one node's mirrored collections."""

    def __init__(
        self, home: StateDirectory, scheduler: MirrorScheduler, visibility: Visibility, context: Context
    ) -> None:
        self._home, self._scheduler, self._visibility = home, scheduler, visibility
        self._events, self._clock = context.events, context.clock
        self._turn = trio.Lock()
        """Held for a step, so that two do not add one mirror."""
        self.step: Callable[[str], None] = lambda _: None
        """Called after each durable step; tests use it to let a process die there."""
        self._waits: dict[DatasetId, str] = {}
        """What each collection was last said to wait for."""

    async def follow(self, dataset: DatasetId) -> Sequence[DatasetId]:
        """Mirrors the other shards of a mirrored collection, and unites all; returns the others.

        Raises Invalid if one of them is here in another way.
        """
        async with self._turn:
            listed = await trio.to_thread.run_sync(self._list, dataset)
            if listed is None:
                return ()
            others = listed.shards.ids[1:]
            if not listed.is_united:
                for place, shard in enumerate(others, start=1):
                    if self._scheduler.find(shard) is None and not await self._mirror(listed, place, shard):
                        return ()
                await self._unite(listed)
            return others

    def _list(self, dataset: DatasetId) -> _Listed | None:
        with self._home.database.read() as connection:
            shards = _shards_of(connection, dataset)
            if shards is None:
                return None
            first = shards.ids[0]
            spec = mirror_specs.of(connection, first)
            if spec is None or _shards_of(connection, first) != shards:
                return None
            state, is_united = collections.of(connection, first), len(collections.shards_of(connection, first)) > 1
            active = mirror_specs.of(connection, state.active.dataset)
        if self._home.keys.has_dataset_key(first):
            return None
        return _Listed(spec, shards, is_united, (active or spec).name, state.number_of(first))

    async def _mirror(self, listed: _Listed, place: int, shard: DatasetId) -> bool:
        """Mirrors a shard; returns false if the collection is mirrored no longer."""
        spec = msgspec.structs.replace(
            listed.spec,
            dataset=str(shard),
            name=listed.name_of(place),
            via=_via(listed, shard),
            expect=None,
        )
        if not await trio.to_thread.run_sync(self._record, listed, spec):
            return False
        await self._scheduler.take_up(spec)
        self.step("mirrored")
        return True

    def _record(self, listed: _Listed, spec: MirrorSpec) -> bool:
        """Records a shard as mirrored; returns false if the collection is mirrored no longer. Raises Invalid."""
        is_told = self._check_new(listed, spec)
        shown = MirrorVisibility(private=None if is_told and not listed.spec.is_from_web else not is_told)
        with self._home.database.write() as connection:
            is_wanted = mirror_specs.of(connection, listed.spec.id) is not None  # it may have been deleted meanwhile
            if is_wanted:
                self._scheduler.record(connection, spec, shown)
        return is_wanted

    def _check_new(self, listed: _Listed, spec: MirrorSpec) -> bool:
        """Checks that a shard may be mirrored under its name; returns whether the collection is public.

        Raises Invalid if it is here already in another way.
        """
        with self._home.catalog() as catalog:
            held = catalog.find(spec.id)
        with self._home.database.read() as connection:
            belongs = len(collections.of(connection, spec.id).members) > 1 or collections.member_of(connection, spec.id)
        is_ours = self._home.keys.has_dataset_key(spec.id)
        if is_ours or belongs or (held is not None and held.name != spec.name):
            as_name = "" if held is None else f" as {held.name}"
            raise Invalid(
                f"{spec.dataset} is listed as a shard of {listed.spec.name}, and is here already{as_name}",
                rule="shard-here",
                hint=f"if it is one: odfctl rename {spec.dataset} {spec.name}; else ask the publisher",
            )
        return self._visibility.is_told(listed.spec.id)

    async def _unite(self, listed: _Listed) -> None:
        """Makes the collection's name mean all shards, if the head of each says that it is one of them."""
        waits, first = await trio.to_thread.run_sync(self._store_union, listed), listed.spec.id
        if waits is None:
            self.step("united")
            self._waits.pop(first, None)
            await self._scheduler.reread(listed.shards.ids)
            text = f"{len(listed.shards.ids)} shards by {', '.join(listed.shards.by)}"
            self._events.emit("mirror.united", listed.spec.name, text, about=about(first), id=str(first))
        elif self._waits.get(first) != waits:
            self._waits[first] = waits
            self._events.emit("mirror.held", listed.spec.name, waits, about=about(first))

    def _store_union(self, listed: _Listed) -> str | None:
        """Stores the collection; returns what it waits for instead, or ``None``."""
        with self._home.database.write() as connection:
            return unite(connection, listed.shards, self._clock.now())


def _via(listed: _Listed, shard: DatasetId) -> str | None:
    """Returns the place of a shard: on a web server it lies beside the first, if that lies in the folder of its id."""
    via = listed.spec.via
    if via is None or not listed.spec.is_from_web:
        return via
    return beside(via, shard) if via.endswith(f"/{listed.spec.id.multibase}") else None


def _shards_of(connection: sqlite3.Connection, dataset: DatasetId) -> CardShards | None:
    """Returns the shards that a dataset's card lists; ``None`` without any."""
    card = Cards(connection).of(dataset)
    return None if card is None else card.shards
