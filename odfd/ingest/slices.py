"""The slices of a chain, oldest first, remembered between transactions so that only new blocks are read.

One per process; holds 34 bytes and a number per slice. A chain that was cut back or replaced is noticed by the hash of
the newest block it remembers, and read anew.
"""

from __future__ import annotations

from chain.ids import DatasetId
from chain.model.events import AddData, ExecuteTransform
from chain.multihash import Multihash
from chain.state import ChainState
from chain.store.base import ChainReader

_DATA = ("AddData", "ExecuteTransform")


class SliceIndex:
    """Which objects hold a dataset's rows."""

    def __init__(self) -> None:
        self._known: dict[DatasetId, tuple[int, Multihash, tuple[Multihash, ...]]] = {}

    def slices(self, reader: ChainReader, state: ChainState) -> tuple[Multihash, ...]:
        """Of the chain up to ``state``. Reads the data blocks that were not there the last time."""
        assert state.dataset is not None
        number, block_hash, older = self._known.get(state.dataset, (-1, None, ()))
        if number >= state.size or (number >= 0 and reader.block_at(number).hash != block_hash):
            number, older = -1, ()
        newer: list[Multihash] = []
        block = reader.last_of(_DATA, state.size)
        newest = block
        while block is not None and block.sequence_number > number:
            event = block.event
            if isinstance(event, AddData | ExecuteTransform) and event.new_data is not None:
                newer.append(event.new_data.physical_hash)
            block = reader.last_of(_DATA, block.sequence_number)
        found = (*older, *reversed(newer))
        if newest is not None:
            self._known[state.dataset] = (newest.sequence_number, newest.hash, found)
        return found

    def forget(self, dataset: DatasetId) -> None:
        self._known.pop(dataset, None)
