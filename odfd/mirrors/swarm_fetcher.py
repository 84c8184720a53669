"""Fetches the objects of some blocks together with other mirrors that fetch them too (ADR 61).

Asks connected peers every two seconds which of the objects they have, takes what ``p2p.machines.swarm`` plans, and so
leaves the publisher's line to those who have nothing yet. It ends when all is here, or when nobody gives anything for
long; what is left is fetched in order from peers that have all, as without it. ``SwarmRun`` is the part that pieces of
one large object share (``piece_fetcher``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Sequence
from random import SystemRandom
from typing import Final, Protocol, TypeAlias

import msgspec
import structlog
import trio

from chain.errors import Remote
from chain.ids import DatasetId
from chain.model.block import NamedObject, SealedBlock
from chain.multihash import Multihash
from odfd.datasets.uncommitted_objects import SwarmCounts, UncommittedStep
from odfd.published.replication import Replication
from p2p.machines.swarm import Swarm, TakePiece, pieces_of
from p2p.ports import HeldParts, PartsAsk, PeerId, Tip
from p2p.wire.limits import MAX_PACK, MAX_SWARM_BLOCKS

LEAST: Final = 8 << 20
"""Missing bytes below which no peer is asked: a few answers bring them."""
PIECE: Final = 1 << 20
"""Bytes of small objects that are fetched from one peer at once."""
EVERY: Final = 2.0
"""Seconds between questions to one peer; ten times as many for a peer that has nothing."""
SOON: Final = 0.25
"""Seconds after which a publisher is asked again when its offers are used up."""
LOOK: Final = 1.0
"""Seconds between checks which peers are connected and which answers are late."""
MAX_MEMBERS: Final = 48
"""Peers that are asked at most."""
FIRST_WORD: Final = 3.0
"""Seconds in which some peer must say that it has objects; otherwise all are fetched in order."""
_LOG = structlog.get_logger("odfd.mirrors")
TakeFrom: TypeAlias = Callable[[PeerId, Sequence[NamedObject]], Awaitable[None]]
"""Fetches objects from one peer. Raises Remote."""


class SwarmSource(Protocol):
    """The thing that is fetched: asks one peer for pieces, and takes them from it."""

    async def ask(self, peer: PeerId, have: int) -> HeldParts | None:
        """Asks a peer what it has. Raises Remote."""

    async def take(self, peer: PeerId, piece: int) -> int:
        """Brings a piece, and returns its bytes. Raises Remote."""

    def came(self, have: int) -> None:
        """Notes what is here."""


class SwarmGoal(msgspec.Struct, frozen=True):
    """A history whose objects are wanted, and the peer that publishes it, if known."""

    dataset: DatasetId
    tip: Tip
    publisher: PeerId | None = None


class SwarmStep(msgspec.Struct, frozen=True):
    """A goal, and the record of its blocks' objects that is shown to other peers meanwhile."""

    goal: SwarmGoal
    step: UncommittedStep


class SwarmFetch:
    """Fetches the objects of one step's blocks with other mirrors."""

    def __init__(
        self,
        replication: Replication,
        swarm: SwarmStep,
        blocks: Sequence[SealedBlock],
        missing: Container[Multihash],
        take: TakeFrom,
        counts: SwarmCounts | None = None,
    ) -> None:
        self._replication = replication
        self._goal, self._step = swarm.goal, swarm.step
        self._take_from = take
        self._blocks = blocks[:MAX_SWARM_BLOCKS]
        pieces = pieces_of([[size for _, size in block.objects] for block in self._blocks], PIECE, MAX_PACK)
        self._wanted = [
            [
                named
                for block in self._blocks[piece.start : piece.stop]
                for named in block.objects
                if named[0] in missing
            ]
            for piece in pieces
        ]
        here = [number for number, wanted in enumerate(self._wanted) if not wanted]
        plan = Swarm(pieces, here, SystemRandom(), self._goal.publisher, trio.current_time())
        self._run = SwarmRun(replication, plan, self, self._goal.publisher, counts)

    async def run(self) -> None:
        """Raises Environment. That peers give nothing is no fault here."""
        await self._run.run()
        _LOG.info("fetched together with other mirrors", dataset=self._goal.dataset.short, **self._run.outcome())

    async def ask(self, peer: PeerId, have: int) -> HeldParts | None:
        goal, count = self._goal, len(self._blocks)
        ask = PartsAsk(dataset=goal.dataset, tip=goal.tip, start=self._step.start, count=count, have=have)
        return await self._replication.ask_parts(peer, ask)

    async def take(self, peer: PeerId, piece: int) -> int:
        wanted = self._wanted[piece]
        await self._take_from(peer, wanted)
        return sum(size for _, size in wanted)

    def came(self, have: int) -> None:
        self._step.have |= have


