"""Decides which connections a node keeps when there are more than it has slots for, and how many are silent.

A stranger's slot costs it an address, not only a key: one address, or one block of addresses, gets few slots. When all
slots of strangers are taken, the least useful connection of the block that has most is closed. Those connected longest
and those that gave most stay in any case. Some slots are reserved for peers that a person chose and for publishers of
mirrored datasets, others for peers that this node dials itself.

``SilentConnections`` limits connections on which nothing was requested yet: few in total, shared fairly between
addresses. Without this limit, a few hundred silent TCP connections keep everybody out until they time out. A newcomer
always gets in; the oldest connection of the most frequent address, in the most frequent block of addresses, is closed
for it. A libp2p connection is silent until its handshake is complete, an HTTP connection whenever no request is being
answered. Does no I/O; it only cancels the scopes that it is given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol

from p2p.address import prefix_of
from p2p.budget.work import Party
from p2p.ports import PeerId

RESERVED: Final = 8
"""One slot in so many is reserved for chosen peers, and as many for peers that this node dials."""
OF_HOST: Final = 4
"""One address takes at most a quarter of the unreserved slots."""
OF_PREFIX: Final = 2
"""One block of addresses takes at most half of the unreserved slots."""
FEW: Final = 4
"""Slots that one address may always take, however few slots there are: several people share one router."""
SETTLED: Final = 4
"""A quarter of the unreserved slots stays with the longest connected, and a quarter with those that gave most."""


class ConnectionSlot(NamedTuple):
    party: Party
    dialled: bool
    """Whether this node made the connection."""

    @property
    def block(self) -> str:
        return prefix_of(self.party.host)


class ConnectionSlots:
    """Tracks the connection slots of one host. The node sets ``chosen`` and ``publishers`` by what a person chose."""

    def __init__(self, most: int) -> None:
        reserved = most // RESERVED
        self._most = most
        self._dialled = reserved
        self._strangers = most - 2 * reserved
        self._of_host = max(FEW, self._strangers // OF_HOST)
        self._of_prefix = max(2 * FEW, self._strangers // OF_PREFIX)
        self._taken: dict[int, ConnectionSlot] = {}
        self._given: Counter[PeerId] = Counter()
        self.chosen: frozenset[PeerId] = frozenset()
        self.publishers: frozenset[PeerId] = frozenset()
        """Publishers of mirrored datasets. As many of them as there are reserved slots keep theirs; more are like
        strangers."""

    def __len__(self) -> int:
        return len(self._taken)

    def gave(self, peer: PeerId, amount: int) -> None:
        """Records that the peer gave ``amount`` bytes that this node asked for and that proved true."""
        if any(place.party.peer == peer for place in self._taken.values()):
            self._given[peer] += amount

    def leave(self, connection: int) -> None:
        place = self._taken.pop(connection, None)
        if place is not None and all(other.party.peer != place.party.peer for other in self._taken.values()):
            del self._given[place.party.peer]

    def take(self, party: Party, *, dialled: bool) -> Party | None:
        """Gives a new connection a slot.

        Returns the connection to close for it, whose slot it gets (the new one itself if no other may be closed);
        ``None`` if there is room.
        """
        place = ConnectionSlot(party, dialled)
        leaving = self._leaving(place)
        if leaving is not None:
            self.leave(leaving.connection)
        if leaving is not party:
            self._taken[party.connection] = place
        return leaving

    def _leaving(self, newcomer: ConnectionSlot) -> Party | None:
        reserved = self._find_reserved()
        strangers = [place for place in self._taken.values() if place.party.connection not in reserved]
        is_chosen = newcomer.party.peer in self.chosen or (
            newcomer.party.peer in self.publishers and len(self._publishing()) < self._dialled
        )
        if not is_chosen and not (newcomer.dialled and self._ours() < self._dialled):
            host = [place for place in strangers if place.party.host == newcomer.party.host]
            block = [place for place in strangers if place.block == newcomer.block]
            for crowd, most in ((host, self._of_host), (block, self._of_prefix), (strangers, self._strangers)):
                if len(crowd) >= most:
                    return self._least(crowd, strangers, newcomer)
        if len(self._taken) < self._most:
            return None
        if is_chosen and strangers:
            return self._newest(strangers)
        return self._least(strangers, strangers, newcomer)

    def _ours(self) -> int:
        return sum(place.dialled and place.party.peer not in self.chosen for place in self._taken.values())

    def _find_reserved(self) -> set[int]:
        """Returns the connections in reserved slots:
        those of chosen peers, of some publishers, and the first that we dialled."""
        chosen = [place for place in self._taken.values() if place.party.peer in self.chosen]
        ours = [place for place in self._taken.values() if place.dialled and place not in chosen]
        return _numbers(chosen) | _numbers(ours[: self._dialled]) | _numbers(self._publishing())

    def _publishing(self) -> list[ConnectionSlot]:
        """Lists the connections of publishers that have a reserved slot, the oldest ones."""
        return [place for place in self._taken.values() if place.party.peer in self.publishers][: self._dialled]

    def _least(self, crowd: list[ConnectionSlot], strangers: list[ConnectionSlot], newcomer: ConnectionSlot) -> Party:
        """Returns the connection to close: of the block with the most slots, the newest of those that gave least."""
        settled = self._find_settled(strangers)
        loose = [place for place in crowd if place.party.connection not in settled]
        if not loose:
            return newcomer.party
        blocks = Counter(place.block for place in [*crowd, newcomer])
        most = max(blocks[place.block] for place in loose)
        return self._newest([place for place in loose if blocks[place.block] == most])

    def _newest(self, places: list[ConnectionSlot]) -> Party:
        return min(reversed(places), key=lambda place: self._given[place.party.peer]).party

    def _find_settled(self, strangers: list[ConnectionSlot]) -> set[int]:
        share = max(1, self._strangers // SETTLED)
        givers = sorted(strangers, key=lambda place: -self._given[place.party.peer])[:share]
        return _numbers(strangers[:share]) | _numbers(place for place in givers if self._given[place.party.peer])


def _numbers(places: Iterable[ConnectionSlot]) -> set[int]:
    return {place.party.connection for place in places}


class Cancellable(Protocol):
    """The part of ``trio.CancelScope`` that is used here."""

    def cancel(self) -> None: ...


class SilentConnections:
    """Keeps at most ``capacity`` silent connections (as cancel scopes) in order of arrival;
    cancels one if there are more."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._silent: dict[Cancellable, tuple[str, str]] = {}
        """Each scope's block of addresses and address."""

    def __len__(self) -> int:
        return len(self._silent)

    def add(self, address: str, scope: Cancellable) -> None:
        """Adds ``scope``, which may be cancelled in favour of a newcomer."""
        if len(self._silent) >= self._capacity:
            self._make_room()
        self._silent[scope] = prefix_of(address), address

    def remove(self, scope: Cancellable) -> None:
        self._silent.pop(scope, None)

    @contextmanager
    def silent(self, address: str, scope: Cancellable) -> Iterator[None]:
        """Lets ``scope`` be cancelled in favour of a newcomer while the block runs."""
        self.add(address, scope)
        try:
            yield
        finally:
            self.remove(scope)

    def _make_room(self) -> None:
        block = Counter(block for block, _ in self._silent.values()).most_common(1)[0][0]
        crowd = Counter(one for one in self._silent.values() if one[0] == block).most_common(1)[0][0]
        oldest = next(scope for scope, one in self._silent.items() if one == crowd)
        del self._silent[oldest]
        oldest.cancel()
