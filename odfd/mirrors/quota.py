"""Divides the disk space of mirrors: counts what they take, reserves space before a fetch, and limits rates.

What counts is all that a stranger can make a mirror write: objects and blocks, what the tables about them take, what is
promised to fetches under way (objects, and blocks that wait to be proven), what was left of those that were cut off,
and blocks that are staged as files. Where room is short, leftovers go first; then mirrors of a lower priority give way,
the lowest and the oldest data first; equals never do. Safe to use from any thread; made with the arrivals.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final

from chain.errors import Environment
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.store.files import disk
from odfd.datasets.holdings import PER_OBJECT
from odfd.mirrors.data_retention import DataRetention
from odfd.mirrors.mirror_spec import MirrorSpec
from odfd.mirrors.retention import parse_rate
from p2p.pace import Pace

_NOTHING: Final[Mapping[Multihash, int]] = MappingProxyType({})


class MirrorQuota:
    """The disk quota of all mirrors of a node. ``limit`` in bytes; 0: none. ``partial``: folder of partial files."""

    def __init__(
        self, keeping: DataRetention, partial: Path, limit: int, busy: Callable[[], Collection[str]] = tuple
    ) -> None:
        """``busy``: names of files there that are written just now."""
        self._keeping = keeping
        self._partial = partial
        self._busy = busy
        self.limit = limit
        self._promised: dict[Multihash, int] = {}
        self._blocks = 0
        """Promised to blocks that are not proven yet."""
        self._lock = threading.Lock()
        self.staged: Callable[[], int] = lambda: 0
        """Bytes of blocks that lie in files until they are taken over."""
        self.remove_leftovers: Callable[[], None] = lambda: None
        """Removes leftovers that no task takes over any more."""

    def to_come(self, missing: Mapping[Multihash, int]) -> int:
        """Computes the bytes of these and of reserved objects that are not on the disk yet. Raises Environment."""
        # A file of pieces has holes.
        here = {file.name: min(stat.st_size, 512 * stat.st_blocks) for file, stat in self._files()}
        with self._lock:
            wanted = {**self._promised, **missing}
        begun = sum(min(size, here.get(str(name), 0)) for name, size in wanted.items()) if here else 0
        return sum(wanted.values()) - begun

    def promise(self, spec: MirrorSpec, missing: Mapping[Multihash, int]) -> None:
        """Room for these, or for none of them. Raises Environment."""
        with self._lock:
            new = {name: size for name, size in missing.items() if name not in self._promised}
            if self.limit:
                self._find(spec, sum(new.values()) + PER_OBJECT * len(new), new)
            self._promised |= new

    def promise_blocks(self, spec: MirrorSpec, size: int) -> None:
        """Room for blocks of so many bytes. Raises Environment."""
        with self._lock:
            if self.limit:
                self._find(spec, size)
            self._blocks += size

    def take_back_blocks(self, size: int) -> None:
        """They are kept, and counted, or did not prove true."""
        with self._lock:
            self._blocks -= size

    def check_staged(self, size: int) -> None:
        """Whether so many more bytes may be staged, for whichever mirror: no other gives way. Raises Environment."""
        with self._lock:
            if self.limit:
                self._find(None, size)

    def take_back(self, names: Iterable[Multihash]) -> None:
        """Promises that are kept, and counted, or broken."""
        with self._lock:
            for name in names:
                self._promised.pop(name, None)

    def _find(self, spec: MirrorSpec | None, needed: int, new: Mapping[Multihash, int] = _NOTHING) -> None:
        left = self._left(new)
        promised = sum(self._promised.values()) + PER_OBJECT * len(self._promised) + self._blocks
        used = self._keeping.taken() + promised + self.staged()
        if used + needed > self.limit:
            used -= self.staged()
            self.remove_leftovers()
            used += self.staged()
        busy = self._busy()
        idle = [file for file in left if file.name not in busy]
        over = used + sum(left.values()) + needed - self.limit
        beyond = over - sum(left[file] for file in idle)
        if needed and beyond > 0 and (spec is None or not self._keeping.give_way(spec, beyond)):
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
        """Partial files of cancelled fetches, oldest first, and their bytes, without ``new``, which is needed."""
        known = {str(name) for name in (*self._promised, *new)}
        left = [(file, stat) for file, stat in self._files() if file.name not in known]
        return {file: stat.st_size for file, stat in sorted(left, key=lambda each: each[1].st_mtime_ns)}

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        """Returns what is on its way, or was. Raises Environment."""
        found: list[tuple[Path, os.stat_result]] = []
        with disk(self._partial):
            for file in self._partial.iterdir():
                with suppress(FileNotFoundError):  # it is whole by now, and elsewhere
                    found.append((file, file.stat()))
        return found


class BlockQuota:
    """The room for the blocks of one walk of a mirror, promised as they come. Safe to use from any thread."""

    def __init__(self, quota: MirrorQuota, spec: MirrorSpec) -> None:
        self._quota = quota
        self._spec = spec
        self._taken = 0
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        """Raises Environment: there is no room for so many bytes more."""
        with self._lock:
            self._quota.promise_blocks(self._spec, size)
            self._taken += size

    def give_back(self, size: int) -> None:
        with self._lock:
            self._quota.take_back_blocks(size)
            self._taken -= size

    def close(self) -> None:
        """Release the rest of the reservation."""
        self.give_back(self._taken)


class RateLimits:
    """One for each dataset with a cap; it outlives passes, so that many small ones keep it too."""

    def __init__(self) -> None:
        self._by_dataset: dict[DatasetId, Pace] = {}

    def of(self, spec: MirrorSpec | None) -> Pace | None:
        """``None``: no cap of its own. A cap that was changed holds for what is under way too."""
        if spec is None:
            return None
        if spec.rate is None:
            freed = self._by_dataset.pop(spec.id, None)
            if freed is not None:
                freed.rate = 0
            return None
        pace = self._by_dataset.setdefault(spec.id, Pace())
        pace.rate = parse_rate(spec.rate)
        return pace
