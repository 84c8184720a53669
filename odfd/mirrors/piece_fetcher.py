"""Fetches one large object together with others that fetch it, in pieces that each of them passes on (ADR 65).

The publisher signed a list of the hashes of the pieces, which mirrors pass on too. A piece counts when it fits, and is
given to others from then on; one that does not is the fault of the peer that gave it, since nobody tells of pieces by a
list that is not the one of its own. The whole counts when it hashes to its name; where it does not, the list is false,
and the object is fetched in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import SystemRandom
from typing import Final

import structlog
import trio

from chain.errors import Invalid, Remote
from chain.multihash import Multihash
from chain.store.objects import DiskObjects
from odfd.datasets.pieces import PieceFile, PieceSink
from odfd.datasets.uncommitted_objects import UncommittedObjects
from odfd.errors import sole_faults
from odfd.mirrors.mirror_state import MirrorProgress
from odfd.mirrors.swarm_fetcher import MAX_MEMBERS, SwarmGoal, SwarmRun
from odfd.published.replication import Replication
from p2p.identity import did_of_peer
from p2p.machines.swarm import Swarm, SwarmPiece
from p2p.pace import Pace
from p2p.peers.book import BAD_BYTES
from p2p.ports import HeldParts, PeerId, PiecesAsk
from p2p.wire.swarm import PieceList, is_signed

LIST_PATIENCE: Final = 10.0
"""Seconds until somebody shows the list: a publisher reads a large object once for it."""
_LOG: Final = structlog.get_logger("odfd.mirrors")


class PieceFetcher:
    """The large objects of one node."""

    def __init__(
        self, objects: DiskObjects, partial: Path, replication: Replication, arriving: UncommittedObjects
    ) -> None:
        self._objects = objects
        self._partial = partial
        self._replication = replication
        self._arriving = arriving

    async def fetch(
        self, goal: SwarmGoal, name: Multihash, size: int, tally: MirrorProgress, pace: Pace | None
    ) -> None:
        """Brings an object, or a part of it that a fetch in order goes on with. Raises Environment."""
        if goal.publisher is None or (made := await self._list(goal, goal.publisher, name, size)) is None:
            return
        file = await trio.to_thread.run_sync(PieceFile, self._partial / str(name), made)
        try:
            with self._arriving.pieces(file):
                run = _Run(self._replication, goal, file, tally, pace)
                await run.run(self._arriving)
                if file.is_whole:
                    await trio.to_thread.run_sync(file.finish, self._objects)
        except Invalid as fault:
            self._arriving.lists.forget(name)
            # Every piece fitted the list that it signed, and the object does not hash to its name (replication.md,
            # pieces).
            self._replication.penalise(goal.publisher, fault.message, BAD_BYTES)
            _LOG.warning("a large object is fetched in order", object=name.short, why=fault.message)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(file.close)

    async def _list(self, goal: SwarmGoal, publisher: PeerId, name: Multihash, size: int) -> PieceList | None:
        """The list that the publisher's node signed, from whoever has it."""
        key = did_of_peer(publisher).public_key
        known = self._arriving.lists.get(name)
        if known is not None and known.signature and is_signed(known, key):
            return known
        connected = [view.peer for view in self._replication.peers() if view.connected and not view.blocked]
        found: list[PieceList] = []

        async def ask(peer: PeerId) -> None:
            try:
                told = await self._replication.piece_list(peer, goal.dataset, name, size)
            except Remote:
                return
            if told is None:
                return
            made = PieceList(name, size, *told)
            if not await trio.to_thread.run_sync(is_signed, made, key):
                self._replication.penalise(peer, f"a list of pieces of {name.short} that has no signature", BAD_BYTES)
                return
            found.append(made)
            nursery.cancel_scope.cancel()

        with trio.move_on_after(LIST_PATIENCE), sole_faults():
            async with trio.open_nursery() as nursery:
                for peer in _first(publisher, connected)[:MAX_MEMBERS]:
                    nursery.start_soon(ask, peer)
        if not found:
            return None
        self._arriving.lists.keep(found[0])
        return found[0]


def _first(publisher: PeerId, connected: Sequence[PeerId]) -> list[PeerId]:
    return sorted(connected, key=lambda peer: peer != publisher)


class _Run:
    """Of one object. Implements ``SwarmSource``."""

    def __init__(
        self, replication: Replication, goal: SwarmGoal, file: PieceFile, tally: MirrorProgress, pace: Pace | None
    ) -> None:
        self._replication = replication
        self._goal = goal
        self._file = file
        self._tally = tally
        self._pace = pace

    async def run(self, arriving: UncommittedObjects) -> None:
        """Raises Environment."""
        made = self._file.list
        spans = [made.span(number) for number in range(made.count)]
        pieces = [SwarmPiece(number, number + 1, stop - start) for number, (start, stop) in enumerate(spans)]
        here = [number for number in range(made.count) if self._file.have >> number & 1]
        plan = Swarm(pieces, here, SystemRandom(), self._goal.publisher, trio.current_time())
        run = SwarmRun(self._replication, plan, self, self._goal.publisher, arriving.counts)
        await run.run()
        _LOG.info("fetched pieces together with other mirrors", object=made.name.short, **run.outcome())

    async def ask(self, peer: PeerId, have: int) -> HeldParts | None:
        made = self._file.list
        ask = PiecesAsk(dataset=self._goal.dataset, name=made.name, size=made.size, root=made.root, have=have)
        return await self._replication.ask_pieces(peer, ask)

    async def take(self, peer: PeerId, piece: int) -> int:
        sink, made = PieceSink(self._file, piece), self._file.list
        await self._replication.fetch_object([peer], made.name, made.size, sink, self._pace)
        start, stop = made.span(piece)
        self._tally.ahead += stop - start
        return stop - start

    def came(self, have: int) -> None:
        """The file knows what is here."""
