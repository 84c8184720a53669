"""Replication with IPFS beside the peers: for a dataset that is looked for there, the Kubo is one more who has it.

Implements ``p2p.ports.Replication`` around the network's. Peers are asked first, since they answer for themselves; the
Kubo gives what they cannot. What it gives is checked by the same sinks, so that mirrors know no difference.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Final

import trio

from chain.errors import Invalid, Remote
from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements.tree import Frontier
from odfd.ipfs.source import FEW, Edition, Source, unsigned
from p2p.kubo.rpc import Ipfs
from p2p.ports import (
    ChainSink,
    Judgement,
    Noticeboard,
    ObjectSink,
    PeerId,
    PeerView,
    Replication,
    Topic,
    TreeHead,
)

KUBO: Final = PeerId("ipfs")
"""Stands among peers for the Kubo of this node; no peer can have this id."""
BATCH: Final = 1024
"""Blocks shown to a sink at once."""
WRITE: Final = 1 << 20


class WithIpfs:
    """See the module."""

    def __init__(
        self, network: Replication, ipfs: Ipfs, source: Source, board: Noticeboard, clock: Callable[[], Instant]
    ) -> None:
        self._network = network
        self._ipfs = ipfs
        self._source = source
        self._board = board
        self._clock = clock
        self._editions: dict[DatasetId, Edition] = {}
        self._answers = False
        """Whether the Kubo did when it was asked last: one that does not stands among no peers."""

    async def inquire(self, dataset: DatasetId, place: str) -> None:
        """See what is published at a place now, and show its statements around. Raises Remote, Invalid."""
        self._answers = False
        await self._inquire(dataset, place)
        self._answers = True

    async def _inquire(self, dataset: DatasetId, place: str) -> None:
        root = await self._source.resolve(place, self._clock())
        known = self._editions.get(dataset)
        if known is not None and known.root == root:
            return
        edition = await self._source.edition(root)
        if edition.head is None:
            raise unsigned(root)
        if edition.head.dataset != dataset:
            raise Invalid(f"under {root} is another dataset, {edition.head.dataset.short}", rule="graft")
        for raw in edition.statements:
            if await trio.to_thread.run_sync(self._board.judge, Topic.HEADS, raw, KUBO) is Judgement.REJECT:
                raise Invalid(f"a statement under {root} does not hold", rule="ipfs-statement")
        self._editions[dataset] = edition

    @property
    def peer_id(self) -> PeerId:
        return self._network.peer_id

    def addresses(self) -> Sequence[str]:
        return self._network.addresses()

    async def connect(self, multiaddr: str) -> PeerId:
        return await self._network.connect(multiaddr)

    def peers(self) -> Sequence[PeerView]:
        views = self._network.peers()
        return [*views, PeerView(peer=KUBO, connected=True)] if self._answers and self._editions else views

    async def announce(self, topic: Topic, envelope: bytes) -> None:
        await self._network.announce(topic, envelope)

    async def pull_statements(self, peer: PeerId, datasets: Sequence[DatasetId] | None = None) -> int:
        return 0 if peer == KUBO else await self._network.pull_statements(peer, datasets)

    async def chain_size(self, peer: PeerId, dataset: DatasetId) -> int:
        if peer != KUBO:
            return await self._network.chain_size(peer, dataset)
        edition = self._editions.get(dataset)
        return edition.head.size if edition is not None and edition.head is not None else 0

    async def object_size(self, peer: PeerId, name: Multihash) -> int | None:
        if peer != KUBO:
            return await self._network.object_size(peer, name)
        found = await self._source.object_place(self._roots(), name)
        return None if found is None else found[1]

    async def fetch_blocks(self, peer: PeerId, dataset: DatasetId, start: int, max_bytes: int) -> Sequence[bytes]:
        return await self._network.fetch_blocks(peer, dataset, start, max_bytes)

    async def pull_chain(self, peers: Sequence[PeerId], dataset: DatasetId, size: int, sink: ChainSink) -> None:
        async def ask(others: Sequence[PeerId]) -> None:
            await self._network.pull_chain(others, dataset, size, sink)

        if not await _given(peers, ask):
            await self._blocks(dataset, size, sink)

    async def prove_prefix(self, peers: Sequence[PeerId], dataset: DatasetId, old: TreeHead, signed: TreeHead) -> bool:
        others = [peer for peer in peers if peer != KUBO]
        if others and await self._network.prove_prefix(others, dataset, old, signed):
            return True
        edition = self._editions.get(dataset)
        if KUBO not in peers or edition is None or edition.head is None:
            return False
        chain = await self._source.staged(edition.root, edition.head.head)

        def holds() -> bool:
            leaves = (Multihash.sha3_256(raw).digest for raw in chain.raw_blocks(0, signed.size))
            tree = Frontier().extend(islice(leaves, old.size))
            return tree.root == old.root and tree.extend(leaves).root == signed.root

        return await trio.to_thread.run_sync(holds)

    async def fetch_object(self, peers: Sequence[PeerId], name: Multihash, size: int, sink: ObjectSink) -> None:
        async def ask(others: Sequence[PeerId]) -> None:
            await self._network.fetch_object(others, name, size, sink)

        if not await _given(peers, ask):
            await self._object(name, size, sink)

    async def seek(self, dataset: DatasetId) -> int:
        return await self._network.seek(dataset)

    def penalise(self, peer: PeerId, reason: str, weight: float) -> None:
        """A Kubo cannot be shut out; what it showed is looked at anew."""
        if peer == KUBO:
            self._editions.clear()
        else:
            self._network.penalise(peer, reason, weight)

    def _roots(self) -> list[str]:
        return list(dict.fromkeys(edition.root for edition in self._editions.values()))

    async def _blocks(self, dataset: DatasetId, size: int, sink: ChainSink) -> None:
        edition = self._editions.get(dataset)
        if edition is None or edition.head is None:
            raise Remote(f"{dataset.short} is not known to be on IPFS", rule="no-peer")
        try:
            await self._fill(edition, edition.head.size, edition.head.head, size, sink)
        except Invalid as fault:
            self._editions.pop(dataset, None)
            await self._source.forget_staged()
            raise Remote(
                f"what is on IPFS under {edition.root} does not hold: {fault.message}", rule=fault.rule,
                hint="its owner has to publish it anew, or your Kubo lies",
            ) from fault  # fmt: skip

    async def _fill(self, edition: Edition, whole: int, head: Multihash, size: int, sink: ChainSink) -> None:
        start = sink.size
        if whole - start <= FEW:
            few = await self._source.last_blocks(edition.root, head, whole - start)
            if few is not None:
                await trio.to_thread.run_sync(sink.append, KUBO, start, few[: size - start])
                await trio.to_thread.run_sync(sink.finish)
                return
        chain = await self._source.staged(edition.root, head)

        def show() -> None:
            raws = chain.raw_blocks(start, size)
            while page := list(islice(raws, BATCH)):
                sink.append(KUBO, sink.size, page)
            sink.finish()

        await trio.to_thread.run_sync(show)
        if size == whole:
            await self._source.forget_staged()

    async def _object(self, name: Multihash, size: int, sink: ObjectSink) -> None:
        found = await self._source.object_place(self._roots(), name)
        if found is None or found[1] != size:
            raise Remote(f"object {name.short} is not on IPFS as its block says", rule="no-peer")
        async with self._ipfs.open(found[0], sink.received) as parts:
            waiting = bytearray()
            async for part in parts:
                waiting += part
                if sink.received + len(waiting) > size:
                    raise Remote(f"the Kubo gives more of {name.short} than it has", rule="object-size")
                if len(waiting) >= WRITE:
                    await trio.to_thread.run_sync(sink.write, bytes(waiting))
                    waiting.clear()
            await trio.to_thread.run_sync(sink.write, bytes(waiting))
        if sink.received < size:
            raise Remote(f"the Kubo ended in the middle of {name.short}", rule="object-size")
        try:
            await trio.to_thread.run_sync(sink.finish)
        except Invalid as fault:
            raise Remote(f"the Kubo gave wrong bytes: {fault.message}", rule=fault.rule) from fault


async def _given(peers: Sequence[PeerId], ask: Callable[[Sequence[PeerId]], Awaitable[None]]) -> bool:
    """Whether peers gave it; ``False``: it is for the Kubo. Raises Remote when it cannot be asked either."""
    others = [peer for peer in peers if peer != KUBO]
    if not others and KUBO in peers:
        return False
    try:
        await ask(others)
    except Remote:
        if KUBO not in peers:
            raise
        return False
    return True
