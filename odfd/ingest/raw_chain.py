"""Writes and reads the captured bytes of a dataset as a chain of captures, a dataset of its own that others may have.

Each capture is a binding: a block of the capture's time, whose rows name the captured objects as links. So whatever
carries datasets carries the bytes: peers, repositories and mirrors fetch what rows link to. The bindings name no
blocks: the bytes of a time are those of all renditions. The root names the chain, so nobody else can state its bytes.
The description of the chain names the shards whose bytes it has; each binding has a row for each file, and the state
that the source reported for these bytes.
Spec: docs/spec/collections.md#attested-roots.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from chain.data.arrow_schema import to_arrow
from chain.data.parquet import open_slice, write_slice
from chain.errors import Invalid, Remote
from chain.ids import DatasetId
from chain.instant import Instant, from_millis, to_millis
from chain.libraries import pa
from chain.model import schema as odf
from chain.model.block import Block
from chain.model.events import AddData, DatasetKind, MetadataEvent, Seed, SetDataSchema, SetInfo
from chain.model.schema import DataField, DataSchema, Option, TimeUnit
from chain.multihash import Multihash
from chain.state import ChainState
from chain.store.base import ChainReader, ObjectStore
from chain.store.files import check_file
from chain.walk import oldest_first
from chain.wording import plural
from odfd.ingest.slices import keep_slice
from odfd.store.captures import BoundCapture, Capture, CapturedFile, CapturedPart

_TIME: Final = odf.Timestamp(unit=TimeUnit.MILLISECOND, timezone="UTC")
SCHEMA: Final = DataSchema(
    fields=(
        DataField(name="offset", type=odf.Int64()),
        DataField(name="op", type=odf.Int32()),
        DataField(name="system_time", type=_TIME),
        DataField(name="event_time", type=_TIME),
        DataField(name="address", type=odf.Int64()),
        DataField(name="source", type=odf.String()),
        DataField(name="name", type=odf.String()),
        DataField(name="part", type=Option(inner=odf.String())),
        DataField(name="start", type=Option(inner=odf.Int64())),
        DataField(name="end", type=Option(inner=odf.Int64())),
        DataField(name="object", type=odf.String()),
        DataField(name="size", type=odf.Int64()),
        DataField(name="kept", type=odf.Bool()),
        DataField(name="source_time", type=Option(inner=_TIME)),
        DataField(name="fills_time", type=odf.Bool()),
        DataField(name="decoded", type=odf.Bool()),
    )
)
"""``address``: number of the binding in its chain, from 1. ``source``: name of the push source, or empty. ``object``:
hash of the bytes. The last three: what the source said of the bytes. ``part``, ``start``, ``end`` are null and ``kept``
is true: chains of earlier versions have these columns, and readers of those versions expect them.
"""
MAX_FILES: Final = 4096
"""Most files of one binding that are read from a chain."""
RULE: Final = "raw-chain"
_FOUNDING: Final = 3
"""Blocks of such a chain before its first binding: its Seed, description and schema."""
_SHARD: Final = re.compile(r"odfd/shard:(?P<did>did:odf:[0-9a-z]{1,128})\Z")
_BY: Final = "odfd/by:"


class Division(NamedTuple):
    """The shards whose bytes a chain has, and the columns whose hash decides the shard of a row."""

    shards: tuple[DatasetId, ...]
    by: tuple[str, ...] = ()


def describe(layout: Division) -> SetInfo:
    """Returns the description of a chain of captures, which names its shards for machines."""
    words = (*(f"odfd/shard:{shard}" for shard in layout.shards), *(f"{_BY}{each}" for each in layout.by))
    return SetInfo(description="Binds the bytes of a source to times (odfd chain of captures)", keywords=words)


def layout_of(info: SetInfo | None, name: str) -> Division:
    """Returns the shards that a chain's description names. Raises Invalid if it is no chain of captures."""
    words = info.keywords or () if info is not None else ()
    shards = tuple(DatasetId.parse(found["did"]) for word in words if (found := _SHARD.match(word)))
    by = tuple(word.removeprefix(_BY) for word in words if word.startswith(_BY))
    if not shards or len(set(shards)) != len(shards) or (len(shards) > 1) != bool(by):
        raise Invalid(f"{name} is no dataset of captures", rule=RULE, hint="odfctl raw bind NAME begins one")
    return Division(shards, by)


