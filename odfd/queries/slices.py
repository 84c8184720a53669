"""Lists the slices of a chain up to a cut, cached as long as its history stays the same.

The cache is bounded. Used from worker threads.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from typing import Final

import cachetools
import msgspec

from chain.ids import DatasetId
from chain.model.events import AddData, DataSlice, ExecuteTransform
from chain.store.sqlite import SqliteChain
from odfd.runtime.hanging_calls import end_if_unwanted

_DATA: Final = ("AddData", "ExecuteTransform")
_DATASETS: Final = 64
"""Most datasets whose slices are cached."""


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
        # Read before the slices: a rewrite in between makes this list outdated, not wrong for the new history.
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


def _sequence(placed: PlacedSlice) -> int:
    return placed.sequence


def _between(chain: SqliteChain, start: int, stop: int) -> list[PlacedSlice]:
    newest: list[PlacedSlice] = []
    before = stop
    while (block := chain.last_of(_DATA, before)) is not None and block.sequence_number >= start:
        end_if_unwanted()
        before = block.sequence_number
        if isinstance(block.event, AddData | ExecuteTransform) and block.event.new_data is not None:
            newest.append(PlacedSlice(block.sequence_number, block.event.new_data))
    return newest[::-1]
