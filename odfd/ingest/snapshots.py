"""Decides whether rows have event times of their own, and moves the watermark of an unchanged snapshot source.

Rows of a snapshot without event times of their own have that of their file or block, and so has the watermark. What is
earlier than a watermark is complete; rows that are as old as it are not yet. So a table of such rows would show them
only when the next change comes, were a second look at the same snapshot not to move the watermark. It does so once:
the looks after that find nothing that waits. The chain tells which rows are such: reads blocks in proportion to the
logarithm of their number.
"""

from __future__ import annotations

import bisect

from chain.data.operations import APPEND, CORRECT_TO
from chain.data.parquet import open_slice
from chain.instant import Instant, to_millis
from chain.libraries import pa, pc
from chain.model.events import AddData, SetPollingSource
from chain.model.source import FetchFilesGlob, FetchUrl, FromPath, traits
from chain.state import ChainState
from chain.store.base import ChainReader, ObjectStore
from odfd.ingest.settlement import (
    watermark_only,
)


def confirmed(
    reader: ChainReader, state: ChainState, objects: ObjectStore, source: SetPollingSource, now: Instant
) -> AddData | None:
    """Builds the event that confirms the last snapshot at ``now``, or ``None`` if confirmed or with own event times."""
    mark = state.watermark
    if not traits(source.merge).whole_state or mark is None or now <= mark:
        return None
    if isinstance(source.fetch, FetchUrl | FetchFilesGlob) and isinstance(source.fetch.event_time, FromPath):
        return None  # what the next file is called may say any time
    last = _last_rows(reader, state)
    if last is None or last.new_watermark != mark:
        return None
    if has_own_times(reader, state) and not _are_of_one_time(last, state, objects):
        return None
    return watermark_only(state, now)


def _last_rows(reader: ChainReader, state: ChainState) -> AddData | None:
    block = reader.last_of(("AddData",), state.size)
    while block is not None and isinstance(block.event, AddData):
        if block.event.new_data is not None:
            return block.event
        block = reader.last_of(("AddData",), block.sequence_number)
    return None


def _are_of_one_time(last: AddData, state: ChainState, objects: ObjectStore) -> bool:
    """Whether the new rows have the time of their file, as the watermark has. Two at least: one proves nothing."""
    assert last.new_data is not None
    assert last.new_watermark is not None
    op, time = state.vocab.operation_type, state.vocab.event_time
    with open_slice(objects.content(last.new_data.physical_hash)) as file:
        rows = file.read([op, time])
    new = rows.filter(pc.is_in(rows[op].cast(pa.int32()), pa.array([APPEND, CORRECT_TO], pa.int32())))
    times = new[time].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    return len(times) > 1 and times.null_count == 0 and pc.unique(times).to_pylist() == [to_millis(last.new_watermark)]


_DATA = ("AddData",)


def has_own_times(reader: ChainReader, state: ChainState) -> bool:
    """Whether rows have event times of their own; False before the first rows."""
    block = reader.last_of(_DATA, state.size)
    while block is not None and isinstance(block.event, AddData) and block.event.new_data is None:
        block = reader.last_of(_DATA, block.sequence_number)
    if block is None or not isinstance(block.event, AddData) or block.event.new_watermark is None:
        return False
    mark, size = block.event.new_watermark, block.sequence_number + 1
    place = bisect.bisect_left(range(size), mark, key=lambda number: reader.block_at(number).system_time)
    return place == size or reader.block_at(place).system_time != mark
