"""Finds peers on the local network: announces this node by multicast, asks who is there, and dials who answers.

Made with the driver where a person asks for it; ends with it. For IPv4 and IPv6 one socket each, two tasks and no
memory of what others said: a packet is read under limits, and at most leads to a dial of whoever sent it.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import structlog
import trio

from chain.backoff import Backoff
from p2p.address import Address, parse_address
from p2p.budget.buckets import Budget, Rate
from p2p.driver.containment import contained
from p2p.driver.multicast import Group, Group4, Group6
from p2p.driver.peer_penalties import PeerPenalties
from p2p.driver.ports import HostPort
from p2p.errors import only
from p2p.host.interfaces import index_of
from p2p.ports import PeerId
from p2p.wire import lan as wire

PORT: Final = 5353
TOLD: Final = Backoff(first=1.0, most=60.0)
"""Between the times that we say who we are."""
ANSWER_SECONDS: Final = 1.0
"""Between answers, whoever asks (RFC 6762, section 6)."""
RATE: Final = Rate(per_second=10.0, burst=40.0)
"""Packets of one address that are looked at; all of mDNS on a quiet LAN is fewer."""
MAX_VISITS: Final = 4
"""Dials at a time."""
MAX_MET: Final = 16
"""Connections above which nobody more is dialled for being near."""
_LOG = structlog.get_logger("p2p.driver")
Visit = Callable[[PeerId, Sequence[str]], Awaitable[object]]


class Lan:
    """The discovery on local networks of one node.

    ``visit`` dials a peer unless it is shut out or rests after a failure.
    """

    def __init__(self, host: HostPort, standing: PeerPenalties, network: str, visit: Visit, port: int = PORT) -> None:
        self._host = host
        self._standing = standing
        self._network = network
        self._visit = visit
        self._port = port
        self._budget = Budget[str](RATE)
        self._visiting: set[PeerId] = set()
        self._answered = defaultdict[str, float](lambda: -ANSWER_SECONDS)
        """When, by family."""

    async def run(self) -> None:
        """Until cancelled. A machine where multicast cannot be had is told of, and does without."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._take_part, "ip4", Group4)
            nursery.start_soon(self._take_part, "ip6", partial(Group6, index_of=index_of))

    async def _take_part(self, network: str, make: Callable[[int], Group]) -> None:
        try:
            async with make(self._port) as group, trio.open_nursery() as nursery:
                nursery.start_soon(self._tell_now_and_then, group)
                await self._listen(group, nursery)
        except* OSError as errors:
            _LOG.warning("no discovery on the LAN", network=network, reason=str(only(errors)))

    async def _tell_now_and_then(self, group: Group) -> None:
        for times in itertools.count(1):
            group.join(one.host for one in self._own(group))
            await group.send(wire.encode_question())
            await self._tell(group)
            await trio.sleep(TOLD.whole(times))

    def _own(self, group: Group) -> list[Address]:
        ours = map(parse_address, self._host.addresses())
        return [one for one in ours if one.network == group.network and wire.is_on_lan(one)]

    async def _tell(self, group: Group) -> None:
        self._answered[group.network] = trio.current_time()
        own = self._own(group)
        if own:
            await group.send(wire.encode_presence(self._host.peer_id, self._network, own))

    async def _listen(self, group: Group, nursery: trio.Nursery) -> None:
        while True:
            packet, source = await group.receive()
            if not self._budget.spend(source, trio.current_time()):
                continue
            heard = wire.decode(packet, self._network, source)
            if heard.asks and trio.current_time() - self._answered[group.network] >= ANSWER_SECONDS:
                await self._tell(group)
            for address in heard.told:
                self._meet(address, nursery)

    def _meet(self, address: Address, nursery: trio.Nursery) -> None:
        peer, connected = address.peer, self._standing.book.connected_peers()
        if peer is None or peer == self._host.peer_id or peer in connected or peer in self._visiting:
            return
        if len(self._visiting) < MAX_VISITS and len(connected) < MAX_MET:
            self._visiting.add(peer)
            nursery.start_soon(self._go, peer, str(address))

    async def _go(self, peer: PeerId, address: str) -> None:
        try:
            await contained(self._visit, peer, [address])
        finally:
            self._visiting.discard(peer)
