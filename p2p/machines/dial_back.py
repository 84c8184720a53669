"""Decides whom this node dials back, at which address, and for how many bytes (AutoNAT v2's server). Sans-IO.

With a dial-back a stranger makes us spend work and bytes on an address that it names. So only addresses of the Internet
are dialled, an address that is not the asker's own costs the asker more bytes than the dial costs that address, and
dials are limited for each peer, for each block of addresses that asks or is dialled, and in total. Who has not paid
takes no dial of others: budgets of foreign dials and places of dials are used up by questions that were paid, and the
budget of a dialled block only by strangers, so that nobody's questions keep a node from being dialled at its own
address.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from p2p.address import PeerAddress, prefix_of
from p2p.budget.buckets import Budget, Rate
from p2p.ip import Allows, parse_ip
from p2p.ports import PeerId
from p2p.wire.reach import LEAST_DATA, MOST_DATA, ResponseStatus


class DialBackLimits(msgspec.Struct, frozen=True, kw_only=True):
    of_peer: Rate = Rate(per_second=1 / 30, burst=4.0)
    """Questions of one peer; a node with few addresses asks about once an hour."""
    of_prefix: Rate = Rate(per_second=1 / 10, burst=8.0)
    """Questions from one block of addresses (a /24 or /48), as keys cost nothing."""
    of_target: Rate = Rate(per_second=1 / 30, burst=4.0)
    """Dials to one block of addresses that others ask for."""
    in_all: Rate = Rate(per_second=1.0, burst=30.0)
    """All dials; go-libp2p allows 60 a minute too."""
    foreign: Rate = Rate(per_second=0.2, burst=6.0)
    """Dials to addresses that are not the asker's."""
    at_once: int = 4
    """Dials at the same time."""
    unpaid: int = 64
    """Questions whose price is on its way; each holds a stream, and nothing else."""
    unpaid_of_prefix: int = 2
    """The same, from one block of addresses."""


class Lot(Protocol):
    def randint(self, a: int, b: int, /) -> int: ...


class DialOrder(NamedTuple):
    """A dial-back to perform: the address, its position ``place`` in the question, and the price."""

    place: int
    address: PeerAddress
    data: int
    """Bytes that the asker must send first; 0: none."""
    block: str
    """The block of addresses from which it was asked."""


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
        self._unpaid = Counter[str]()
        """Questions whose price is on its way, by the block that asked."""
        self._under_way = 0
        self.refused = 0
        """Number of questions for which nothing was dialled."""

    def begin(
        self, peer: PeerId, host: str, wanted: Sequence[PeerAddress | None], allows: Allows, now: float
    ) -> DialOrder | ResponseStatus:
        """Judges a question of a peer at ``host``: returns what to dial, or the status of a refusal.

        After an order with a price the caller calls ``may_dial``; and ``end`` after each dial. ``None`` in ``wanted``:
        an address that this node cannot dial.
        """
        if not self._may_ask(peer, host, now):
            self.refused += 1
            return ResponseStatus.REQUEST_REJECTED
        found = next(((at, each) for at, each in enumerate(wanted) if each and _is_fit(each, allows)), None)
        if found is None:
            self.refused += 1
            return ResponseStatus.DIAL_REFUSED
        index, address = found
        block, is_own = prefix_of(host), address.host == host
        # A question that is not paid yet takes no dial of others
        # (test_strangers_that_do_not_pay_keep_nobody_from_being_dialled).
        if not (self._begins(now) if is_own else self._may_pay(block, address, now)):
            self.refused += 1
            return ResponseStatus.REQUEST_REJECTED
        if is_own:
            return DialOrder(index, address, 0, block)
        self._unpaid[block] += 1
        # More bytes than the dial sends, or a forged address would be an amplifier (AutoNAT v2).
        return DialOrder(index, address, self._rng.randint(LEAST_DATA, MOST_DATA), block)

    def may_dial(self, order: DialOrder, now: float, *, has_come: bool) -> bool:
        """Whether to dial a foreign address now. ``has_come``: its price came; if not, nothing of others is used up."""
        self._unpaid[order.block] -= 1
        self._unpaid += Counter()  # without those of whom nothing waits
        is_granted = has_come and self._may_dial(order.address.host, now) and self._begins(now)
        self.refused += not is_granted
        return is_granted

    def end(self) -> None:
        """Ends a dial."""
        self._under_way -= 1

    def _may_ask(self, peer: PeerId, host: str, now: float) -> bool:
        return self._peers.spend(peer, now) and self._prefixes.spend(prefix_of(host), now)

    def _may_pay(self, block: str, address: PeerAddress, now: float) -> bool:
        """Whether a foreign question may send its price; there is room for its dial now, so that few pay in vain."""
        return (
            self._unpaid.total() < self._limits.unpaid
            and self._unpaid[block] < self._limits.unpaid_of_prefix
            and self._may_dial(address.host, now, amount=0.0)
        )

    def _may_dial(self, target: str, now: float, amount: float = 1.0) -> bool:
        """Whether the budgets of foreign dials have one more; takes ``amount`` of each."""
        left = 1.0 - amount
        return self._targets.spend(prefix_of(target), now, amount, left) and self._foreign.spend(
            None, now, amount, left
        )

    def _begins(self, now: float) -> bool:
        """Takes a place for a dial; returns whether there was one."""
        if self._under_way >= self._limits.at_once or not self._all.spend(None, now):
            return False
        self._under_way += 1
        return True


def _is_fit(address: PeerAddress, allows: Allows) -> bool:
    return allows(parse_ip(address.host)) and address.relay is None and address.port > 0
