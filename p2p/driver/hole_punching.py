"""Makes direct connections to peers that came through a relay:
both dial at once, so that their NATs let them in (DCUtR).

Made with the host (``node_reach``). The relayed circuit stays in use while tries fail, and for some seconds after one
succeeded, so that what is under way there can end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

import structlog
import trio

from chain.errors import Invalid
from p2p.address import PeerAddress, parse_address
from p2p.budget.work import HANDSHAKE
from p2p.driver.inbound import contain
from p2p.driver.ports import DirectPort, HostPort, StreamPort
from p2p.errors import Misbehaviour, PeerFault, TooSlow
from p2p.host.messages import read_message
from p2p.ip import is_global
from p2p.machines.hole_punch import WINDOW, Answerer, Dial, Effect, GiveUp, Opener, PunchBudget, SendPunch
from p2p.ports import PeerId
from p2p.wire.reach import (
    MAX_PUNCH,
    PUNCH,
    PunchKind,
    PunchMessage,
    decode_multiaddr,
    decode_punch,
    encode_multiaddr,
    encode_punch,
)

LOOK: Final = 0.5
"""Seconds between checks which peers came through a relay, while there are any."""
PATIENCE: Final = 10.0
"""Seconds for one message of the peer."""
GRACE: Final = 5.0
"""Seconds for which a circuit is kept after the direct connection was made."""
MAX_AT_ONCE: Final = 4
"""Hole punches that this node begins at a time."""
MAX_KNOWN: Final = 1024
"""Peers with which a hole punch failed that are remembered; the oldest is forgotten."""
AGAIN: Final = 600.0
"""Seconds until the next try with a peer that still uses a relay."""
_LOG = structlog.get_logger("p2p.driver")
Talk: TypeAlias = Opener | Answerer


class HolePunching:
    """Starts and answers hole punches for one node.

    ``own`` returns the addresses at which others see it, ``told`` those that peers announce.
    """

    def __init__(
        self,
        host: HostPort,
        direct: DirectPort,
        own: Callable[[], Sequence[PeerAddress]],
        told: Callable[[Iterable[PeerId]], Sequence[str]],
    ) -> None:
        self._host = host
        self._direct = direct
        self._own = own
        self._told = told
        self._budget = PunchBudget(is_global)
        self._under_way: set[PeerId] = set()
        self._failed: dict[PeerId, float] = {}
        self.succeeded = 0
        self.failed = 0

    @property
    def refused(self) -> int:
        """Returns the number of addresses that peers named and that were not dialled."""
        return self._budget.refused

    def join(self) -> None:
        self._host.set_handler(PUNCH, self._accept)

    async def run(self) -> None:
        """Starts a hole punch with each peer that came through a relay, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                now, came = trio.current_time(), self._direct.came_by_relay()
                for peer in came if self._own() else ():
                    is_due = now - self._failed.get(peer, -AGAIN) >= AGAIN
                    if is_due and peer not in self._under_way and len(self._under_way) < MAX_AT_ONCE:
                        self._under_way.add(peer)
                        nursery.start_soon(self._upgrade, peer)
                if came:
                    await trio.sleep(LOOK)
                else:
                    await self._direct.connections_changed()

    def forget(self) -> None:
        """Forgets failed tries; called when the network of this machine changed, since they may succeed now."""
        self._failed.clear()

    # --- the side to which the circuit came ----------------------------------------------------------------------

    async def _upgrade(self, peer: PeerId) -> None:
        try:
            await contain(self._open, peer)
            if self._direct.is_direct(peer):
                self.succeeded += 1
                _LOG.info("peer connected directly", peer=peer)
                await trio.sleep(GRACE)
                await self._direct.drop_relayed(peer)
            else:
                self.failed += 1
                self._failed.pop(peer, None)
                self._failed[peer] = trio.current_time()
                if len(self._failed) > MAX_KNOWN:
                    del self._failed[next(iter(self._failed))]
        finally:
            self._under_way.discard(peer)

    async def _open(self, peer: PeerId) -> None:
        if not self._budget.may_begin(peer, trio.current_time()) or await self._is_public(peer):
            return
        stream = await self._host.open_stream(peer, PUNCH)
        try:
            machine = Opener(self._budget)
            while machine.tries == 0 or not self._direct.is_direct(peer):
                effects = machine.begin(trio.current_time())
                if await self._perform(effects, stream, peer):
                    return
                kind, named = await _hear(stream, peer)
                if await self._perform(machine.receive(kind, named, trio.current_time()), stream, peer):
                    return
        finally:
            await _let_go(stream)

    async def _is_public(self, peer: PeerId) -> bool:
        """Whether the peer is reached at an address that it announces, so that no hole punch is needed; dials it."""
        said = [parse_address(each) for each in self._told([peer])]
        targets = self._budget.fit((each for each in said if each.relay is None and each.ip), trio.current_time())
        if not targets:
            return False
        return await self._direct.reach(targets, peer, WINDOW)

    # --- the side that made the circuit --------------------------------------------------------------------------

    async def _accept(self, stream: StreamPort, peer: PeerId) -> None:
        try:
            await contain(self._answer, stream, peer)
        finally:
            await _let_go(stream)

    async def _answer(self, stream: StreamPort, peer: PeerId) -> None:
        await trio.sleep(self._host.charge(peer, HANDSHAKE))
        if self._direct.is_direct(peer) or not self._budget.may_begin(peer, trio.current_time()):
            return
        with trio.move_on_after(PATIENCE / 2):
            while not self._own():  # noqa: ASYNC110 - what peers see is asked for at intervals
                await trio.sleep(LOOK)
        machine = Answerer(self._budget)
        while not self._direct.is_direct(peer):
            kind, named = await _hear(stream, peer)
            effects = machine.receive(kind, named, trio.current_time())
            if await self._perform(effects, stream, peer):
                return
            # The peer's connection may arrive before its SYNC does.
            with self._direct.meeting(machine.targets, peer):
                kind, named = await _hear(stream, peer)
                if await self._perform(machine.receive(kind, named, trio.current_time()), stream, peer):
                    return

    async def _perform(self, effects: Sequence[Effect], stream: StreamPort, peer: PeerId) -> bool:
        """Performs effects of a machine; returns whether the hole punch is over."""
        for effect in effects:
            match effect:
                case SendPunch(kind):
                    own = tuple(map(encode_multiaddr, self._own())) if kind is PunchKind.CONNECT else ()
                    await stream.send_all(encode_punch(PunchMessage(kind, own)))
                case Dial(at, targets, as_client):
                    await trio.sleep_until(at)
                    if await self._direct.punch(targets, peer, WINDOW, as_client=as_client):
                        return True
                case GiveUp(reason):
                    _LOG.debug("no direct connection", peer=peer, reason=reason)
                    return True
        return False


async def _hear(stream: StreamPort, peer: PeerId) -> tuple[PunchKind, list[PeerAddress | None]]:
    with trio.move_on_after(PATIENCE):
        try:
            said = decode_punch(await read_message(stream, peer, MAX_PUNCH))
        except Invalid as error:
            raise Misbehaviour(peer, error.message, rule=error.rule, hint=error.hint) from error
        return said.kind, list(map(decode_multiaddr, said.addresses))
    raise TooSlow(peer, f"said nothing of a direct connection in {PATIENCE:g} s", rule="dcutr-patience")


async def _let_go(stream: StreamPort) -> None:
    """Resets a stream, even while being cancelled; does nothing if it is closed."""
    with trio.CancelScope(shield=True), trio.move_on_after(1.0), suppress(PeerFault):
        await stream.reset()
