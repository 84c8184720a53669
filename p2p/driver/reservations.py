"""Keeps reservations at relays, so that others reach a node that they cannot dial (circuit relay v2).

Made with the host (``node_reach``) if the settings name relays. A relay that refuses, lies or is gone is not announced
until it has given a reservation again; if more relays are named than are used at a time, another takes its place.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

import structlog
import trio

from chain.errors import Fault, Invalid
from p2p.address import parse_address
from p2p.driver.ports import ReachHost
from p2p.errors import Misbehaviour, PeerUnreachable, TooSlow
from p2p.host.messages import read_message
from p2p.ip import anywhere
from p2p.peers.book import REDIAL
from p2p.ports import PeerId
from p2p.wire.circuit import HOP, MAX_MESSAGE, CircuitStatus, HopKind, HopMessage, check_voucher, decode_hop, encode_hop

MOST_USED: Final = 3
"""Relays used at a time: one may fail, and one may be far away."""
PATIENCE: Final = 10.0
"""Seconds for one question."""
SHORTEST, LONGEST = 60.0, 3600.0
"""Seconds for which a reservation counts, at least and at most, whatever the relay's clock says."""
WATCH: Final = 1.0
"""Seconds between checks whether the relay is still connected."""
_LOG = structlog.get_logger("p2p.driver")


class Reservations:
    """Keeps one node's reservations. ``changed`` is called when its relays change; ``wall`` returns nanoseconds.

    A node that others reach directly needs none (``is_needed``) and reserves nothing.
    """

    def __init__(
        self,
        host: ReachHost,
        relays: tuple[str, ...],
        rng: Random,
        wall: Callable[[], int],
        changed: Callable[[], None],
        is_needed: Callable[[], bool],
    ) -> None:
        self._host = host
        self._relays = tuple(map(parse_address, relays))
        self._rng = rng
        self._wall = wall
        self._changed = changed
        self._is_needed = is_needed
        self._held: dict[PeerId, str] = {}
        self._places = trio.CapacityLimiter(MOST_USED)

    @property
    def count(self) -> int:
        return len(self._held)

    async def run(self) -> None:
        """Runs until cancelled."""
        async with trio.open_nursery() as nursery:
            for address in self._relays:
                assert address.peer is not None, "checked with the settings"
                nursery.start_soon(self._keep, address.peer, str(address))

    async def _keep(self, relay: PeerId, address: str) -> None:
        failures = 0
        while True:
            while not self._is_needed():  # noqa: ASYNC110 - dial-backs decide it, now and then
                await trio.sleep(WATCH)
            async with self._places:
                try:
                    await self._host.connect(address, allows=anywhere)
                    while self._is_needed():
                        seconds = await self._reserve(relay)
                        self._set(relay, address)
                        failures = 0
                        await self._hold_connection(relay, seconds / 2)
                except Fault as fault:
                    failures += 1
                    _LOG.info("relay not used", relay=address, fault=str(fault), rule=fault.rule, failures=failures)
                finally:
                    self._set(relay, None)
            await trio.sleep(REDIAL.wait(failures, self._rng))

    def _set(self, relay: PeerId, address: str | None) -> None:
        held = {peer: each for peer, each in self._held.items() if peer != relay}
        if address is not None:
            held[relay] = address
        if held != self._held:
            self._held = held
            self._host.reached_by(held)
            self._changed()

    async def _hold_connection(self, relay: PeerId, seconds: float) -> None:
        """Waits for ``seconds``, or until no relay is needed. Raises PeerUnreachable if the connection is gone."""
        until = trio.current_time() + seconds
        while trio.current_time() < until and self._is_needed():
            await trio.sleep(WATCH)
            if relay not in self._host.peers():
                raise PeerUnreachable(relay, "the connection with the relay is gone", rule="relay-gone")

    async def _reserve(self, relay: PeerId) -> float:
        """Makes a reservation; returns the seconds for which it counts. Raises PeerFault."""
        with trio.move_on_after(PATIENCE):
            stream = await self._host.open_stream(relay, HOP)
            try:
                await stream.send_all(encode_hop(HopMessage(kind=HopKind.RESERVE)))
                said = decode_hop(await read_message(stream, relay, MAX_MESSAGE))
                if said.kind is not HopKind.STATUS or said.status != CircuitStatus.OK or said.reservation is None:
                    raise PeerUnreachable(relay, f"it gives no reservation: status {said.status}", rule="relay-refused")
                # Circuit relay v2 leaves the voucher to the relay.
                if said.reservation.voucher:
                    check_voucher(said.reservation.voucher, relay, self._host.peer_id)
                left = said.reservation.expires - self._wall() / 1e9
                return min(max(left, SHORTEST), LONGEST)
            except Invalid as error:
                raise Misbehaviour(relay, error.message, rule=error.rule, hint=error.hint) from error
            finally:
                with trio.CancelScope(shield=True), trio.move_on_after(1.0):
                    await stream.reset()
        raise TooSlow(relay, f"no reservation within {PATIENCE:g} s", rule="relay-patience")
