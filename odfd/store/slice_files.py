"""Returns the files of slices to readers of rows, once their bytes match their hashes.

A slice is hashed before it is first read, again when its file was replaced or changed, and again after a day, because a
disk may lose bytes without a change of the file's time. So no reader gets rows of a damaged slice. A fault names the
dataset and the block, and says what can be done. Used from worker threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import cachetools

from chain.errors import Environment, NotFound
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.store.files import DAMAGED, ObjectDamaged, check_file
from chain.store.objects import DiskObjects
from odfd.runtime.hanging_calls import end_if_unwanted
from odfd.store.catalog import Catalog
from odfd.store.damage import DamagedBlock

MISSING: Final = "stored-object-missing"
_HASHED: Final = 100_000
"""Most files that are remembered as matching their hash."""


_DAY: Final = 86_400.0
"""Seconds for which a file is believed."""


_Mark = tuple[int, int, int, int]
"""Inode, size, time and device of a file."""


class SliceMissing(Environment):
    """Raised for a slice that a block names, whose file is not there."""


class SliceFiles:
    """The slices of one node. The cache of files that match their hashes is bounded."""

    def __init__(
        self,
        objects: DiskObjects,
        catalog: Callable[[], AbstractContextManager[Catalog]],
        found: Callable[[DatasetId, DamagedBlock], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``found``: called with each damaged slice; ``clock``: returns seconds."""
        self._objects, self._catalog, self._clock = objects, catalog, clock
        self._lock = threading.Lock()
        self._sound: cachetools.LRUCache[Multihash, tuple[_Mark, float]] = cachetools.LRUCache(_HASHED)
        self._found = found

    def path(self, name: Multihash, dataset: DatasetId, sequence: int) -> Path:
        """Returns the path of a slice of a block, whose bytes match its hash.

        Raises ObjectDamaged after ``found`` was told, SliceMissing, Environment.
        """
        end_if_unwanted()
        try:
            return self._hash(name)
        except ObjectDamaged as fault:
            self._found(dataset, DamagedBlock(sequence, DAMAGED, str(fault)))
            self._name(fault, dataset, sequence)
            raise
        except NotFound as error:
            missing = SliceMissing(f"object {name.short} is missing on disk", rule=MISSING)
            self._name(missing, dataset, sequence)
            raise missing from error

    def of(self, dataset: DatasetId) -> DatasetFiles:
        return DatasetFiles(self, dataset)

    def check_again(self, name: Multihash, dataset: DatasetId, sequence: int) -> None:
        """Hashes a slice that a reader could not read. Raises as ``path``."""
        with self._lock:
            self._sound.pop(name, None)
        self.path(name, dataset, sequence)

    def _hash(self, name: Multihash) -> Path:
        path = self._objects.path(name)
        try:
            found = path.stat()
        except FileNotFoundError as error:
            raise NotFound(f"no file {path}", rule="file-missing") from error
        mark = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_dev)
        with self._lock:
            known, since = self._sound.get(name, (None, 0.0))
        now = self._clock()
        if known == mark and now - since < _DAY:
            return path
        check_file(path, name)
        with self._lock:
            self._sound[name] = mark, now
        return path

    def _name(self, fault: Environment, dataset: DatasetId, sequence: int) -> None:
        """Says in a fault which dataset and block are affected, and what can be done."""
        with self._catalog() as catalog:
            entry = catalog.find(dataset)
        if entry is not None:
            fault.place = f"{entry.name} block #{sequence}"
            before = f"; AT BLOCK '#{sequence - 1}' reads what is before it" if sequence else ""
            fault.hint = f"odfctl pull {entry.name} --repair fetches it again from a peer that has it{before}"


@dataclass(frozen=True, slots=True)
class DatasetFiles:
    """The slices of one dataset. Methods are those of ``SliceFiles``."""

    files: SliceFiles
    dataset: DatasetId

    def path(self, name: Multihash, sequence: int) -> Path:
        return self.files.path(name, self.dataset, sequence)

    def check_again(self, name: Multihash, sequence: int) -> None:
        self.files.check_again(name, self.dataset, sequence)
