"""Keeps the outgoing exchanges: at most one for each peer and protocol, opened at the first question.

One ``Exchanges`` per protocol, made with the driver; its exchanges run in the driver's nursery.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic

import trio

from p2p.driver.containment import contained
from p2p.driver.exchange import Exchange, Reply
from p2p.driver.peer_penalties import PeerPenalties
from p2p.driver.ports import HostPort, StreamPort
from p2p.errors import PeerFault, Unreachable, Violation
from p2p.peers.reach import Reach
from p2p.ports import PeerId
from p2p.wire.limits import MAX_REPLY

MAX_LINKS: Final = 256
"""Exchanges open at once; each may hold one unfinished frame."""

MAX_DIALS: Final = 2
"""Addresses tried for a peer that is asked while it is not connected."""


class Exchanges(Generic[Reply]):
    """Exchanges of one protocol by peer."""

    def __init__(
        self,
        host: HostPort,
        standing: PeerPenalties,
        reach: Reach,
        protocol: str,
        decode: Callable[[bytes], Reply],
    ) -> None:
        self._host = host
        self._standing = standing
        self._reach = reach
        self._protocol = protocol
        self._decode = decode
        self._exchanges: dict[PeerId, Exchange[Reply]] = {}
        self._opening: dict[PeerId, trio.Lock] = {}

    async def to(self, peer: PeerId, nursery: trio.Nursery) -> Exchange[Reply]:
        """The exchange with ``peer``, opened if need be to run in ``nursery``. Raises PeerFault."""
        if (exchange := self._open_to(peer)) is not None:
            return exchange
        lock = self._opening.setdefault(peer, trio.Lock())
        try:
            async with lock:
                return self._open_to(peer) or await self._open(peer, nursery)
        finally:
            if not lock.statistics().tasks_waiting and not lock.locked():
                self._opening.pop(peer, None)

    def arriving(self, peer: PeerId) -> int:
        """Bytes that are here of an answer of ``peer`` that is not whole."""
        return exchange.arriving if (exchange := self._open_to(peer)) is not None else 0

    def _open_to(self, peer: PeerId) -> Exchange[Reply] | None:
        exchange = self._exchanges.get(peer)
        return exchange if exchange is not None and exchange.fault is None else None

    async def _open(self, peer: PeerId, nursery: trio.Nursery) -> Exchange[Reply]:
        if self._standing.is_shut_out(peer):
            raise Unreachable(peer, "it misbehaved and is shut out for a while", rule="peer-score")
        if len(self._exchanges) >= MAX_LINKS:
            raise Unreachable(peer, f"{MAX_LINKS} streams of {self._protocol} are open already", rule="links")
        stream = await self._stream(peer)
        exchange = Exchange(self._standing.framed(stream, peer, MAX_REPLY), self._decode)
        self._exchanges[peer] = exchange
        nursery.start_soon(contained, self._run, peer, exchange)
        return exchange

    async def _stream(self, peer: PeerId) -> StreamPort:
        """Over the connection that there is, or a new one to an address that we know."""
        if peer not in self._host.peers():
            addresses = self._standing.book.get(peer).addresses[:MAX_DIALS]
            with suppress(PeerFault):
                if addresses:
                    allows = self._reach.again(addresses, self._host.addresses())
                    await self._host.connect(*addresses, allows=allows)
        return await self._host.open_stream(peer, self._protocol)

    async def _run(self, peer: PeerId, exchange: Exchange[Reply]) -> None:
        try:
            await exchange.run()
        finally:
            if self._exchanges.get(peer) is exchange:
                del self._exchanges[peer]
        fault: PeerFault | None = exchange.fault
        if isinstance(fault, Violation):
            self._standing.blame(fault)
