"""One pass over one mirror: from what is here to the newest signed head, everything checked before the head moves.

Blocks are judged as they arrive and proven by the signed tree; objects come several at a time, are hashed on the way
and checked against their blocks; then blocks, references and the chain's tree are one transaction. A pass that is cut
off anywhere leaves the old head, and what arrived of objects is kept for the next pass.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import trio

from chain.errors import Fault, Invalid, Remote
from chain.ids import DatasetId
from chain.model.block import Block
from chain.multihash import Multihash
from chain.state import ChainState, load_state
from chain.statements.statement import HeadStatement
from chain.store.base import Append, ChainReader, Head
from chain.store.database import Database
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChains
from odfd.datasets.references import keep_references, objects_of
from odfd.errors import sole_fault
from odfd.mirrors.sinks import PartialObject, VerifiedChain
from odfd.mirrors.wish import Wish
from odfd.trust.ledger import Checked, Ledger
from odfd.verify.objects import check_event
from p2p.ports import PeerId, Replication

AT_ONCE: Final = 4
"""Objects on their way at the same time, for one mirror."""
PROBE_SECONDS: Final = 10.0
"""How long a peer may take to say what it holds."""


class Tally(msgspec.Struct):
    """Progress of a mirror, for people; changes while a pass runs."""

    blocks: int = 0
    blocks_wanted: int = 0
    slices: int = 0
    slices_wanted: int = 0
    bytes: int = 0
    bytes_wanted: int = 0


class Synced(msgspec.Struct, frozen=True):
    """The head moved by ``blocks``; ``peers`` hold the dataset."""

    head: Head
    blocks: int
    objects: int
    peers: int


class Current(msgspec.Struct, frozen=True):
    """There is nothing newer that is signed."""

    peers: int


class Waiting(msgspec.Struct, frozen=True):
    """Nobody can give what is wished now."""

    reason: str


Outcome: TypeAlias = Synced | Current | Waiting


class _Held(msgspec.Struct, frozen=True):
    """What is here when a pass begins."""

    state: ChainState
    checked: Checked
    head: HeadStatement | None
    """Newest signed head known."""


class MirrorSync:
    """Brings mirrors up to date. One pass at a time for each dataset; the caller sees to that."""

    def __init__(
        self, database: Database, chains: SqliteChains, objects: DiskObjects, partial: Path, replication: Replication
    ) -> None:
        self._database = database
        self._chains = chains
        self._objects = objects
        self._partial = partial
        self._replication = replication

    async def sync(self, wish: Wish, tally: Tally) -> Outcome:
        """Raises Remote (peers), Invalid (the chain itself breaks a rule), Environment (our disk)."""
        held = await trio.to_thread.run_sync(self._held, wish.id)
        if held.head is None:
            return Waiting("no signed head of it was seen yet")
        tally.blocks, tally.blocks_wanted = held.state.size, max(held.head.size, held.state.size)
        behind = held.head.size > held.state.size
        lacks_data = wish.want == "data" and held.checked.data < held.state.size
        peers = await self._holders(wish.id, held.head.size if behind else held.state.size)
        if not behind and not lacks_data:
            return Current(len(peers))
        if not peers:
            return Waiting("no connected peer serves it that far")
        objects = await self._missing_data(wish, held, peers, tally) if lacks_data else 0
        if not behind:
            return Current(len(peers))
        sink = VerifiedChain(held.state, held.checked.frontier, held.head)
        await self._replication.pull_chain(peers, wish.id, held.head.size, sink)
        self._check_expected(wish, sink, held)
        tally.blocks = sink.size
        if wish.want == "data":
            objects += await self._fetch_all(peers, list(zip(sink.states, sink.blocks, strict=True)), tally)
        head = await trio.to_thread.run_sync(self._commit, wish, held, sink)
        return Synced(head, len(sink.blocks), objects, len(peers))

    async def repair(self, dataset: DatasetId, names: Sequence[tuple[Multihash, int]]) -> int:
        """Fetch objects anew, over damaged ones. Raises Remote."""
        head = await trio.to_thread.run_sync(self._chains.chain(dataset).head)
        peers = await self._holders(dataset, head.size if head else 1)
        for name, size in names:
            await self._fetch_one(peers, name, size)
        return len(names)

    def _held(self, dataset: DatasetId) -> _Held:
        with self._database.read() as connection:
            ledger = Ledger(connection)
            newest, checked = ledger.newest_head(dataset), ledger.chain(dataset)
        return _Held(load_state(self._chains.chain(dataset)), checked, newest[0] if newest else None)

    async def _holders(self, dataset: DatasetId, size: int) -> list[PeerId]:
        """Connected peers that serve at least ``size`` blocks."""
        found: list[PeerId] = []

        async def ask(peer: PeerId) -> None:
            with trio.move_on_after(PROBE_SECONDS):
                try:
                    if await self._replication.chain_size(peer, dataset) >= size:
                        found.append(peer)
                except Remote:
                    return  # one that does not answer does not hold it; the layer below keeps score

        async with trio.open_nursery() as nursery:
            for view in self._replication.peers():
                if view.connected and not view.blocked:
                    nursery.start_soon(ask, view.peer)
        return found

    async def _missing_data(self, wish: Wish, held: _Held, peers: Sequence[PeerId], tally: Tally) -> int:
        """Objects of blocks that came earlier without them."""
        chain = self._chains.chain(wish.id)
        pairs = await trio.to_thread.run_sync(_states_from, chain, held.checked.data, held.state.size)
        fetched = await self._fetch_all(peers, pairs, tally)

        def note() -> None:
            with self._database.write() as connection:
                ledger = Ledger(connection)
                ledger.keep_chain(wish.id, Checked(ledger.chain(wish.id).frontier, held.state.size))

        await trio.to_thread.run_sync(note)
        return fetched

    async def _fetch_all(self, peers: Sequence[PeerId], pairs: Sequence[tuple[ChainState, Block]], tally: Tally) -> int:
        """Objects of these blocks, several at once, each checked against its block."""
        wanted = [(name, size) for _, block in pairs for name, size in objects_of(block)]
        tally.slices, tally.slices_wanted = 0, len(wanted)
        tally.bytes, tally.bytes_wanted = 0, sum(size for _, size in wanted)
        turns = trio.CapacityLimiter(AT_ONCE)

        async def bring(state: ChainState, block: Block) -> None:
            async with turns:
                for name, size in objects_of(block):
                    if not await trio.to_thread.run_sync(self._objects.has, name):
                        await self._fetch_one(peers, name, size)
                    tally.slices += 1
                    tally.bytes += size
                findings = await trio.to_thread.run_sync(check_event, self._objects, state, block)
                for found in findings:
                    raise Invalid(found.message, rule=found.rule, place=f"block #{block.sequence_number}")

        try:
            async with trio.open_nursery() as nursery:
                for state, block in pairs:
                    nursery.start_soon(bring, state, block)
        except BaseExceptionGroup as group:
            fault = sole_fault(group)
            if fault is None:
                raise
            raise fault from group
        return len(wanted)

    async def _fetch_one(self, peers: Sequence[PeerId], name: Multihash, size: int) -> None:
        sink = await trio.to_thread.run_sync(PartialObject, self._partial, self._objects, name)
        try:
            await self._replication.fetch_object(peers, name, size, sink)
        except Fault:
            await trio.to_thread.run_sync(sink.close)
            raise

    def _check_expected(self, wish: Wish, sink: VerifiedChain, held: _Held) -> None:
        """``expect`` is a hash that a person learned elsewhere: the chain must hold it."""
        if wish.expect is None or held.state.size:
            return
        expected = Multihash.parse(wish.expect)
        if all(block.hash != expected for block in sink.blocks):
            raise Invalid(
                f"the chain does not hold the block {expected.short} that you expect",
                rule="mirror-expect",
                hint="somebody shows you another dataset, or the hash is of a later block",
            )

    def _commit(self, wish: Wish, held: _Held, sink: VerifiedChain) -> Head:
        dataset = wish.id
        data = sink.size if wish.want == "data" else held.checked.data

        def together(connection: sqlite3.Connection) -> None:
            Ledger(connection).keep_chain(dataset, Checked(sink.frontier, data))
            keep_references(connection, dataset, sink.blocks)

        state = held.state
        expected = Head(state.head, state.sequence_number) if state.head else None
        names = [name for block in sink.blocks for name, _ in objects_of(block)] if wish.want == "data" else []
        self._chains.commit([Append(dataset=dataset, expected=expected, blocks=sink.blocks, objects=names)], together)
        return Head(sink.blocks[-1].hash, sink.blocks[-1].sequence_number)


def _states_from(chain: ChainReader, start: int, stop: int) -> list[tuple[ChainState, Block]]:
    """Blocks ``start <= n < stop`` with the state before each; folds the chain once."""
    state = ChainState.EMPTY
    pairs = []
    for number in range(stop):
        block = chain.block_at(number)
        if number >= start:
            pairs.append((state, block))
        state = state.advance(block)
    return pairs
