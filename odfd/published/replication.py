"""Adds published datasets to replication: a place where a dataset is published counts as one more holder of it.

Implements ``p2p.ports.Replication`` around the network's. Peers are asked first, as they serve their own data; places
provide the rest. Data from places is checked by the same sinks, so that mirrors notice no difference.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from itertools import islice
from typing import Final, TypeAlias

import msgspec
import trio

from chain.errors import Invalid, NotFound, Remote
from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements.tree import Frontier
from chain.store.layout import DirectoryChain
from odfd.published.source import Edition, PublishedSource, as_written
from p2p.pace import Pace
from p2p.ports import (
    ChainSink,
    Judgement,
    ObjectSink,
    PackSink,
    Parts,
    PartsAsk,
    PeerId,
    PeerView,
    PiecesAsk,
    Replication,
    StatementStore,
    Tip,
    Topic,
    TreeHead,
)
from p2p.web.body import paced

BATCH: Final = 1024
"""Blocks passed to a sink at once."""
WRITE: Final = 1 << 20
"""Bytes passed to a sink at once; a place that breaks off after fewer is not used for now."""
SourceOf: TypeAlias = Callable[[str], PublishedSource]
"""Returns the reader of a place. Raises Remote if this node has none."""


class LastSeen(msgspec.Struct):
    """The last observed state of a place."""

    place: str
    source: PublishedSource
    root: str
    edition: Edition | None = None
    answers: bool = False
    """Whether it answered the last request; otherwise it is not listed among peers."""

    @property
    def peer(self) -> PeerId:
        """Represents the place among peers; no peer can have this id."""
        return PeerId(self.place)


class WithPublished:
    """Replicates datasets from peers and from published places."""

    def __init__(
        self,
        network: Replication,
        source_of: SourceOf,
        board: StatementStore,
        clock: Callable[[], Instant],
        askable: Callable[[DatasetId], Collection[str] | None] = lambda _: None,
    ) -> None:
        """Joins network and places. ``askable``: the only peers that may be asked for a dataset; ``None``: all.

        Asking others would reveal that the dataset is here.
        """
        self._askable = askable
        self._network = network
        self._source_of = source_of
        self._board = board
        self._clock = clock
        self._shown: dict[PeerId, LastSeen] = {}

    async def inquire(self, dataset: DatasetId, place: str) -> None:
        """Reads a place's current publication, and forwards its statements. Raises Remote, Invalid."""
        shown = self._shown.get(PeerId(place))
        if shown is not None:
            shown.answers = False
        source = self._source_of(place)
        root = await source.resolve(place, self._clock())
        known = None if shown is None else shown.edition
        edition = await source.edition(root, known)
        if edition is not known:
            await self._judge(dataset, edition, PeerId(place))
        self._shown[PeerId(place)] = LastSeen(place, source, root, edition, answers=True)

    async def _judge(self, dataset: DatasetId, edition: Edition, peer: PeerId) -> None:
        at = as_written(edition.root)
        if edition.head.dataset != dataset:
            raise Invalid(f"under {at} is another dataset, {edition.head.dataset.short}", rule="graft")
        for raw in (*edition.statements, *([] if edition.card is None else [edition.card])):
            if await trio.to_thread.run_sync(self._board.judge, Topic.HEADS, raw, peer) is Judgement.REJECT:
                raise Invalid(f"a statement under {at} does not hold", rule="published-statement")

    @asynccontextmanager
    async def reading(self, place: str) -> AsyncIterator[LastSeen]:
        """Permits fetches of objects from a place, signed or not, while the block runs. Raises Remote."""
        source = self._source_of(place)
        root = await source.resolve(place, self._clock())
        before = self._shown.get(PeerId(root))
        shown = before or self._shown.setdefault(PeerId(root), LastSeen(root, source, root))
        try:
            yield shown
        finally:
            if before is None and self._shown.get(shown.peer) is shown:
                del self._shown[shown.peer]

    @property
    def peer_id(self) -> PeerId:
        return self._network.peer_id

    def addresses(self) -> Sequence[str]:
        return self._network.addresses()

    async def connect(self, *multiaddrs: str) -> PeerId:
        return await self._network.connect(*multiaddrs)

    def peers(self) -> Sequence[PeerView]:
        places = [PeerView(peer=shown.peer, connected=True) for shown in self._shown.values() if shown.answers]
        return [*self._network.peers(), *places]

    async def announce(self, topic: Topic, envelope: bytes) -> None:
        await self._network.announce(topic, envelope)

    async def pull_statements(
        self, peer: PeerId, datasets: Sequence[DatasetId] | None = None, *, private: bool = False
    ) -> int:
        if peer in self._shown:
            return 0
        if datasets is None:
            return await self._network.pull_statements(peer)
        among = {each: await trio.to_thread.run_sync(self._askable, each) for each in datasets}
        asked = [each for each, peers in among.items() if peers is None]
        kept = [each for each, peers in among.items() if peers is not None and peer in peers]
        pulled = await self._network.pull_statements(peer, asked, private=private) if asked else 0
        return pulled + (await self._network.pull_statements(peer, kept, private=True) if kept else 0)

    async def _may_ask(self, dataset: DatasetId, peer: PeerId) -> bool:
        among = await trio.to_thread.run_sync(self._askable, dataset)
        return among is None or peer in among

    async def chain_size(self, peer: PeerId, dataset: DatasetId) -> int:
        if peer not in self._shown:
            return await self._network.chain_size(peer, dataset) if await self._may_ask(dataset, peer) else 0
        edition = self._edition(peer, dataset)
        return 0 if edition is None else edition.head.size

    async def object_size(self, peer: PeerId, name: Multihash) -> int | None:
        shown = self._shown.get(peer)
        if shown is None:
            return await self._network.object_size(peer, name)
        return await shown.source.object_size(shown.root, name)

    async def fetch_blocks(self, peer: PeerId, dataset: DatasetId, start: int, max_bytes: int) -> Sequence[bytes]:
        shown, edition = self._shown.get(peer), self._edition(peer, dataset)
        if shown is None:
            if not await self._may_ask(dataset, peer):
                raise Remote(f"{peer} is not asked for {dataset.short}", rule="not-asked")
            return await self._network.fetch_blocks(peer, dataset, start, max_bytes)
        if edition is None:
            return []
        chain = await self._staged(shown, edition, start)

        def read() -> list[bytes]:
            found: list[bytes] = []
            room = max_bytes
            for raw in chain.raw_blocks(start, edition.head.size):
                room -= len(raw)
                if found and room < 0:
                    break
                found.append(raw)
            return found

        try:
            return await trio.to_thread.run_sync(read)
        except (Invalid, NotFound) as fault:
            raise Remote(f"{as_written(shown.root)}: {fault.message}", rule=fault.rule) from fault

    async def pull_chain(
        self, peers: Sequence[PeerId], dataset: DatasetId, size: int, sink: ChainSink, pace: Pace | None = None
    ) -> None:
        async def ask(others: Sequence[PeerId]) -> None:
            await self._network.pull_chain(others, dataset, size, sink, pace)

        async def read(shown: LastSeen) -> None:
            edition = self._edition(shown.peer, dataset)
            if edition is None:
                raise Remote(f"{dataset.short} is not known to be at {as_written(shown.root)}", rule="no-peer")
            await self._blocks(shown, edition, size, sink, pace or Pace())

        await self._first(peers, ask, read)

    async def holds(self, peer: PeerId, dataset: DatasetId, tip: Tip) -> bool:
        """Whether a peer holds the dataset; never a place, which is read as a whole and has no reputation to lose."""
        if peer in self._shown or not await self._may_ask(dataset, peer):
            return False
        return await self._network.holds(peer, dataset, tip)

    async def prove_prefix(self, peers: Sequence[PeerId], dataset: DatasetId, old: TreeHead, signed: TreeHead) -> bool:
        others, places = self._parted(peers)
        if others and await self._network.prove_prefix(others, dataset, old, signed):
            return True
        return any([await self._proves(shown, dataset, old, signed) for shown in places])

    async def fetch_object(
        self, peers: Sequence[PeerId], name: Multihash, size: int, sink: ObjectSink, pace: Pace | None = None
    ) -> None:
        async def ask(others: Sequence[PeerId]) -> None:
            await self._network.fetch_object(others, name, size, sink, pace)

        async def read(shown: LastSeen) -> None:
            await self._object(shown, name, size, sink, pace or Pace())

        await self._first(peers, ask, read)

    async def fetch_small(
        self, peers: Sequence[PeerId], names: Sequence[Multihash], sink: PackSink, pace: Pace | None = None
    ) -> None:
        """Fetches small objects from peers only; ``fetch_object`` fetches those of a place."""
        others, _ = self._parted(peers)
        if not others:
            raise Remote("no peer to ask for small objects", rule="no-peer")
        await self._network.fetch_small(others, names, sink, pace)

    async def ask_parts(self, peer: PeerId, ask: PartsAsk) -> Parts | None:
        """Asks a peer; returns ``None`` for a place, which answers nothing: its parts are fetched in order."""
        if peer in self._shown or not await self._may_ask(ask.dataset, peer):
            return None
        return await self._network.ask_parts(peer, ask)

    async def ask_pieces(self, peer: PeerId, ask: PiecesAsk) -> Parts | None:
        """As for parts."""
        if peer in self._shown or not await self._may_ask(ask.dataset, peer):
            return None
        return await self._network.ask_pieces(peer, ask)

    async def piece_list(
        self, peer: PeerId, dataset: DatasetId, name: Multihash, size: int
    ) -> tuple[bytes, bytes] | None:
        if peer in self._shown or not await self._may_ask(dataset, peer):
            return None
        return await self._network.piece_list(peer, dataset, name, size)

    async def seek(self, dataset: DatasetId, beyond: Collection[str] = ()) -> int:
        """Asks only the permitted peers, if there are such, and dials those that are not connected."""
        among = await trio.to_thread.run_sync(self._askable, dataset)
        if among is None:
            return await self._network.seek(dataset, beyond)
        away = set(among) - {view.peer for view in self._network.peers() if view.connected}
        for peer in sorted(away):
            with suppress(Remote):
                await self._network.chain_size(PeerId(peer), dataset)
        return len(away & {view.peer for view in self._network.peers() if view.connected})

    def penalise(self, peer: PeerId, reason: str, weight: float) -> None:
        """Penalises a peer; a place cannot be blocked, but its publication is checked again."""
        if self._shown.pop(peer, None) is None:
            self._network.penalise(peer, reason, weight)

    def _edition(self, peer: PeerId, dataset: DatasetId) -> Edition | None:
        shown = self._shown.get(peer)
        edition = None if shown is None else shown.edition
        return edition if edition is not None and edition.head.dataset == dataset else None

    def _parted(self, peers: Sequence[PeerId]) -> tuple[list[PeerId], list[LastSeen]]:
        """Splits peers into those of the network, and places."""
        places = [self._shown[peer] for peer in peers if peer in self._shown]
        return [peer for peer in peers if peer not in self._shown], places

    async def _first(
        self,
        peers: Sequence[PeerId],
        ask: Callable[[Sequence[PeerId]], Awaitable[None]],
        read: Callable[[LastSeen], Awaitable[None]],
    ) -> None:
        """Tries peers, then each place in turn. Raises the Remote of the last attempt."""
        others, places = self._parted(peers)
        tries = [partial(ask, others)] if others or not places else []
        tries += [partial(read, place) for place in places]
        for attempt in tries[:-1]:
            with suppress(Remote):
                return await attempt()
        return await tries[-1]()

    async def _staged(self, shown: LastSeen, edition: Edition, first: int) -> DirectoryChain:
        head = edition.head
        try:
            return await shown.source.staged(head.dataset.multibase, edition.root, head.head, first)
        except Invalid as fault:
            raise await self._does_not_hold(shown, edition, fault) from fault

    async def _proves(self, shown: LastSeen, dataset: DatasetId, old: TreeHead, signed: TreeHead) -> bool:
        edition = self._edition(shown.peer, dataset)
        if edition is None:
            return False
        chain = await self._staged(shown, edition, 0)

        def holds() -> bool:
            leaves = (Multihash.sha3_256(raw).digest for raw in chain.raw_blocks(0, signed.size))
            tree = Frontier().extend(islice(leaves, old.size))
            return tree.root == old.root and tree.extend(leaves).root == signed.root

        return await trio.to_thread.run_sync(holds)

    async def _blocks(self, shown: LastSeen, edition: Edition, size: int, sink: ChainSink, pace: Pace) -> None:
        try:
            await self._fill(shown, edition, size, sink, pace)
        except Invalid as fault:
            raise await self._does_not_hold(shown, edition, fault) from fault

    async def _does_not_hold(self, shown: LastSeen, edition: Edition, fault: Invalid) -> Remote:
        self._shown.pop(shown.peer, None)
        await shown.source.forget(edition.head.dataset.multibase)
        return Remote(
            f"what is published under {as_written(edition.root)} does not hold: {fault.message}", rule=fault.rule,
            hint="its owner has to publish it again, or the server lies",
        )  # fmt: skip

    async def _fill(self, shown: LastSeen, edition: Edition, size: int, sink: ChainSink, pace: Pace) -> None:
        start, whole = sink.size, edition.head.size
        if whole - start <= shown.source.few:
            few = await shown.source.last_blocks(edition.root, edition.head.head, whole - start)
            if few is not None:
                pace.take(sum(map(len, few)), trio.current_time())
                await trio.to_thread.run_sync(sink.append, shown.peer, start, few[: size - start])
                await trio.to_thread.run_sync(sink.finish)
                return
        chain = await self._staged(shown, edition, start)

        def show() -> int:
            raws, count = chain.raw_blocks(start, size), 0
            while page := list(islice(raws, BATCH)):
                sink.append(shown.peer, sink.size, page)
                count += sum(map(len, page))
            sink.finish()
            return count

        # The blocks came in one piece, for which later transfers have to wait.
        pace.take(await trio.to_thread.run_sync(show), trio.current_time())
        if size == whole:
            await shown.source.forget(edition.head.dataset.multibase)

    async def _object(self, shown: LastSeen, name: Multihash, size: int, sink: ObjectSink, pace: Pace) -> None:
        """Fetches an object, again after each interruption if at least ``WRITE`` bytes came since the last one."""
        while True:
            before = sink.received
            try:
                await self._rest(shown, name, size, sink, pace)
                break
            except Remote:
                if sink.received < before + WRITE:
                    raise
        try:
            await trio.to_thread.run_sync(sink.finish)
        except Invalid as fault:
            raise Remote(f"{as_written(shown.root)} gave wrong bytes: {fault.message}", rule=fault.rule) from fault

    async def _rest(self, shown: LastSeen, name: Multihash, size: int, sink: ObjectSink, pace: Pace) -> None:
        if sink.received == size:
            return
        at = as_written(shown.root)
        waiting = bytearray()
        async with (
            shown.source.object_from(shown.root, name, sink.received) as parts,
            aclosing(paced(parts, pace)) as slowed,
        ):
            try:
                async for part in slowed:
                    if sink.received + len(waiting) + len(part) > size:
                        raise Remote(f"{at} gives more of {name.short} than it has", rule="object-size")
                    if not waiting and len(part) >= WRITE:  # as those of buckets are: they are not copied again
                        await trio.to_thread.run_sync(sink.write, part)
                        continue
                    waiting += part
                    if len(waiting) >= WRITE:
                        await trio.to_thread.run_sync(sink.write, bytes(waiting))
                        waiting.clear()
            finally:
                with trio.CancelScope(shield=True):
                    if sink.received + len(waiting) <= size:
                        await trio.to_thread.run_sync(sink.write, bytes(waiting))
        if sink.received < size:
            raise Remote(f"{at} ended in the middle of {name.short}", rule="object-size")
