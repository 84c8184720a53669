"""Indexes the files that hold a dataset's earlier rows, for merging: slices, with small ones merged into segments.

It is remembered, so that only new blocks are read. One per process; holds some hundred bytes for each file. A chain
that was cut back or replaced is noticed by the hash of the newest block that is remembered: what is of its history
stays, the rest is read anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chain.codec.arrow_schema import schema_of
from chain.data.arrow_schema import to_arrow
from chain.ids import DatasetId
from chain.model.events import AddData, ExecuteTransform
from chain.model.source import MergeStrategy
from chain.multihash import Multihash
from chain.state import ChainState
from chain.store.base import ChainReader, ObjectStore
from odfd.ingest.segments import Keys, Segment, SegmentFolder, keys_of

_DATA = ("AddData", "ExecuteTransform")


class SliceIndex:
    """Which files hold a dataset's rows. ``folder`` for merged ones; without it there are none."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._known: dict[tuple[DatasetId, Keys], list[Segment]] = {}

    def parts(
        self, reader: ChainReader, state: ChainState, objects: ObjectStore, merge: MergeStrategy
    ) -> list[tuple[Multihash, Path]]:
        """Files with all rows up to ``state`` that the strategy may ask for, oldest first, and their hashes.

        Reads the data blocks that were not there the last time.
        """
        assert state.dataset is not None
        keys = keys_of(merge)
        kept = None if self._folder is None else SegmentFolder(self._folder, state.dataset, keys)
        known = self._known.get((state.dataset, keys))
        if known is None:
            known = [] if kept is None else kept.load()
        segments = _still_there(known, reader, state)
        segments += _newer(reader, state, segments[-1].last if segments else -1)
        if kept is not None and state.schema is not None:
            settled = kept.settle(segments, objects, to_arrow(schema_of(state.schema)), state.vocab.offset)
            if settled != segments:
                kept.save(settled)
            segments = settled
        self._known[state.dataset, keys] = segments
        return [
            (each.hash, kept.path(each) if kept is not None and each.made else objects.path(each.hash))
            for each in segments
        ]

    def mend(self, dataset: DatasetId) -> bool:
        """Look at all merged files of a dataset; whether one was damaged, and is done without from now on."""
        damaged = False
        for (each, keys), segments in list(self._known.items()):
            if each == dataset and self._folder is not None:
                whole = SegmentFolder(self._folder, dataset, keys).whole(segments)
                damaged = damaged or whole != segments
                self._known[each, keys] = whole
        return damaged


def _still_there(known: Sequence[Segment], reader: ChainReader, state: ChainState) -> list[Segment]:
    """Those whose last block is one of the chain's: with it is all that came before it."""
    for count in range(len(known), 0, -1):
        last = known[count - 1]
        if last.last < state.size and str(reader.block_at(last.last).hash) == last.block:
            return list(known[:count])
    return []


def _newer(reader: ChainReader, state: ChainState, after: int) -> list[Segment]:
    """Slices of the blocks behind number ``after``, each as a segment of its own."""
    newer: list[Segment] = []
    block = reader.last_of(_DATA, state.size)
    while block is not None and block.sequence_number > after:
        event, number = block.event, block.sequence_number
        if isinstance(event, AddData | ExecuteTransform) and (data := event.new_data) is not None:
            newer.append(
                Segment(
                    first=number,
                    last=number,
                    block=str(block.hash),
                    name=str(data.physical_hash),
                    size=data.size,
                    rows=data.offset_interval.end - data.offset_interval.start + 1,
                )
            )
        block = reader.last_of(_DATA, number)
    return newer[::-1]
