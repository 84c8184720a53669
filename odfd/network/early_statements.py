"""Holds statements that arrived before the authority version they depend on, and retries them when it arrives.

In memory and bounded: the sender of most of what waits makes room first. Whatever had to make room is asked for again,
since anti-entropy finds it still lacking. Safe to use from any thread.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from typing import Final

from chain.ids import DatasetId
from p2p.ports import PeerId

MAX_WAITING: Final = 512
"""Envelopes of at most 16 KiB each."""
MAX_OF_ONE: Final = 64
"""Of one dataset: its own versions come in any order, and some heads with them."""


class EarlyStatements:
    """A bounded store of waiting statements. The oldest of whoever sent most make room."""

    def __init__(self) -> None:
        self._by_envelope: OrderedDict[bytes, tuple[DatasetId, PeerId]] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, dataset: DatasetId, envelope: bytes, sender: PeerId) -> None:
        with self._lock:
            same = [raw for raw, (of, _) in self._by_envelope.items() if of == dataset]
            if envelope not in self._by_envelope and len(same) >= MAX_OF_ONE:
                del self._by_envelope[same[0]]
            self._by_envelope[envelope] = (dataset, sender)
            if len(self._by_envelope) > MAX_WAITING:
                heaviest, _ = Counter(of for _, of in self._by_envelope.values()).most_common(1)[0]
                del self._by_envelope[next(raw for raw, (_, of) in self._by_envelope.items() if of == heaviest)]

    def take(self, dataset: DatasetId) -> list[tuple[bytes, PeerId]]:
        """All of one dataset, oldest first; they wait no longer."""
        with self._lock:
            taken = [(raw, sender) for raw, (of, sender) in self._by_envelope.items() if of == dataset]
            for raw, _ in taken:
                del self._by_envelope[raw]
        return taken
