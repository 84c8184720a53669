"""Determines whether the rows of a dataset have event times of their own, or those of their blocks.

The chain tells: rows that are stamped take the watermark to the time of their block. Reads blocks in proportion to the
logarithm of their number.
"""

from __future__ import annotations

import bisect

from chain.model.events import AddData
from chain.state import ChainState
from chain.store.base import ChainReader

_DATA = ("AddData",)


def has_own_times(reader: ChainReader, state: ChainState) -> bool:
    """False also before the first rows."""
    block = reader.last_of(_DATA, state.size)
    while block is not None and isinstance(block.event, AddData) and block.event.new_data is None:
        block = reader.last_of(_DATA, block.sequence_number)
    if block is None or not isinstance(block.event, AddData) or block.event.new_watermark is None:
        return False
    mark, size = block.event.new_watermark, block.sequence_number + 1
    place = bisect.bisect_left(range(size), mark, key=lambda number: reader.block_at(number).system_time)
    return place == size or reader.block_at(place).system_time != mark
