"""Divides the disk space of mirrors: counts what they use, reserves space before a fetch, and limits rates.

Everything counts that a stranger can make a mirror write: objects and blocks, the table rows about them, reservations
of fetches under way (objects, and blocks that wait to be proven), leftovers of interrupted fetches, and blocks staged
as files. If room is short, leftovers are deleted first; then data of mirrors with a lower priority, the lowest and the
oldest data first, never that of equal priority. Safe to use from any thread; made with the arrivals.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

from chain.errors import Environment
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.store.files import disk
from odfd.mirrors.data_retention import DataRetention
from odfd.store.holdings import PER_OBJECT
from odfd.store.mirror_specs import MirrorSpec
from odfd.store.retention import parse_rate
from p2p.pace import Pace

_NOTHING: Final[Mapping[Multihash, int]] = MappingProxyType({})


class StagedBlocks(Protocol):
    """The blocks that are staged in files, as ``odfd.published.staging`` counts them."""

    def total(self) -> int: ...

    def remove_leftovers(self) -> None:
        """Deletes leftovers that no task will continue."""
        ...


class MirrorQuota:
    """The disk quota of all mirrors of a node.
    ``limit`` in bytes, 0: none; ``partial``: the folder of partial files."""

    def __init__(
        self,
        keeping: DataRetention,
        partial: Path,
        limit: Callable[[], int],
        busy: Callable[[], Collection[str]],
        staging: StagedBlocks,
    ) -> None:
        """``busy``: returns the names of files in it that are being written; ``staging``: blocks staged in files."""
        self._keeping = keeping
        self._partial = partial
        self._busy = busy
        self._limit, self._staging = limit, staging
        self._promised: dict[Multihash, int] = {}
        self._blocks = 0
        """Bytes reserved for blocks that are not proven yet."""
        self._lock = threading.Lock()

    @property
    def limit(self) -> int:
        return self._limit()

    def staged(self) -> int:
        """Returns the bytes of blocks that are staged in files."""
        return self._staging.total()

    def to_come(self, missing: Mapping[Multihash, int]) -> int:
        """Computes the bytes of these and of reserved objects that are not on the disk yet. Raises Environment."""
        # A file of pieces has holes.
        here = {file.name: min(stat.st_size, 512 * stat.st_blocks) for file, stat in self._files()}
        with self._lock:
            wanted = {**self._promised, **missing}
        begun = sum(min(size, here.get(str(name), 0)) for name, size in wanted.items()) if here else 0
        return sum(wanted.values()) - begun

    def promise(self, spec: MirrorSpec, missing: Mapping[Multihash, int]) -> None:
        """Reserves room for all these objects, or for none. Raises Environment."""
        with self._lock:
            new = {name: size for name, size in missing.items() if name not in self._promised}
            if self.limit:
                self._find(spec, sum(new.values()) + PER_OBJECT * len(new), new)
            self._promised |= new

    def promise_blocks(self, spec: MirrorSpec, size: int) -> None:
        """Reserves room for blocks of so many bytes. Raises Environment."""
        with self._lock:
            if self.limit:
                self._find(spec, size)
            self._blocks += size

    def take_back_blocks(self, size: int) -> None:
        """Releases a reservation of blocks, because they are stored and counted, or were wrong."""
        with self._lock:
            self._blocks -= size

    def check_staged(self, size: int) -> None:
        """Checks that so many more bytes may be staged; no mirror gives way for that. Raises Environment."""
        with self._lock:
            if self.limit:
                self._find(None, size)

    def take_back(self, names: Iterable[Multihash]) -> None:
        """Releases reservations of objects, because they are stored and counted, or did not come."""
        with self._lock:
            for name in names:
                self._promised.pop(name, None)

    def _find(self, spec: MirrorSpec | None, needed: int, new: Mapping[Multihash, int] = _NOTHING) -> None:
        left = self._list_left_over(new)
        promised = sum(self._promised.values()) + PER_OBJECT * len(self._promised) + self._blocks
        used = self._keeping.taken() + promised + self.staged()
        if used + needed > self.limit:
            used -= self.staged()
            if self._staging is not None:
                self._staging.remove_leftovers()
            used += self.staged()
        busy = self._busy()
        idle = [file for file in left if file.name not in busy]
        over = used + sum(left.values()) + needed - self.limit
        beyond = over - sum(left[file] for file in idle)
        # Nobody knows yet what staged files are
        # (test_what_is_staged_is_within_the_quota_and_no_mirror_gives_way_for_it).
        if needed and beyond > 0 and (spec is None or not self._keeping.give_way(spec, beyond)):
            raise Environment(
                f"{needed:,} bytes are missing, and of the {self.limit:,} that mirrors may hold {used:,} are taken",
                rule="mirror-quota",
                hint="raise limits.mirror-bytes, keep less of some mirror (odfctl mirror add … --keep 30d), or give "
                "this one a higher --priority",
            )
        over -= max(0, beyond)
        for file in idle:
            if needed and over > 0:
                with disk(file):
                    file.unlink(missing_ok=True)
                over -= left[file]

    def _list_left_over(self, new: Mapping[Multihash, int]) -> dict[Path, int]:
        """Returns partial files of cancelled fetches with their bytes, oldest first;
        without those of ``new``, which are needed."""
        known = {str(name) for name in (*self._promised, *new)}
        left = [(file, stat) for file, stat in self._files() if file.name not in known]
        return {file: stat.st_size for file, stat in sorted(left, key=lambda each: each[1].st_mtime_ns)}

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        """Returns the partial files, of present and former fetches. Raises Environment."""
        found: list[tuple[Path, os.stat_result]] = []
        with disk(self._partial):
            for file in self._partial.iterdir():
                with suppress(FileNotFoundError):  # it is whole by now, and elsewhere
                    found.append((file, file.stat()))
        return found


class BlockQuota:
    """The room for the blocks of one walk of a mirror, reserved as they come. Safe to use from any thread."""

    def __init__(self, quota: MirrorQuota, spec: MirrorSpec) -> None:
        self._quota = quota
        self._spec = spec
        self._taken = 0
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        """Reserves so many more bytes. Raises Environment if there is no room."""
        with self._lock:
            self._quota.promise_blocks(self._spec, size)
            self._taken += size

    def give_back(self, size: int) -> None:
        with self._lock:
            self._quota.take_back_blocks(size)
            self._taken -= size

    def close(self) -> None:
        """Releases the rest of the reservation."""
        self.give_back(self._taken)


class RateLimits:
    """The rate limits of datasets that have a cap. They outlive passes, so that many small passes keep to a cap too."""

    def __init__(self) -> None:
        self._by_dataset: dict[DatasetId, Pace] = {}

    def of(self, spec: MirrorSpec | None) -> Pace | None:
        """Returns the limit of a dataset; ``None``: it has no cap. A changed cap applies to fetches under way too."""
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
