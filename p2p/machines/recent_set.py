"""Remembers what was seen lately, in a bounded set that forgets the least recently seen."""

from __future__ import annotations

from typing import Final

from cachetools import FIFOCache

SEEN: Final = 65_536
"""Ids remembered (docs/spec/trust.md#gossip): at 50 a second from a peer, twenty minutes; about 10 MiB."""


class Seen:
    """A set of ids with room for ``capacity``."""

    def __init__(self, capacity: int = SEEN) -> None:
        self._ids: FIFOCache[bytes, None] = FIFOCache(capacity)

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, name: bytes) -> bool:
        """Remember ``name``; whether it is new. Meeting it again makes it young."""
        new = name not in self._ids
        self._ids[name] = None
        return new

    def __contains__(self, name: bytes) -> bool:
        return name in self._ids
