"""Decides whether rows have event times of their own, and moves the watermark of an unchanged snapshot source.

Rows of a snapshot without event times of their own have the time of their file or block, and so has the watermark. Rows
earlier than the watermark are complete; those as old as it are not yet. A table of such rows would therefore show them
only after the next change, unless a second look at the same snapshot moves the watermark. It does so once: later looks
find nothing that waits. Whether rows are of this kind is read from the chain: a number of blocks that grows with the
logarithm of their count.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import TypeAlias

from chain.data.operations import APPEND, CORRECT_TO
from chain.data.parquet import open_slice
from chain.instant import Instant, to_millis
from chain.libraries import pa, pc
from chain.model.block import Block
from chain.model.events import AddData, SetPollingSource
from chain.model.source import FetchFilesGlob, FetchUrl, FromPath, traits
from chain.state import ChainState
from chain.store.base import ChainReader, ObjectStore
from odfd.ingest.plan import Batch, SourceInForce, guesses_columns
from odfd.ingest.settlement import watermark_only

_DATA = ("AddData",)
Shards: TypeAlias = Sequence[tuple[ChainReader, ChainState]]
"""The chains that hold the rows of a source, at the same moment: one, or several that are written together."""


def confirm(shards: Shards, objects: ObjectStore, source: SetPollingSource, now: Instant) -> AddData | None:
    """Builds the event that confirms the last snapshot at ``now``, or ``None`` if confirmed or with own event times."""
    state = shards[0][1]
    mark = state.watermark
    if not traits(source.merge).whole_state or mark is None or now <= mark:
        return None
    if isinstance(source.fetch, FetchUrl | FetchFilesGlob) and isinstance(source.fetch.event_time, FromPath):
        return None  # the name of the next file may give any time
    last = _last_rows(shards)
    if not last or last[0].new_watermark != mark:
        return None
    if has_own_times(shards) and not _are_of_one_time(last, state, objects):
        return None
    return watermark_only(state, now)


def _last_rows(shards: Shards) -> list[AddData]:
    """Returns the newest events with rows: one of each shard that got rows at the newest such time."""
    found = [block for shard in shards if (block := _last_block(*shard)) is not None]
    newest = max((block.system_time for block in found), default=None)
    events = (block.event for block in found if block.system_time == newest)
    return [event for event in events if isinstance(event, AddData)]


def _last_block(reader: ChainReader, state: ChainState) -> Block | None:
    """Returns the newest block with rows."""
    block = reader.last_of(_DATA, state.size)
    while block is not None and isinstance(block.event, AddData) and block.event.new_data is None:
        block = reader.last_of(_DATA, block.sequence_number)
    return block


def _are_of_one_time(last: Sequence[AddData], state: ChainState, objects: ObjectStore) -> bool:
    """Whether all new rows have their file's time, as the watermark has. False for one row: it proves nothing."""
    mark = last[0].new_watermark
    assert mark is not None
    op, time = state.vocab.operation_type, state.vocab.event_time
    parts = []
    for each in last:
        assert each.new_data is not None
        with open_slice(objects.content(each.new_data.physical_hash)) as file:
            parts.append(file.read([op, time]))
    rows = pa.concat_tables(parts)
    new = rows.filter(pc.is_in(rows[op].cast(pa.int32()), pa.array([APPEND, CORRECT_TO], pa.int32())))
    times = new[time].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    return len(times) > 1 and times.null_count == 0 and pc.unique(times).to_pylist() == [to_millis(mark)]


def needs_event_time(batch: Batch, source: SourceInForce, shards: Shards) -> bool:
    """Whether the files must have event times, because earlier ones had and nothing else says them."""
    return batch.event_time is None and guesses_columns(source) and has_own_times(shards)


def has_own_times(shards: Shards) -> bool:
    """Whether rows have event times of their own; False before the first rows."""
    found = [(block, reader) for reader, state in shards if (block := _last_block(reader, state)) is not None]
    block, reader = max(found, key=lambda each: each[0].system_time, default=(None, shards[0][0]))
    if block is None or not isinstance(block.event, AddData) or block.event.new_watermark is None:
        return False
    mark, size = block.event.new_watermark, block.sequence_number + 1
    place = bisect.bisect_left(range(size), mark, key=lambda number: reader.block_at(number).system_time)
    return place == size or reader.block_at(place).system_time != mark
