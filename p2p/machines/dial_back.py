"""Decides whom this node dials back, at which address, and for how many bytes (AutoNAT v2's server). Sans-IO.

With a dial-back a stranger makes us spend work and bytes on an address that it names. So only addresses of the Internet
are dialled, an address that is not the asker's own costs the asker more bytes than the dial costs that address, and
dials are limited for each peer, for each block of addresses that asks or is dialled, and in total.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from p2p.address import Address, prefix_of
from p2p.budget.buckets import Budget, Rate
from p2p.ip import Allows, parse_ip
from p2p.ports import PeerId
from p2p.wire.autonat import LEAST_DATA, MOST_DATA, ResponseStatus


class DialBackLimits(msgspec.Struct, frozen=True, kw_only=True):
    of_peer: Rate = Rate(per_second=1 / 30, burst=4.0)
    """Questions of one peer; a node with few addresses asks about once an hour."""
    of_prefix: Rate = Rate(per_second=1 / 10, burst=8.0)
    """Questions from one block of addresses (a /24 or /48), as keys cost nothing."""
    of_target: Rate = Rate(per_second=1 / 30, burst=4.0)
    """Dials to one block of addresses, whoever asks for them."""
    in_all: Rate = Rate(per_second=1.0, burst=30.0)
    """All dials; go-libp2p allows 60 a minute too."""
    foreign: Rate = Rate(per_second=0.2, burst=6.0)
    """Dials to addresses that are not the asker's."""
    at_once: int = 4
    """Questions that are answered at the same time."""


class Lot(Protocol):
    def randint(self, a: int, b: int, /) -> int: ...


class DialOrder(NamedTuple):
    """A dial-back to perform: the address, its position ``place`` in the question, and the price."""

    place: int
    address: Address
    data: int
    """Bytes that the asker must send first; 0: none."""


class DialBacks:
    """Judges the dial-back requests that one node gets. ``rng`` draws how many bytes a dial costs."""

    def __init__(self, limits: DialBackLimits, rng: Lot) -> None:
        self._limits = limits
        self._rng = rng
        self._peers = Budget[PeerId](limits.of_peer)
        self._prefixes = Budget[str](limits.of_prefix)
        self._targets = Budget[str](limits.of_target)
        self._all = Budget[None](limits.in_all)
        self._foreign = Budget[None](limits.foreign)
        self._under_way = 0
        self.refused = 0
        """Number of questions for which nothing was dialled."""

    def begin(
        self, peer: PeerId, host: str, wanted: Sequence[Address | None], allows: Allows, now: float
    ) -> DialOrder | ResponseStatus:
        """Judges a question of a peer at ``host``: returns what to dial, or the status of a refusal.

        The caller calls ``end`` after each ``DialOrder``. ``None`` in ``wanted``: an address that this node cannot
        dial.
        """
        if self._under_way >= self._limits.at_once or not self._may_ask(peer, host, now):
            self.refused += 1
            return ResponseStatus.REQUEST_REJECTED
        found = next(((at, each) for at, each in enumerate(wanted) if each and _is_fit(each, allows)), None)
        if found is None:
            self.refused += 1
            return ResponseStatus.DIAL_REFUSED
        index, address = found
        is_foreign = address.host != host
        if not self._may_dial(address.host, now, is_foreign=is_foreign):
            self.refused += 1
            return ResponseStatus.REQUEST_REJECTED
        self._under_way += 1
        return DialOrder(index, address, self._rng.randint(LEAST_DATA, MOST_DATA) if is_foreign else 0)

    def end(self) -> None:
        self._under_way -= 1

    def _may_ask(self, peer: PeerId, host: str, now: float) -> bool:
        return self._peers.spend(peer, now) and self._prefixes.spend(prefix_of(host), now)

    def _may_dial(self, target: str, now: float, *, is_foreign: bool) -> bool:
        return (
            self._targets.spend(prefix_of(target), now)
            and (not is_foreign or self._foreign.spend(None, now))
            and self._all.spend(None, now)
        )


def _is_fit(address: Address, allows: Allows) -> bool:
    return allows(parse_ip(address.host)) and address.relay is None and address.port > 0
