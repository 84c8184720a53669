"""Limits connections whose handshake is not complete: few in total, and shared fairly between addresses.

Without it, a few hundred silent TCP connections keep every honest node out until their timeout. The newcomer always
gets in; the oldest leaves, of the most numerous address in the most numerous block of addresses. Pure but for the
cancel scopes that it is handed.
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


class HandshakeLimiter:
    """Pending handshakes, in order of arrival."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._pending: dict[Cancellable, str] = {}

    def __len__(self) -> int:
        return len(self._pending)

    @contextmanager
    def pending(self, address: str, scope: Cancellable) -> Iterator[None]:
        """While inside, ``scope`` may be cancelled in favour of a newcomer."""
        if len(self._pending) >= self._capacity:
            self._make_room()
        self._pending[scope] = address
        try:
            yield
        finally:
            self._pending.pop(scope, None)

    def _make_room(self) -> None:
        blocks = Counter(map(prefix_of, self._pending.values()))
        block = blocks.most_common(1)[0][0]
        crowd = Counter(one for one in self._pending.values() if prefix_of(one) == block).most_common(1)[0][0]
        oldest = next(scope for scope, address in self._pending.items() if address == crowd)
        del self._pending[oldest]
        oldest.cancel()