def bind(objects: ObjectStore, state: ChainState, capture: Capture, time: Instant) -> AddData:
    """Builds the event that binds bytes to ``time``, as the next of the chain in ``state``."""
    count, start = len(capture.files), state.next_offset
    said = None if capture.event_time is None else to_millis(capture.event_time)
    nothing: list[Any] = [None] * count
    columns: dict[str, Any] = {
        "offset": range(start, start + count),
        "op": [0] * count,
        "system_time": [to_millis(time)] * count,
        "event_time": [to_millis(time)] * count,
        "address": [state.size - _FOUNDING + 1] * count,
        "source": [capture.source] * count,
        "name": [file.name for file in capture.files],
        "part": nothing,
        "start": nothing,
        "end": nothing,
        "object": [str(file.object) for file in capture.files],
        "size": [file.size for file in capture.files],
        "kept": [True] * count,
        "source_time": [said] * count,
        "fills_time": [capture.fills_event_time] * count,
        "decoded": [capture.decoded] * count,
    }
    schema = to_arrow(SCHEMA).remove_metadata()
    rows = pa.table(
        [pa.array(columns[field.name], _cell_type(field.type)).cast(field.type) for field in schema], schema
    )
    path = objects.stage()
    write_slice(rows, path)
    return AddData(
        prev_offset=state.last_offset,
        new_data=keep_slice(objects, path, SCHEMA, "offset"),
        new_watermark=time,
        new_source_state=capture.label,
    )


def binding_of(objects: ObjectStore, block: Block) -> Capture:
    """Reads the binding of one block. Raises Remote if it is none, ObjectDamaged."""
    if not isinstance(event := block.event, AddData) or event.new_data is None:
        raise Remote("a transaction of the chain of captures binds no files", rule=RULE, hint="report it")
    check_file(objects.path(event.new_data.physical_hash), event.new_data.physical_hash)
    with open_slice(objects.content(event.new_data.physical_hash)) as file:
        if not 0 < file.rows <= MAX_FILES:
            raise Remote(f"a binding of {plural(file.rows, 'file')}", rule=RULE, hint=f"1 to {MAX_FILES:,}")
        if file.schema.names != [field.name for field in SCHEMA.fields]:
            raise Remote(
                "the chain of captures has other columns than this version reads",
                rule=RULE,
                hint="its publisher may begin another one by odfctl raw bind",
            )
        rows = file.read([field.name for field in SCHEMA.fields]).to_pylist()
    try:
        files = tuple(CapturedFile(row["name"], Multihash.parse(row["object"]), row["size"]) for row in rows)
    except Invalid as error:
        raise Remote("a binding names no object", rule=RULE) from error
    time = rows[0]["source_time"]
    return Capture(
        files=files,
        source=rows[0]["source"],
        label=event.new_source_state,
        event_time=None if time is None else from_millis(round(time.timestamp() * 1000)),
        fills_event_time=rows[0]["fills_time"],
        decoded=rows[0]["decoded"],
    )


def _cell_type(kind: pa.DataType) -> pa.DataType:
    """Returns the type of Python values that are cast to ``kind``: times are given as milliseconds."""
    return pa.int64() if pa.types.is_timestamp(kind) else kind


_WORD: Final = "odfd/raw:"
_LINK: Final = {
    "opendatafabric.org/type": {"kind": "ObjectLink", "linkType": {"kind": "Multihash"}},
}
RAW_SCHEMA: Final = DataSchema(
    fields=tuple(
        msgspec.structs.replace(field, extra=_LINK) if field.name == "object" else field for field in SCHEMA.fields
    )
)
"""The columns of bindings, with the objects as links."""


