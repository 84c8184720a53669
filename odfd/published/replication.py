"""Fetches datasets from their holders: from peers of all joined networks, and from places where they are published.

Peers are asked first, as they serve their own data; places provide the rest.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Protocol, TypeAlias

import trio

from chain.errors import Invalid, Remote
from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import Multihash
from odfd.published.source import Edition, PublishedPlace, PublishedSource, as_written
from p2p.driver.replication import ReplicationDriver
from p2p.pace import Pace
from p2p.ports import (
    ChainSink,
    HeldParts,
    Judgement,
    ObjectSink,
    PackSink,
    PartsAsk,
    PeerId,
    PeerView,
    PiecesAsk,
    StatementStore,
    Tip,
    Topic,
    TreeRoot,
)

SourceOf: TypeAlias = Callable[[str], PublishedSource]
"""Returns the reader of a place. Raises Remote if this node has none."""


class Networks(Protocol):
    """The networks that this node has joined."""

    def peers(self) -> Sequence[PeerView]: ...

    async def choose(self, peers: Collection[PeerId], dataset: DatasetId | None = None) -> ReplicationDriver:
        """Returns the network in which these peers are asked. Raises Remote if none may hear of the dataset."""

    async def pull_statements(
        self, peer: PeerId, datasets: Sequence[DatasetId] | None = None, *, private: bool = False
    ) -> int: ...

    async def seek(self, dataset: DatasetId, beyond: Collection[str] = ()) -> int: ...

    def penalise(self, peer: PeerId, reason: str, weight: float) -> None: ...


class Replication:
    """The holders of datasets that this node can reach. ``ReplicationDriver`` says what a method asks of peers."""

    def __init__(
        self,
        networks: Networks,
        source_of: SourceOf,
        board: StatementStore,
        clock: Callable[[], Instant],
        askable: Callable[[DatasetId], Collection[str] | None] = lambda _: None,
    ) -> None:
        """Joins networks and places. ``askable``: the only peers that may be asked for a dataset; ``None``: all.

        Asking others would reveal that the dataset is here.
        """
        self._askable = askable
        self._networks = networks
        self._source_of = source_of
        self._board = board
        self._clock = clock
        self._places: dict[PeerId, PublishedPlace] = {}

    async def inquire(self, dataset: DatasetId, place: str) -> None:
        """Reads a place's current publication, and forwards its statements. Raises Remote, Invalid."""
        before = self._places.get(PeerId(place))
        source = self._source_of(place)
        try:
            root = await source.resolve(place, self._clock())
            known = None if before is None else before.edition
            edition = await source.edition(root, known)
            if edition is not known:
                await self._judge(dataset, edition, PeerId(place))
        except BaseException:
            # Also one that took too long. It stays among the peers until then: people see how many there are.
            if before is not None:
                before.answers = False
            raise
        self._places[PeerId(place)] = PublishedPlace(place, source, root, edition, self._forget)

    async def _judge(self, dataset: DatasetId, edition: Edition, peer: PeerId) -> None:
        at = as_written(edition.root)
        if edition.head.dataset != dataset:
            raise Invalid(f"under {at} is another dataset, {edition.head.dataset.short}", rule="graft")
        for raw in (*edition.statements, *([] if edition.card is None else [edition.card])):
            if await trio.to_thread.run_sync(self._board.judge, Topic.HEADS, raw, peer) is Judgement.REJECT:
                raise Invalid(f"a statement under {at} does not hold", rule="published-statement")

    @asynccontextmanager
    async def reading(self, place: str) -> AsyncIterator[PublishedPlace]:
        """Permits fetches of objects from a place, signed or not, while the block runs. Raises Remote."""
        source = self._source_of(place)
        root = await source.resolve(place, self._clock())
        before = self._places.get(PeerId(root))
        here = before or self._places.setdefault(PeerId(root), PublishedPlace(root, source, root, None, self._forget))
        try:
            yield here
        finally:
            if before is None and self._places.get(here.peer) is here:
                del self._places[here.peer]

    def peers(self) -> Sequence[PeerView]:
        places = [PeerView(peer=place.peer, connected=True) for place in self._places.values() if place.answers]
        return [*self._networks.peers(), *places]

    async def pull_statements(
        self, peer: PeerId, datasets: Sequence[DatasetId] | None = None, *, private: bool = False
    ) -> int:
        if peer in self._places:
            return 0
        if datasets is None:
            return await self._networks.pull_statements(peer)
        among = {dataset: await trio.to_thread.run_sync(self._askable, dataset) for dataset in datasets}
        everybodys = [each for each, peers in among.items() if peers is None]
        shared = [each for each, peers in among.items() if peers is not None and peer in peers]
        pulled = await self._networks.pull_statements(peer, everybodys, private=private) if everybodys else 0
        return pulled + (await self._networks.pull_statements(peer, shared, private=True) if shared else 0)

    async def chain_size(self, peer: PeerId, dataset: DatasetId) -> int:
        if (place := self._places.get(peer)) is not None:
            return place.chain_size(dataset)
        driver = await self._network(peer, dataset)
        return 0 if driver is None else await driver.chain_size(peer, dataset)

    async def object_size(self, peer: PeerId, name: Multihash) -> int | None:
        if (place := self._places.get(peer)) is not None:
            return await place.object_size(name)
        return await (await self._networks.choose([peer])).object_size(peer, name)

    async def fetch_blocks(self, peer: PeerId, dataset: DatasetId, start: int, max_bytes: int) -> Sequence[bytes]:
        if (place := self._places.get(peer)) is not None:
            return await place.fetch_blocks(dataset, start, max_bytes)
        driver = await self._network(peer, dataset)
        if driver is None:
            raise Remote(f"{peer} is not asked for {dataset.short}", rule="not-asked")
        return await driver.fetch_blocks(peer, dataset, start, max_bytes)

    async def pull_chain(
        self, peers: Sequence[PeerId], dataset: DatasetId, size: int, sink: ChainSink, pace: Pace | None = None
    ) -> None:
        async def ask(others: Sequence[PeerId]) -> None:
            await (await self._networks.choose(others, dataset)).pull_chain(others, dataset, size, sink, pace)

        async def read(place: PublishedPlace) -> None:
            await place.pull_chain(dataset, size, sink, pace or Pace())

        await self._try_each(peers, ask, read)

    async def holds(self, peer: PeerId, dataset: DatasetId, tip: Tip) -> bool:
        """Whether a peer holds the dataset; never a place, which is read as a whole and has no reputation to lose."""
        driver = await self._network(peer, dataset)
        return driver is not None and await driver.holds(peer, dataset, tip)

    async def prove_prefix(self, peers: Sequence[PeerId], dataset: DatasetId, old: TreeRoot, signed: TreeRoot) -> bool:
        others, places = self._part(peers)
        if others:
            driver = await self._networks.choose(others, dataset)
            if await driver.prove_prefix(others, dataset, old, signed):
                return True
        return any([await place.prove_prefix(dataset, old, signed) for place in places])

    async def fetch_object(
        self, peers: Sequence[PeerId], name: Multihash, size: int, sink: ObjectSink, pace: Pace | None = None
    ) -> None:
        async def ask(others: Sequence[PeerId]) -> None:
            await (await self._networks.choose(others)).fetch_object(others, name, size, sink, pace)

        async def read(place: PublishedPlace) -> None:
            await place.fetch_object(name, size, sink, pace or Pace())

        await self._try_each(peers, ask, read)

    async def fetch_small(
        self, peers: Sequence[PeerId], names: Sequence[Multihash], sink: PackSink, pace: Pace | None = None
    ) -> None:
        """Fetches small objects from peers only; ``fetch_object`` fetches those of a place."""
        others, _ = self._part(peers)
        if not others:
            raise Remote("no peer to ask for small objects", rule="no-peer")
        await (await self._networks.choose(others)).fetch_small(others, names, sink, pace)

    async def ask_parts(self, peer: PeerId, ask: PartsAsk) -> HeldParts | None:
        """Asks a peer; returns ``None`` for a place, which answers nothing: its parts are fetched in order."""
        driver = await self._network(peer, ask.dataset)
        return None if driver is None else await driver.ask_parts(peer, ask)

    async def ask_pieces(self, peer: PeerId, ask: PiecesAsk) -> HeldParts | None:
        """As for parts."""
        driver = await self._network(peer, ask.dataset)
        return None if driver is None else await driver.ask_pieces(peer, ask)

    async def piece_list(
        self, peer: PeerId, dataset: DatasetId, name: Multihash, size: int
    ) -> tuple[bytes, bytes] | None:
        driver = await self._network(peer, dataset)
        return None if driver is None else await driver.piece_list(peer, dataset, name, size)

    async def seek(self, dataset: DatasetId, beyond: Collection[str] = ()) -> int:
        """Asks only the permitted peers, if there are such, and dials those that are not connected."""
        among = await trio.to_thread.run_sync(self._askable, dataset)
        if among is None:
            return await self._networks.seek(dataset, beyond)
        away = set(among) - {view.peer for view in self._networks.peers() if view.connected}
        for peer in map(PeerId, sorted(away)):
            with suppress(Remote):
                await (await self._networks.choose([peer], dataset)).chain_size(peer, dataset)
        return len(away & {view.peer for view in self._networks.peers() if view.connected})

    def penalise(self, peer: PeerId, reason: str, weight: float) -> None:
        """Penalises a peer; a place cannot be blocked, but its publication is checked again."""
        if self._places.pop(peer, None) is None:
            self._networks.penalise(peer, reason, weight)

    async def _network(self, peer: PeerId, dataset: DatasetId) -> ReplicationDriver | None:
        """Returns where to ask a peer for a dataset; ``None`` for a place, or if the peer may not hear of it."""
        if peer in self._places:
            return None
        among = await trio.to_thread.run_sync(self._askable, dataset)
        return await self._networks.choose([peer], dataset) if among is None or peer in among else None

    def _part(self, peers: Sequence[PeerId]) -> tuple[list[PeerId], list[PublishedPlace]]:
        """Splits peers into those of networks, and places."""
        places = [self._places[peer] for peer in peers if peer in self._places]
        return [peer for peer in peers if peer not in self._places], places

    async def _try_each(
        self,
        peers: Sequence[PeerId],
        ask: Callable[[Sequence[PeerId]], Awaitable[None]],
        read: Callable[[PublishedPlace], Awaitable[None]],
    ) -> None:
        """Tries peers, then each place in turn. Raises the Remote of the last attempt."""
        others, places = self._part(peers)
        tries = [partial(ask, others)] if others or not places else []
        tries += [partial(read, place) for place in places]
        for attempt in tries[:-1]:
            with suppress(Remote):
                return await attempt()
        return await tries[-1]()

    def _forget(self, peer: PeerId) -> None:
        self._places.pop(peer, None)
