"""Remembers what was seen lately, in a bounded set that forgets the least recently seen."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

SEEN: Final = 65_536
"""Ids remembered (docs/spec/trust.md#gossip): at 50 a second from a peer, twenty minutes; about 10 MiB."""


class Seen:
    """A set of ids with room for ``capacity``."""

    def __init__(self, capacity: int = SEEN) -> None:
        self._capacity = capacity
        self._ids: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, name: bytes) -> bool:
        """Remember ``name``; whether it is new. Meeting it again makes it young."""
        new = name not in self._ids
        self._ids[name] = None
        self._ids.move_to_end(name)
        if len(self._ids) > self._capacity:
            self._ids.popitem(last=False)
        return new

    def __contains__(self, name: bytes) -> bool:
        return name in self._ids
