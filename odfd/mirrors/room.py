"""How much room mirrors have on disk, and who gets it: counted to the byte, promised before anything is asked for.

What counts is what mirrors hold, what is promised to fetches under way, and what was left of those that were cut off.
Where room is short, mirrors of a lower priority give way, the lowest and the oldest data first; equals never do. Safe
to use from any thread; made with the arrivals.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from chain.errors import Environment
from chain.multihash import Multihash
from chain.store.objects import disk
from odfd.mirrors.keeping import Keeping
from odfd.mirrors.wish import Wish


class Room:
    """See the module. ``limit`` in bytes; 0: none. ``partial``: the folder of what is on its way."""

    def __init__(self, keeping: Keeping, partial: Path, limit: int) -> None:
        self._keeping = keeping
        self._partial = partial
        self.limit = limit
        self._promised: dict[Multihash, int] = {}
        self._lock = threading.Lock()

    @property
    def promised(self) -> int:
        """Bytes of objects that are being fetched and not counted yet."""
        with self._lock:
            return sum(self._promised.values())

    def promise(self, wish: Wish, missing: Mapping[Multihash, int]) -> None:
        """Room for these, or for none of them. Raises Environment."""
        with self._lock:
            new = {name: size for name, size in missing.items() if name not in self._promised}
            if self.limit:
                self._find(wish, new)
            self._promised |= new

    def take_back(self, names: Iterable[Multihash]) -> None:
        """Promises that are kept, and counted, or broken."""
        with self._lock:
            for name in names:
                self._promised.pop(name, None)

    def _find(self, wish: Wish, new: Mapping[Multihash, int]) -> None:
        needed, used = sum(new.values()), self._used(new)
        if used + needed > self.limit and self._keeping.give_way(wish, used + needed - self.limit):
            used = self._used(new)
        if needed and used + needed > self.limit:
            raise Environment(
                f"{needed:,} bytes are missing, and of the {self.limit:,} that mirrors may hold {used:,} are taken",
                rule="mirror-quota",
                hint="raise limits.mirror-bytes, keep less of some mirror (odfctl mirror add … --keep 30d), or let "
                "others give way to this one (--priority)",
            )

    def _used(self, new: Mapping[Multihash, int]) -> int:
        """Bytes; what is there already of ``new`` is part of what is needed."""
        left = 0
        with disk(self._partial):
            for file in self._partial.iterdir():
                name = Multihash.parse(file.name)
                if name not in self._promised and name not in new:
                    left += file.stat().st_size
        return self._keeping.held_bytes() + sum(self._promised.values()) + left
