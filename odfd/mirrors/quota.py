"""Divides the disk space of mirrors: counts what they hold, and reserves space before anything is fetched.

What counts is what mirrors hold, what is promised to fetches under way, and what was left of those that were cut off.
Where room is short, those leftovers go first; then mirrors of a lower priority give way, the lowest and the oldest data
first; equals never do. Safe to use from any thread; made with the arrivals.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from chain.errors import Environment
from chain.multihash import Multihash
from chain.store.files import disk
from odfd.mirrors.data_retention import DataRetention
from odfd.mirrors.mirror_spec import MirrorSpec


class MirrorQuota:
    """The disk quota of all mirrors of a node.

    ``limit`` in bytes; 0: none. ``partial``: the folder of what is on its way.
    """

    def __init__(
        self, keeping: DataRetention, partial: Path, limit: int, busy: Callable[[], Collection[str]] = tuple
    ) -> None:
        """``busy``: names of files there that are written just now."""
        self._keeping = keeping
        self._partial = partial
        self._busy = busy
        self.limit = limit
        self._promised: dict[Multihash, int] = {}
        self._lock = threading.Lock()

    def to_come(self, missing: Mapping[Multihash, int]) -> int:
        """Bytes of these and of what is promised that are not on the disk yet. Raises Environment."""
        here = {file.name: stat.st_size for file, stat in self._files()}
        with self._lock:
            wanted = {**self._promised, **missing}
        begun = sum(min(size, here.get(str(name), 0)) for name, size in wanted.items()) if here else 0
        return sum(wanted.values()) - begun

    def promise(self, wish: MirrorSpec, missing: Mapping[Multihash, int]) -> None:
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

    def _find(self, wish: MirrorSpec, new: Mapping[Multihash, int]) -> None:
        needed, left = sum(new.values()), self._left(new)
        used = self._keeping.held_bytes() + sum(self._promised.values())
        busy = self._busy()
        idle = [file for file in left if file.name not in busy]
        over = used + sum(left.values()) + needed - self.limit
        beyond = over - sum(left[file] for file in idle)
        if needed and beyond > 0 and not self._keeping.give_way(wish, beyond):
            raise Environment(
                f"{needed:,} bytes are missing, and of the {self.limit:,} that mirrors may hold {used:,} are taken",
                rule="mirror-quota",
                hint="raise limits.mirror-bytes, keep less of some mirror (odfctl mirror add … --keep 30d), or let "
                "others give way to this one (--priority)",
            )
        over -= max(0, beyond)
        for file in idle:
            if needed and over > 0:
                with disk(file):
                    file.unlink(missing_ok=True)
                over -= left[file]

    def _left(self, new: Mapping[Multihash, int]) -> dict[Path, int]:
        """Files of fetches that were cut off, the oldest first, and their bytes.

        What is there already of ``new`` is none: it is part of what is needed.
        """
        known = {str(name) for name in (*self._promised, *new)}
        left = [(file, stat) for file, stat in self._files() if file.name not in known]
        return {file: stat.st_size for file, stat in sorted(left, key=lambda each: each[1].st_mtime_ns)}

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        """What is on its way, or was. Raises Environment."""
        found: list[tuple[Path, os.stat_result]] = []
        with disk(self._partial):
            for file in self._partial.iterdir():
                with suppress(FileNotFoundError):  # it is whole by now, and elsewhere
                    found.append((file, file.stat()))
        return found
