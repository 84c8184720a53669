"""Limits connections on which nothing was asked yet: few in total, and shared fairly between addresses.

Without it, a few hundred silent TCP connections keep everybody out until their timeout. The newcomer always gets in;
the oldest leaves, of the most numerous address in the most numerous block of addresses. For libp2p a connection is
silent until its handshake is complete, for HTTP whenever no request is being answered. Pure but for the cancel scopes
that it is handed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from p2p.address import prefix_of


class Cancellable(Protocol):
    """A trio.CancelScope, as far as we need one."""

    def cancel(self) -> None: ...


class SilentConnections:
    """Keeps at most ``capacity`` scopes in order of arrival, and cancels one when there are more."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._silent: dict[Cancellable, tuple[str, str]] = {}
        """Block and address of each."""

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
        """While inside, ``scope`` may be cancelled in favour of a newcomer."""
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
