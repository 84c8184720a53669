"""Limits connections on which nothing was requested yet: few in total, shared fairly between addresses.

Without this limit, a few hundred silent TCP connections keep everybody out until they time out. A newcomer always gets
in; the oldest connection of the most frequent address, in the most frequent block of addresses, is closed for it. A
libp2p connection is silent until its handshake is complete, an HTTP connection whenever no request is being answered.
Does no I/O; it only cancels the scopes that it is given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from p2p.address import prefix_of


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
