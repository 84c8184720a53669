"""Lists the slices of a chain up to a cut, cached as long as its history stays the same; checks the bytes of slices.

A slice is hashed before a query first reads it, and again when its file was replaced or changed; so damage is reported
and damaged data never read. Both caches are bounded. Used from worker threads.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from pathlib import Path
from typing import Final

import cachetools
import msgspec

from chain.ids import DatasetId
from chain.model.events import AddData, DataSlice, ExecuteTransform
from chain.multihash import Multihash
from chain.store.files import check_file
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChain

_DATA: Final = ("AddData", "ExecuteTransform")
_DATASETS: Final = 64
"""Most datasets whose slices are cached."""
_HASHED: Final = 100_000
"""Most files that are remembered as matching their hash."""


class PlacedSlice(msgspec.Struct, frozen=True):
    """A slice with the number of its block."""

    sequence: int
    slice: DataSlice


class _Known(msgspec.Struct, frozen=True):
    history: tuple[int, int]
    size: int
    slices: list[PlacedSlice]


class SliceLists:
    """Lists the slices of datasets; reads each data block only once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: cachetools.LRUCache[DatasetId, _Known] = cachetools.LRUCache(_DATASETS)

    def of(self, dataset: DatasetId, chain: SqliteChain, size: int, first: int = 0) -> list[PlacedSlice]:
        """Returns the slices of the first ``size`` blocks, oldest first, without those of blocks before ``first``."""
        snapshot = chain.snapshot()
        history = (0, 0) if snapshot is None else snapshot.history
        with self._lock:
            known = self._known.get(dataset)
        if known is None or known.history != history:
            known = _Known(history, 0, [])
        if known.size < size:
            known = _Known(history, size, known.slices + _between(chain, known.size, size))
            with self._lock:
                self._known[dataset] = known
        start, stop = (bisect_left(known.slices, each, key=_sequence) for each in (first, size))
        return known.slices[start:stop]


class HashedFiles:
    """Remembers files that were read completely and match their hashes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sound: cachetools.LRUCache[Multihash, tuple[int, int, int, int]] = cachetools.LRUCache(_HASHED)

    def path(self, objects: DiskObjects, name: Multihash) -> Path:
        """Returns the path of an object whose bytes match its hash. Raises NotFound, ObjectDamaged, Environment."""
        path = objects.path(name)
        found = path.stat()
        mark = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_dev)
        with self._lock:
            if self._sound.get(name) == mark:
                return path
        check_file(path, name)
        with self._lock:
            self._sound[name] = mark
        return path


def _sequence(placed: PlacedSlice) -> int:
    return placed.sequence


def _between(chain: SqliteChain, start: int, stop: int) -> list[PlacedSlice]:
    newest: list[PlacedSlice] = []
    before = stop
    while (block := chain.last_of(_DATA, before)) is not None and block.sequence_number >= start:
        before = block.sequence_number
        if isinstance(block.event, AddData | ExecuteTransform) and block.event.new_data is not None:
            newest.append(PlacedSlice(block.sequence_number, block.event.new_data))
    return newest[::-1]
