"""Locates records: the block that holds one, and the source of a root's records. Synchronous; bounded reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from chain.data.json_values import plain_rows
from chain.data.parquet import open_slice
from chain.errors import NotFound
from chain.model.block import Block
from chain.model.events import AddData, DataEvent, ExecuteTransform, SourceState
from chain.model.source import FetchFilesGlob, FetchMqtt, FetchStep, FetchUrl
from chain.state import load_state
from chain.store.base import ChainReader
from odfd.datasets.reading import DATA_KINDS

NO_SOURCE = "lineage-source"


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The source that a block's records were ingested from, as the chain says it."""

    kind: str
    """``polling`` or ``push``."""
    name: str = ""
    """Of a push source."""
    address: str = ""
    """URL, path or topic that is polled."""
    state: SourceState | None = None
    """What the source had come to with this block: an etag, a time, the name of the last file."""


def block_of_record(reader: ChainReader, offset: int) -> Block:
    """The block whose slice holds a record. Reads in proportion to the logarithm of the chain. Raises NotFound."""
    head = reader.head()
    low, high = 0, head.size if head else 0
    last = -1
    if head is not None and (newest := reader.last_of(DATA_KINDS, high)) is not None:
        last = _last_offset(newest)
    if not 0 <= offset <= last:
        hint = f"it has records 0 to {last}" if last >= 0 else "it has no records yet"
        raise NotFound(f"there is no record {offset}", rule="lineage-record", hint=hint)
    while low < high:
        middle = (low + high) // 2
        found = reader.last_of(DATA_KINDS, middle + 1)
        if found is not None and _last_offset(found) >= offset:
            high = middle
        else:
            low = middle + 1
    return reader.block_at(low)


def _last_offset(block: Block) -> int:
    """Of all records up to this block; -1: there is none."""
    event = data_of(block)
    if event.new_data is not None:
        return event.new_data.offset_interval.end
    return -1 if event.prev_offset is None else event.prev_offset


def data_of(block: Block) -> DataEvent:
    assert isinstance(block.event, AddData | ExecuteTransform)
    return block.event


def origin_of(reader: ChainReader, block: Block) -> Origin:
    """Raises NotFound for a chain that declares no source: then only the block itself says anything."""
    state = load_state(reader, block.sequence_number + 1)
    event = block.event
    reached = event.new_source_state if isinstance(event, AddData) else None
    if state.polling_source is not None:
        return Origin(kind="polling", address=_address(state.polling_source.fetch), state=reached)
    sources = state.active_push_sources
    if reached is not None and reached.source_name in sources:
        return Origin(kind="push", name=reached.source_name, state=reached)
    if sources:
        return Origin(kind="push", name=next(iter(sources)) if len(sources) == 1 else "", state=reached)
    raise NotFound(
        f"block #{block.sequence_number} was written without a source: its chain declares none",
        rule=NO_SOURCE,
        hint="who signed the block is all that is known of where its records came from",
    )


def _address(fetch: FetchStep) -> str:
    match fetch:
        case FetchUrl(url=url):
            return url
        case FetchFilesGlob(path=path):
            return path
        case FetchMqtt(host=host, port=port, topics=topics):
            return f"mqtt://{host}:{port}/{','.join(topic.path for topic in topics)}"
        case _:
            return type(fetch).__name__.removeprefix("Fetch")


def rows_at(path: Path, column: str, offsets: list[int]) -> dict[int, dict[str, object]]:
    """Records of a slice by offset, as JSON values. Raises Invalid, Environment."""
    with open_slice(path) as source:
        wanted = pa.array(offsets, pa.int64())
        found = list(_kept(source.batches(), column, wanted))
        schema = source.schema.remove_metadata()
    table = pa.Table.from_batches(found, schema=schema) if found else schema.empty_table()
    names = [name for name in table.column_names if name != column]
    keys = table.column(column).to_pylist()
    return {
        int(key): dict(zip(names, row, strict=True))
        for key, row in zip(keys, plain_rows(table.select(names)), strict=True)
    }


def _kept(batches: Iterator[pa.RecordBatch], column: str, wanted: pa.Array) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = batch.filter(pc.is_in(batch.column(column).cast(pa.int64()), wanted))
        if rows.num_rows:
            yield rows.replace_schema_metadata(None)
