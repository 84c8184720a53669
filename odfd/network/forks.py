"""Finds the block where a contradicting history leaves ours, and makes the proof of the fork.

A signed head that contradicts our chain proves only that another branch exists; a head of a longer history does not
even prove that, until its blocks are seen not to extend ours (``doubt``). The peer that sent the head is asked for
blocks, by bisection, until the first different one is found, and then for the branch from there on; the branch's tree
must be the signed one. Every block is verified: a wrong one makes no proof. One contradiction is examined at a time,
with one peer at a time; those that do not fit the queue are found again when they are repeated. Runs while ``run``
does. Spec: docs/spec/trust.md#forks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

import msgspec
import trio
from cachetools import FIFOCache

from chain.backoff import Backoff
from chain.errors import Fault, Invalid
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements import proof as proofs
from chain.statements.proof import Proof
from chain.statements.statement import HeadStatement
from chain.statements.tree import Frontier, Tree
from chain.store.base import ChainStore, leaves
from chain.store.database import Database
from odfd.runtime.supervision import Life, Logger
from odfd.store.ledger.log import Ledger
from odfd.store.ledger.proofs import Proofs
from odfd.store.ledger.signed_heads import signed_heads
from p2p.machines.declined import Declined
from p2p.ports import PeerId, PeerView

MAX_BRANCH: Final = 65_536
"""Blocks of another branch that are fetched for a proof."""
MAX_PEERS: Final = 8
"""Peers asked for one branch."""
WAITING: Final = 16
DOUBT_SECONDS: Final = 300.0
"""Interval of checks of a dataset whose newest head no peer has proven to extend our chain."""
MAX_DOUBTED: Final = 1024
"""Datasets whose last check is remembered."""
PAUSES: Final = Backoff(first=300.0, most=86400.0)
"""Waits before a peer is asked again for a branch, after it showed a different one."""
MAX_DECLINED: Final = 4096
_RANGE: Final = 1 << 20


class ForkPeers(Protocol):
    """The part of the replication port that this module uses."""

    def peers(self) -> Sequence[PeerView]: ...

    async def fetch_blocks(self, peer: PeerId, dataset: DatasetId, start: int, max_bytes: int) -> Sequence[bytes]:
        """Raises Remote."""


class Contradiction(msgspec.Struct, frozen=True):
    """A head of another history, and the peer that sent it."""

    head: HeadStatement
    envelope: bytes
    sender: PeerId | None = None


class UnprovenExtension(msgspec.Struct, frozen=True):
    """A longer history was signed, and no peer has proven that it extends ours."""

    dataset: DatasetId
    sender: PeerId | None = None


class ForkFinder:
    """Finds the forks of one node. ``keep`` stores a proof and gossips it."""

    def __init__(
        self, database: Database, chains: ChainStore, peers: ForkPeers, keep: Callable[[Proof], bool], logger: Logger
    ) -> None:
        self._database = database
        self._chains = chains
        self._peers = peers
        self._keep = keep
        self._logger = logger
        self._declined = Declined[tuple[PeerId, bytes]](PAUSES, MAX_DECLINED)
        """Peers that showed a branch other than the signed one, by the signed root."""
        self._put, self._take = trio.open_memory_channel[Contradiction | UnprovenExtension](WAITING)
        self._doubted: FIFOCache[DatasetId, float] = FIFOCache(MAX_DOUBTED)
        """When each dataset was last checked, by trio's clock."""

    def doubt(self, dataset: DatasetId, sender: PeerId | None = None) -> bool:
        """Queues a check whether the newest head is of another history, at most every DOUBT_SECONDS."""
        now = trio.current_time()
        if now - self._doubted.get(dataset, -math.inf) < DOUBT_SECONDS:
            return False
        self._doubted[dataset] = now
        return self.put(UnprovenExtension(dataset, sender))

    def put(self, found: Contradiction | UnprovenExtension) -> bool:
        """Queues a contradiction; returns ``False`` if the queue is full. From the event loop."""
        try:
            self._put.send_nowait(found)
        except trio.WouldBlock:
            return False
        return True

    async def run(self, life: Life) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._work)
            life.ready()
            await life.stopping.wait()
            nursery.cancel_scope.cancel()

    async def _work(self) -> None:
        async for taken in self._take:
            is_doubt = isinstance(taken, UnprovenExtension)
            found = (
                await trio.to_thread.run_sync(self._longer, taken) if isinstance(taken, UnprovenExtension) else taken
            )
            made = None if found is None else await self.look(found)
            if made is None and found is not None and not is_doubt:
                self._logger.info(
                    "a head contradicts ours and no peer shows its branch", dataset=found.head.dataset.short
                )

    async def look(self, found: Contradiction) -> Proof | None:
        """Examines a contradiction. Returns the stored proof; ``None`` if no peer shows the signed branch."""
        ours = await trio.to_thread.run_sync(self._ours, found.head.dataset)
        connected = [peer.peer for peer in self._peers.peers() if peer.connected and peer.peer != found.sender]
        shown = [] if found.sender is None else [found.sender]
        now, root = trio.current_time(), found.head.root_hash
        able = [each for each in [*shown, *connected] if not self._declined.rests((each, root), now)]
        for peer in able[:MAX_PEERS]:
            try:
                theirs = await self._branch(peer, found.head, ours)
            except Fault as fault:
                self._logger.info("no branch shown", peer=peer, fault=str(fault), rule=fault.rule)
                continue
            if theirs is None:
                continue
            made = await trio.to_thread.run_sync(self._prove, found, ours, theirs)
            if made is not None:
                await trio.to_thread.run_sync(self._keep, made)
                return made
        return None

    def _longer(self, doubt: UnprovenExtension) -> Contradiction | None:
        """Returns the newest head as a contradiction if it is longer than our chain and no fork of it is known."""
        with self._database.read() as connection:
            ledger = Ledger(connection)
            newest, checked = ledger.newest_head(doubt.dataset), ledger.chain(doubt.dataset)
            proven = Proofs(connection).forked_at(doubt.dataset, checked.epoch) is not None
        if proven or newest is None or newest[0].epoch != checked.epoch or newest[0].size <= checked.frontier.size:
            return None
        return Contradiction(newest[0], newest[1].envelope, doubt.sender)

    def _ours(self, dataset: DatasetId) -> list[bytes]:
        reader = self._chains.chain(dataset)
        head = reader.head()
        return [] if head is None else leaves(reader, 0, head.size)

    async def _branch(self, peer: PeerId, head: HeadStatement, ours: Sequence[bytes]) -> list[bytes] | None:
        """Fetches the leaves of the other tree; ``None`` if this peer's chain is not the signed one."""
        index = await self._first_difference(peer, head, ours)
        if index == min(len(ours), head.size):
            return None  # one begins with the other: this peer shows no fork
        if head.size - index > MAX_BRANCH:
            raise Invalid(f"a branch of {head.size - index:,} blocks", rule="fork-branch")
        branch = list(ours[:index])
        while len(branch) < head.size:
            blocks = await self._peers.fetch_blocks(peer, head.dataset, len(branch), _RANGE)
            if not blocks:
                return None
            branch += [Multihash.sha3_256(raw).digest for raw in blocks]
        del branch[head.size :]
        root = await trio.to_thread.run_sync(lambda: Frontier().extend(branch).root)
        if root == head.root_hash:
            return branch
        # Else it would be fetched whenever the head is repeated (test_a_branch_that_is_another_is_not_fetched_again).
        self._declined.note((peer, head.root_hash), trio.current_time(), "its branch is not the one that was signed")
        return None

    async def _first_difference(self, peer: PeerId, head: HeadStatement, ours: Sequence[bytes]) -> int:
        """Finds the first different block by bisection: linked by hash, two chains stay different once they differ."""
        low, high = 0, min(len(ours), head.size)
        while low < high:
            middle = (low + high) // 2
            blocks = await self._peers.fetch_blocks(peer, head.dataset, middle, 1)
            if blocks and Multihash.sha3_256(blocks[0]).digest == ours[middle]:
                low = middle + 1
            else:
                high = middle
        return low

    def _prove(self, found: Contradiction, ours: Sequence[bytes], theirs: Sequence[bytes]) -> Proof | None:
        """Makes the proof from any head that the epoch's writer signed of our history, if it covers the difference."""
        tree = Tree(lambda start, stop: ours[start:stop])
        with self._database.read() as connection:
            for head, signed in signed_heads(connection, found.head.dataset):
                if head.epoch != found.head.epoch or head.size > len(ours) or tree.root(head.size) != head.root_hash:
                    continue
                try:
                    return proofs.fork(signed, found.envelope, partial(_slice, ours), partial(_slice, theirs))
                except Invalid as fault:
                    self._logger.info("no fork after all", dataset=head.dataset.short, fault=str(fault))
        return None


def _slice(leaves: Sequence[bytes], start: int, stop: int) -> Sequence[bytes]:
    return leaves[start:stop]