def founding_of(chain: DatasetId, layout: Division) -> Sequence[MetadataEvent]:
    """Returns the first events of a chain of captures. ``layout``: the shards whose bytes it binds first."""
    seed = Seed(dataset_id=chain, dataset_kind=DatasetKind.ROOT)
    return seed, describe(layout), SetDataSchema(schema=RAW_SCHEMA)


def binding_event(objects: ObjectStore, state: ChainState, capture: BoundCapture) -> tuple[AddData, list[Multihash]]:
    """Returns the event that binds a capture, as the next of the chain in ``state``, and the objects that it names."""
    event = bind(objects, state, capture.capture, from_millis(capture.time))
    assert event.new_data is not None, "a binding has a row for each file"
    return event, [event.new_data.physical_hash, *(file.object for file in capture.capture.files)]


def bindings_in(objects: ObjectStore, chain: ChainReader) -> Iterator[tuple[int, Capture]]:
    """Yields the bindings of a chain with their times, oldest first. Raises Remote for others, ObjectDamaged."""
    head = chain.head()
    for block in oldest_first(chain, 0, 0 if head is None else head.size):
        if isinstance(block.event, AddData):
            yield to_millis(block.system_time), binding_of(objects, block)


def naming(info: SetInfo | None, chain: DatasetId) -> SetInfo:
    """Returns the description of a root that names its chain of captures, in place of ``info``."""
    held = info or SetInfo()
    return msgspec.structs.replace(held, keywords=(*(held.keywords or ()), f"{_WORD}{chain}"))


def is_named(root: ChainReader, chain: DatasetId) -> bool:
    """Whether a description of a root, present or past, names a chain of captures: so its owner stands behind it."""
    before = None
    while (block := root.last_of(("SetInfo",), before)) is not None:
        if isinstance(block.event, SetInfo) and f"{_WORD}{chain}" in (block.event.keywords or ()):
            return True
        before = block.sequence_number
    return False


class PlacedCapture(NamedTuple):
    """Captured bytes with the blocks that chains have at their time."""

    bound: BoundCapture
    blocks: tuple[tuple[DatasetId, Block], ...]
    """The block with the rows, of each chain that has some."""


def find_place(chains: Sequence[tuple[DatasetId, ChainReader]], time: int, capture: Capture) -> PlacedCapture:
    """Finds the transaction of a binding in the chains of a dataset, by a logarithmic number of reads of each."""
    parts, blocks = [], []
    for dataset, chain in chains:
        if (found := _transaction(chain, time)) is not None:
            first, last = found
            parts.append(CapturedPart(dataset, last.hash, first, last.sequence_number))
            blocks.append((dataset, last))
    return PlacedCapture(BoundCapture(capture=capture, parts=tuple(parts), time=time), tuple(blocks))


def _transaction(chain: ChainReader, time: int) -> tuple[int, Block] | None:
    """Returns the number of the first block of a time, and the first block with data from there on, if it is of it."""
    head = chain.head()
    size = 0 if head is None else head.size
    first = bisect_left(range(size), time, key=lambda number: to_millis(chain.block_at(number).system_time))
    for number in range(first, size):
        block = chain.block_at(number)
        if to_millis(block.system_time) != time:
            return None
        if isinstance(block.event, AddData):
            return first, block
    return None


def check_times(captures: Sequence[BoundCapture]) -> None:
    """Raises Invalid for captures of one time, as earlier versions made: a binding is all that came at its time."""
    times = [capture.time for capture in captures]
    if len(set(times)) < len(times):
        raise Invalid(
            "two captures have one time, as earlier versions made them",
            rule="shard-times",
            hint="odfctl rendition create NAME --from snapshot begins a history without them",
        )
