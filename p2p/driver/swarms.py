"""Tells peers which objects of a dataset are here while others fetch them too, and asks peers for the same (ADR 61).

The same of pieces of one large object, by a list of their hashes (ADR 65).

Made with the driver. One question and one answer a stream. What is here, and what is offered to whom, the library
decides. A node that serves the dataset also names some of those who asked lately, so that they meet: each of them
signed its presence, and an asker dials a few.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Final, TypeVar

import trio
from cachetools import LRUCache

from chain.errors import Invalid
from chain.ids import DatasetId
from p2p.budget.buckets import Budget, Rate
from p2p.budget.work import PIECE_LIST, PRESENCE, SWARM_QUESTION
from p2p.driver.discovery import Discovery
from p2p.driver.framing import FramedStream
from p2p.driver.inbound import StreamSlots, contain
from p2p.driver.peer_penalties import PeerPenalties
from p2p.driver.ports import HostPort, StreamPort
from p2p.errors import Misbehaviour, StreamBroken, TooSlow
from p2p.peers.book import GARBAGE
from p2p.ports import HeldParts, Library, PartsAsk, PeerId, PiecesAsk
from p2p.wire import swarm
from p2p.wire.limits import (
    MAX_PIECES_ANSWER,
    MAX_PIECES_ASK,
    MAX_SWARM_ANSWER,
    MAX_SWARM_ASK,
    MAX_SWARM_PEERS,
)
from p2p.wire.presence import Presence
from p2p.wire.swarm import (
    NONE,
    PIECES_PROTOCOL,
    SWARM_PROTOCOL,
    PartsTold,
    PieceList,
    PieceListAsk,
    decode_parts,
    decode_told,
    encode_parts,
    encode_told,
)

PATIENCE: Final = 10.0
"""Seconds for one question and its answer."""
MAX_STREAMS: Final = 2
"""Inbound streams of one peer: each is for one question."""
ASK_RATE: Final = Rate(per_second=4.0, burst=64.0)
"""Questions of one peer; those beyond wait."""
LATELY: Final = 30.0
"""Seconds after which a peer that asked is not named to others."""
MAX_ASKERS: Final = 256
"""Peers remembered of one dataset."""
MAX_DATASETS: Final = 64
"""Datasets of which peers are remembered."""
MEET_RATE: Final = Rate(per_second=1 / 60, burst=16.0)
"""Dials to others that a holder named, for one dataset."""
Visit = Callable[[Presence], Awaitable[object]]
Serve = Callable[[FramedStream], Awaitable[None]]
Told = TypeVar("Told")


class Swarms:
    """Both sides, of one node in one network."""

    def __init__(
        self,
        host: HostPort,
        library: Library,
        standing: PeerPenalties,
        discovery: Discovery,
        visit: Visit,
        rng: Random,
    ) -> None:
        """``visit`` dials whom somebody named."""
        self._host = host
        self._library = library
        self._standing = standing
        self._discovery = discovery
        self._visit = visit
        self._rng = rng
        self._places = StreamSlots(standing, MAX_STREAMS)
        self._rate = Budget[PeerId](ASK_RATE)
        self._meetings = Budget[DatasetId](MEET_RATE)
        self._askers: LRUCache[DatasetId, LRUCache[PeerId, float]] = LRUCache(MAX_DATASETS)

    def join(self) -> None:
        self._host.set_handler(SWARM_PROTOCOL, partial(self._accept, MAX_SWARM_ASK, self._serve))
        self._host.set_handler(PIECES_PROTOCOL, partial(self._accept, MAX_PIECES_ASK, self._serve_pieces))

    # Asking

    async def ask(self, peer: PeerId, ask: PartsAsk, nursery: trio.Nursery) -> HeldParts | None:
        """Asks one peer, and meets some of those whom it names in ``nursery``. Raises PeerFault."""
        decode = partial(decode_told, count=ask.count)
        told = await self._question(peer, SWARM_PROTOCOL, MAX_SWARM_ANSWER, encode_parts(ask), decode)
        return await self._take_answer(peer, ask.dataset, told, nursery)

    async def ask_pieces(self, peer: PeerId, ask: PiecesAsk, nursery: trio.Nursery) -> HeldParts | None:
        """The same of pieces."""
        decode = partial(decode_told, count=swarm.piece_count(ask.size))
        told = await self._question(peer, PIECES_PROTOCOL, MAX_PIECES_ANSWER, swarm.encode_pieces_ask(ask), decode)
        return await self._take_answer(peer, ask.dataset, told, nursery)

    async def piece_list(self, peer: PeerId, ask: PieceListAsk) -> PieceList | None:
        """The list that a peer has, unchecked. Raises PeerFault."""
        decode = partial(swarm.decode_listed, ask=ask)
        return await self._question(peer, PIECES_PROTOCOL, MAX_PIECES_ANSWER, swarm.encode_list_ask(ask), decode)

    async def _question(
        self, peer: PeerId, protocol: str, largest: int, question: bytes, decode: Callable[[bytes], Told]
    ) -> Told:
        with trio.move_on_after(PATIENCE):
            stream = await self._standing.open(peer, protocol, largest, PATIENCE)
            try:
                await stream.write(question)
                body = await stream.read()
                if body is None:
                    raise StreamBroken(peer, "it ended the stream without an answer", rule="swarm-answer")
                return decode(body)
            except Invalid as error:
                fault = Misbehaviour(peer, error.message, rule=error.rule)
                self._standing.blame(fault)
                raise fault from error
            finally:
                await stream.reset()
        raise TooSlow(peer, f"no answer in {PATIENCE:g} s", rule="swarm-patience")

    async def _take_answer(
        self, peer: PeerId, dataset: DatasetId, told: PartsTold, nursery: trio.Nursery
    ) -> HeldParts | None:
        with trio.move_on_after(PATIENCE):
            for raw in told.presences:
                await trio.sleep(self._host.charge(peer, PRESENCE))
                self._meet(peer, dataset, raw, nursery)
        return told.parts

    def _meet(self, peer: PeerId, dataset: DatasetId, raw: bytes, nursery: trio.Nursery) -> None:
        presence = self._discovery.heard_of(peer, raw)
        if presence is None or presence.peer == self._host.peer_id or self._host.is_connected(presence.peer):
            return
        if self._meetings.spend(dataset, trio.current_time()):
            nursery.start_soon(contain, self._visit, presence)

    # Being asked

    async def _accept(self, largest: int, serve: Serve, stream: StreamPort, peer: PeerId) -> None:
        framed = self._standing.frame(stream, peer, largest)
        await self._places.attend(framed, serve, framed)

    async def _serve(self, stream: FramedStream) -> None:
        with trio.move_on_after(PATIENCE):
            if (ask := await self._read(stream, decode_parts)) is None:
                return
            await self._pay(stream.peer, SWARM_QUESTION)
            told = await trio.to_thread.run_sync(self._tell, stream.peer, ask, trio.current_time())
            await stream.write(encode_told(told, ask.count))
            await stream.end()

    async def _serve_pieces(self, stream: FramedStream) -> None:
        with trio.move_on_after(PATIENCE):
            if (ask := await self._read(stream, swarm.decode_question)) is None:
                return
            await self._pay(stream.peer, PIECE_LIST if isinstance(ask, PieceListAsk) else SWARM_QUESTION)
            answer = await trio.to_thread.run_sync(self._of_pieces, stream.peer, ask, trio.current_time())
            await stream.write(answer)
            await stream.end()

    async def _read(self, stream: FramedStream, decode: Callable[[bytes], Told]) -> Told | None:
        """The question, if it is one."""
        body = await stream.read()
        if body is None:
            return None
        try:
            return decode(body)
        except Invalid as error:
            self._standing.penalise(stream.peer, error.message, GARBAGE)
            return None

    async def _pay(self, peer: PeerId, cost: float) -> None:
        await trio.sleep(self._host.charge(peer, cost))
        if not self._rate.spend(peer, trio.current_time()):
            await trio.sleep(1.0)

    def _of_pieces(self, peer: PeerId, ask: PieceListAsk | PiecesAsk, now: float) -> bytes:
        """In a worker thread."""
        library = self._library.to(peer)
        if isinstance(ask, PieceListAsk):
            found = library.piece_list(ask.dataset, ask.name, ask.size)
            return NONE if found is None else swarm.encode_listed(PieceList(ask.name, ask.size, *found))
        parts = library.pieces(ask)
        told = PartsTold(parts, self._others(peer, ask.dataset, now) if parts is not None else ())
        return encode_told(told, swarm.piece_count(ask.size))

    def _tell(self, peer: PeerId, ask: PartsAsk, now: float) -> PartsTold:
        """In a worker thread."""
        parts = self._library.to(peer).parts(ask)
        return PartsTold(parts, self._others(peer, ask.dataset, now) if parts is not None else ())

    def _others(self, peer: PeerId, dataset: DatasetId, now: float) -> tuple[bytes, ...]:
        """Some of those who asked lately. They are named only of what anybody may have."""
        if not self._library.size(dataset):
            return ()
        askers = self._askers.setdefault(dataset, LRUCache(MAX_ASKERS))
        others = [other for other, at in askers.items() if other != peer and now - at < LATELY]
        askers[peer] = now
        chosen = self._rng.sample(others, min(len(others), MAX_SWARM_PEERS))
        found = [self._discovery.presence_of(other) for other in chosen]
        return tuple(raw for raw in found if raw is not None)