class SwarmRun:
    """Asks, plans and takes until all is here or nobody gives anything."""

    def __init__(
        self,
        replication: Replication,
        plan: Swarm,
        source: SwarmSource,
        publisher: PeerId | None,
        counts: SwarmCounts | None = None,
    ) -> None:
        self._replication = replication
        self._swarm = plan
        self._source = source
        self._publisher = publisher
        self._counts = counts or SwarmCounts()
        self._asked: set[PeerId] = set()
        self._wanting: dict[PeerId, trio.Event] = {}
        self._taking: dict[int, trio.CancelScope] = {}
        self._moved = trio.Event()
        self._told = False
        self._unheard: set[PeerId] = set()
        """Peers that were asked and have not answered yet."""
        self.bytes = 0
        """Bytes that came."""

    async def run(self) -> None:
        """Runs until all is here or no more comes. Raises Environment; peers that give nothing are no fault here."""
        began = trio.current_time()
        self._source.came(self._swarm.have())
        async with trio.open_nursery() as self._nursery:
            while not self._swarm.done and not self._swarm.is_hopeless(trio.current_time()):
                self._moved = trio.Event()
                self._meet()
                if not self._told and (trio.current_time() - began > FIRST_WORD or not self._unheard):
                    break
                self._act()
                with trio.move_on_after(LOOK):
                    await self._moved.wait()
            self._nursery.cancel_scope.cancel()

    def outcome(self) -> dict[str, int | bool]:
        """For the log."""
        return {"bytes": self.bytes, "left": len(self._swarm.left), "whole": self._swarm.done}

    def _meet(self) -> None:
        """Begins to ask peers that are connected, and forgets those that are not."""
        connected = {view.peer for view in self._replication.peers() if view.connected and not view.blocked}
        for peer in [peer for peer in self._asked if peer not in connected]:
            for piece in self._swarm.went(peer):
                self._cancel(piece)
        for peer in sorted(connected - self._asked - self._swarm.left)[: MAX_MEMBERS - len(self._asked & connected)]:
            self._asked.add(peer)
            self._unheard.add(peer)
            self._nursery.start_soon(self._ask, peer)

    async def _ask(self, peer: PeerId) -> None:
        pause = 0.0
        try:
            while peer not in self._swarm.left:
                wanting = self._wanting[peer] = trio.Event()
                if pause:
                    with trio.move_on_after(pause):
                        await wanting.wait()
                        await trio.sleep(SOON)
                pause = EVERY if await self._told_by(peer) else 10 * EVERY
        except Remote:
            await trio.sleep(10 * EVERY)  # it knows no such question, or is gone
        finally:
            self._asked.discard(peer)

    async def _told_by(self, peer: PeerId) -> bool:
        try:
            parts = await self._source.ask(peer, self._swarm.have())
        finally:
            self._unheard.discard(peer)
            self._moved.set()
        if parts is None:
            return False
        self._told = True
        self._swarm.take_parts(peer, parts, trio.current_time())
        self._moved.set()
        return True

    def _act(self) -> None:
        for step in self._swarm.plan(trio.current_time()):
            if isinstance(step, TakePiece):
                self._nursery.start_soon(self._take, step)
            else:
                self._cancel(step.piece)
        for peer, wanting in self._wanting.items():
            if self._swarm.wants_word(peer):
                wanting.set()

    def _cancel(self, piece: int) -> None:
        if (scope := self._taking.pop(piece, None)) is not None:
            scope.cancel()

    async def _take(self, step: TakePiece) -> None:
        with trio.CancelScope() as scope:
            self._taking[step.piece] = scope
            try:
                size = await self._source.take(step.peer, step.piece)
            except Remote as fault:
                _LOG.debug("a peer did not send what it offered", peer=step.peer, fault=str(fault))
                self._end(step, scope)
                self._counts.refused += 1
                self._swarm.note_failure(step.piece, step.peer)
            else:
                self._end(step, scope)
                self._count(step.peer, size)
                self._swarm.got(step.piece, trio.current_time())
                self._source.came(self._swarm.have())
        self._moved.set()

    def _end(self, step: TakePiece, scope: trio.CancelScope) -> None:
        if self._taking.get(step.piece) is scope:
            del self._taking[step.piece]

    def _count(self, peer: PeerId, size: int) -> None:
        self.bytes += size
        if peer == self._publisher:
            self._counts.from_publisher += 1
            self._counts.bytes_from_publisher += size
        else:
            self._counts.from_mirrors += 1
            self._counts.bytes_from_mirrors += size
