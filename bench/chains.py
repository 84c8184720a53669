"""Makes real chains of any length in seconds: valid blocks, linked by hash, that every append rule accepts.

One block is made by the codec; of the others the fields that differ are patched into copies of its bytes with NumPy, a
page at a time, and only the link from hash to hash is made block by block. A function of its arguments alone.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from chain.codec import timestamp
from chain.codec.blocks import encode_block
from chain.data.arrow_schema import from_arrow
from chain.instant import SECOND, Instant
from chain.model.block import Block, MetadataBlock
from chain.model.events import AddData, DatasetKind, DataSlice, MetadataEvent, OffsetInterval, Seed, SetDataSchema
from chain.multihash import ARROW0_SHA3_256, SHA3_256, Multihash
from chain.statements.keys import SigningKey
from chain.store.base import Append, ChainStore

KEY: Final = SigningKey(b"a chain to measure with".ljust(32))
DATASET: Final = KEY.dataset_id
START: Final = Instant(1_600_000_000 * SECOND)
STEP: Final = 60
"""Seconds from block to block."""
ROWS: Final = 1_000
"""Rows of each slice that the blocks speak of."""
PAGE: Final = 16_384
SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("op", pa.int32(), nullable=False),
        pa.field("system_time", pa.timestamp("ms", "UTC"), nullable=False),
        pa.field("event_time", pa.timestamp("ms", "UTC")),
        pa.field("value", pa.int64()),
    ]
)
_FIRST: Final = 3
"""Blocks that the codec makes: Seed, schema, first data."""
_SIZE: Final = 4096
_LENGTH: Final = struct.Struct("<I")
# Values that stand in the template where others will be; each occurs once in its bytes.
_SEQUENCE, _PREVIOUS, _BEGIN, _END = (int.from_bytes(bytes(range(at, at + 8)), "little") for at in (1, 17, 33, 49))
_LINK, _LOGICAL, _PHYSICAL = (bytes([mark]) * 32 for mark in (0xA1, 0xA2, 0xA3))
_TIME, _WATERMARK = Instant(START + 86_399 * SECOND), Instant(START + 172_798 * SECOND)


def long_chain(blocks: int, *, slices: bool = True) -> Iterator[bytes]:
    """Streams ``blocks`` raw blocks (at least 3), oldest first.

    Without ``slices`` each block only moves the watermark, so that the chain names no objects.
    """
    head = b""
    for raw in _beginning(slices):
        head = hashlib.sha3_256(raw).digest()
        yield raw
    template = _template(slices)
    link, width = template.index(_LINK), len(template)
    for first in range(_FIRST, blocks, PAGE):
        page = _page(template, np.arange(first, min(blocks, first + PAGE)))
        flat = memoryview(page.data).cast("B")
        for at in range(0, len(flat), width):
            flat[at + link : at + link + 32] = head
            raw = bytes(flat[at : at + width])
            head = hashlib.sha3_256(raw).digest()
            yield raw


def pack(file: Path, blocks: int) -> None:
    """Writes a long chain as one file: each block after its length, u32."""
    with file.open("wb") as packed:
        for raw in long_chain(blocks):
            packed.write(_LENGTH.pack(len(raw)) + raw)


def unpack(file: Path) -> Iterator[bytes]:
    """Streams the blocks of a packed chain."""
    with file.open("rb") as packed:
        while head := packed.read(_LENGTH.size):
            yield packed.read(_LENGTH.unpack(head)[0])


def keep(chains: ChainStore, raws: Iterable[bytes]) -> None:
    """Commits a long chain to an empty store, many blocks at a time.

    Parts that a store does not read are not decoded.
    """
    waiting: list[Block] = []
    name: Multihash | None = None
    for number, raw in enumerate(raws):
        event = _EVENTS[min(number, len(_EVENTS) - 1)]
        previous, name = name, Multihash.sha3_256(raw)
        waiting.append(
            Block(
                raw=raw,
                hash=name,
                version=3,
                system_time=START,
                prev_block_hash=previous,
                sequence_number=number,
                event=event,
            )
        )
        if len(waiting) == PAGE:
            _commit(chains, waiting)
    if waiting:
        _commit(chains, waiting)


def _commit(chains: ChainStore, waiting: list[Block]) -> None:
    chains.commit([Append(dataset=DATASET, expected=chains.chain(DATASET).head(), blocks=tuple(waiting))])
    waiting.clear()


_EVENTS: Final[tuple[MetadataEvent, ...]] = (
    Seed(dataset_id=DATASET, dataset_kind=DatasetKind.ROOT),
    SetDataSchema(schema=from_arrow(SCHEMA)),
    AddData(new_watermark=START),
)


def blocks_of(*events: MetadataEvent) -> list[Block]:
    """Encodes a chain of these events."""
    made: list[Block] = []
    for number, event in enumerate(events):
        head = made[-1].hash if made else None
        content = MetadataBlock(system_time=_at(number), prev_block_hash=head, sequence_number=number, event=event)
        made.append(encode_block(content))
    return made


def _beginning(slices: bool) -> list[bytes]:
    first = AddData(
        new_data=_slice(0, ROWS - 1, bytes(32), bytes([1]) * 32) if slices else None,
        new_watermark=_at(_FIRST - 1),
    )
    return [block.raw for block in blocks_of(*_EVENTS[:2], first)]


def _template(slices: bool) -> bytes:
    event = AddData(
        prev_offset=_PREVIOUS if slices else None,
        new_data=_slice(_BEGIN, _END, _LOGICAL, _PHYSICAL) if slices else None,
        new_watermark=_WATERMARK,
    )
    link = Multihash.from_digest(SHA3_256, _LINK)
    content = MetadataBlock(system_time=_TIME, prev_block_hash=link, sequence_number=_SEQUENCE, event=event)
    return encode_block(content).raw


def _slice(start: int, end: int, logical: bytes, physical: bytes) -> DataSlice:
    return DataSlice(
        logical_hash=Multihash.from_digest(ARROW0_SHA3_256, logical),
        physical_hash=Multihash.from_digest(SHA3_256, physical),
        offset_interval=OffsetInterval(start=start, end=end),
        size=_SIZE,
    )


def _page(template: bytes, numbers: np.ndarray) -> np.ndarray:
    """Blocks ``numbers``, a row of bytes each, whole but for their links."""
    page = np.tile(np.frombuffer(template, np.uint8), (len(numbers), 1))
    times = _stamps(START // SECOND + numbers * STEP)
    slices = numbers - (_FIRST - 1)
    random = np.random.default_rng(int(numbers[0])).integers(0, 256, (len(numbers), 64), np.uint8)
    fields = {
        _u64(_SEQUENCE): _words(numbers),
        _u64(_PREVIOUS): _words(slices * ROWS - 1),
        _u64(_BEGIN): _words(slices * ROWS),
        _u64(_END): _words(slices * ROWS + ROWS - 1),
        _LOGICAL: random[:, :32],
        _PHYSICAL: random[:, 32:],
        timestamp.pack(_TIME): times,
        timestamp.pack(_WATERMARK): times,
    }
    for mark, values in fields.items():
        at = template.find(mark)
        if at >= 0:
            assert template.count(mark) == 1, "a mark that stands twice cannot be told apart"
            page[:, at : at + len(mark)] = values
    return page


def _at(number: int) -> Instant:
    return Instant(START + number * STEP * SECOND)


def _u64(value: int) -> bytes:
    return value.to_bytes(8, "little")


def _words(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, "<u8").view(np.uint8).reshape(len(values), 8)


def _stamps(seconds: np.ndarray) -> np.ndarray:
    """``chain.codec.timestamp.pack`` for many."""
    moments = seconds.astype("datetime64[s]")
    days, years = moments.astype("datetime64[D]"), moments.astype("datetime64[Y]")
    made = np.zeros(len(seconds), [("year", "<i4"), ("day", "<i2"), ("pad", "<i2"), ("second", "<u4"), ("nano", "<u4")])
    made["year"] = years.astype(int) + 1970
    made["day"] = (days - years.astype("datetime64[D]")).astype(int) + 1
    made["second"] = (moments - days.astype("datetime64[s]")).astype(int)
    return made.view(np.uint8).reshape(len(seconds), timestamp.SIZE)
