"""Decides what two peers that met through a relay say, and when each dials, so that both NATs open (DCUtR). Sans-IO.

The peer that accepted the circuit speaks first: it measures one round trip, sends SYNC and dials half a round trip
later, when the other peer receives SYNC and dials. So each NAT sees an outgoing connection before the incoming one, and
takes the latter for an answer. The peer that made the circuit is the client on the new connection. After three tries
both stay with the relay. Addresses that a peer names are not trusted: each is judged, few are dialled, and each block
of addresses is dialled seldom, whoever names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from p2p.address import PeerAddress, prefix_of
from p2p.budget.buckets import Budget, Rate
from p2p.ip import Allows, parse_ip
from p2p.ports import PeerId
from p2p.wire.reach import PunchKind

TRIES: Final = 3
"""Tries, as the specification says; nearly all that succeed do so at the first."""
MAX_TARGETS: Final = 4
"""Addresses that are dialled in one try."""
WINDOW: Final = 3.0
"""Seconds of one try: enough for a SYN that the other router dropped to be sent again after 1 s."""
MOST_WAIT: Final = 2.0
"""Seconds that a slow peer can make us wait before a dial, which is half of the round trip."""
OF_PEER: Final = Rate(per_second=1 / 60, burst=2.0)
"""Hole punches with one peer."""
OF_TARGET: Final = Rate(per_second=1 / 10, burst=6.0)
"""Addresses dialled in one block of addresses, whoever names them."""
IN_ALL: Final = Rate(per_second=1.0, burst=30.0)
"""Addresses dialled in total."""


class SendPunch(NamedTuple):
    kind: PunchKind


class Dial(NamedTuple):
    """Asks the driver to dial these addresses at that time; ``as_client``: the role on the connection that results."""

    at: float
    targets: Sequence[PeerAddress]
    as_client: bool


class GiveUp(NamedTuple):
    reason: str


Effect: TypeAlias = SendPunch | Dial | GiveUp


class PunchBudget:
    """Limits the addresses that a node dials because peers named them, in all hole punches together."""

    def __init__(self, allows: Allows) -> None:
        self._allows = allows
        self._peers = Budget[PeerId](OF_PEER)
        self._targets = Budget[str](OF_TARGET)
        self._all = Budget[None](IN_ALL)
        self.refused = 0
        """Number of named addresses that were not dialled."""

    def may_begin(self, peer: PeerId, now: float) -> bool:
        return self._peers.spend(peer, now)

    def fit(self, named: Iterable[PeerAddress | None], now: float) -> list[PeerAddress]:
        """Returns those of the named addresses that may be dialled now, and charges them."""
        found: list[PeerAddress] = []
        for each in dict.fromkeys(named):
            if (
                each is not None
                and len(found) < MAX_TARGETS
                and self._allows(parse_ip(each.host))
                # A peer can name a victim's address (test_forged_addresses_are_dialled_seldom_whoever_names_them).
                and self._targets.spend(prefix_of(each.host), now)
                and self._all.spend(None, now)
            ):
                found.append(each)
            else:
                self.refused += 1
        return found


class Opener:
    """The peer that accepted the circuit. The driver feeds it each message,
    and calls ``begin`` after each failed try."""

    def __init__(self, budget: PunchBudget) -> None:
        self._budget = budget
        self._said_at: float | None = None
        self.tries = 0

    def begin(self, now: float) -> list[Effect]:
        """Begins the next try, or gives up after ``TRIES``."""
        if self.tries >= TRIES:
            return [GiveUp(f"{TRIES} tries failed")]
        self.tries += 1
        self._said_at = now
        return [SendPunch(PunchKind.CONNECT)]

    def receive(self, kind: PunchKind, named: Sequence[PeerAddress | None], now: float) -> list[Effect]:
        if kind is not PunchKind.CONNECT or self._said_at is None:
            return [GiveUp("the peer speaks out of turn")]
        wait = min(max(0.0, now - self._said_at) / 2, MOST_WAIT)
        self._said_at = None
        targets = self._budget.fit(named, now)
        if not targets:
            return [GiveUp("the peer names no address that is dialled")]
        return [SendPunch(PunchKind.SYNC), Dial(now + wait, targets, as_client=False)]


class Answerer:
    """The peer that made the circuit: it answers the messages of an ``Opener``."""

    def __init__(self, budget: PunchBudget) -> None:
        self._budget = budget
        self._targets: list[PeerAddress] | None = None
        self.tries = 0

    @property
    def targets(self) -> Sequence[PeerAddress]:
        """Returns the addresses from which the other peer will dial, between its CONNECT and its SYNC; else empty."""
        return self._targets or ()

    def receive(self, kind: PunchKind, named: Sequence[PeerAddress | None], now: float) -> list[Effect]:
        if kind is PunchKind.CONNECT and self._targets is None:
            if self.tries >= TRIES:
                return [GiveUp("the peer tries too often")]
            self.tries += 1
            self._targets = self._budget.fit(named, now)
            return (
                [SendPunch(PunchKind.CONNECT)]
                if self._targets
                else [GiveUp("the peer names no address that is dialled")]
            )
        if kind is PunchKind.SYNC and self._targets is not None:
            targets, self._targets = self._targets, None
            return [Dial(now, targets, as_client=True)]
        return [GiveUp("the peer speaks out of turn")]
