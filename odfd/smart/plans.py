"""Finds the blocks of an interval, counts their contents, and reads them once more. Blocking; memory: some blocks.

The interval is fixed when it is planned; if the history was replaced meanwhile, that is noticed at the interval's end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from chain.codec.blocks import decode_block
from chain.errors import Conflict, NotFound
from chain.ids import DatasetId
from chain.model.block import objects_of
from chain.model.events import AddData, ExecuteTransform
from chain.multihash import Multihash
from odfd.smart.batches import MAX_UNPACKED, BatchTooLarge, NamedBlock
from odfd.smart.messages import TransferPlan
from odfd.smart.ports import ChainLibrary
from odfd.smart.pull import Resolve

PAGE_BYTES: Final = 1 << 20
"""Bytes of blocks that are read at once."""


class BlockInterval(NamedTuple):
    """The blocks from number ``start`` up to, but without, ``stop``."""

    start: int
    stop: int
    last: Multihash | None
    plan: TransferPlan


class NoInterval(NamedTuple):
    """One of the named blocks does not follow the other."""

    head: Multihash
    tail: Multihash


class Counter:
    """Counts the contents of blocks."""

    def __init__(self) -> None:
        self.blocks = self.objects = self.records = self.block_bytes = self.object_bytes = 0

    def add(self, raw: bytes) -> None:
        """Adds a block. Raises BatchTooLarge if there are more bytes than any batch may have."""
        block = decode_block(raw)
        self.blocks += 1
        self.block_bytes += len(raw)
        if self.block_bytes > MAX_UNPACKED:
            raise BatchTooLarge
        for _, size in objects_of(block):
            self.objects += 1
            self.object_bytes += size
        event = block.event
        if isinstance(event, AddData | ExecuteTransform) and (data := event.new_data) is not None:
            self.records += data.offset_interval.end - data.offset_interval.start + 1

    @property
    def plan(self) -> TransferPlan:
        return TransferPlan(
            num_blocks=self.blocks, num_objects=self.objects, num_records=self.records,
            bytes_in_raw_blocks=self.block_bytes, bytes_in_raw_objects=self.object_bytes,
        )  # fmt: skip


def resolve(library: ChainLibrary, dataset: DatasetId, asked: Resolve) -> BlockInterval | NoInterval:
    """Finds the interval that was asked for. Raises NotFound if nothing may be read, BatchTooLarge, Environment."""
    size = library.size(dataset)
    if not size:
        raise NotFound("there is no such dataset here", rule="site-missing", hint="GET / lists the datasets")
    stop = size if asked.stop_at is None else _after(library, dataset, asked.stop_at)
    start = 0 if asked.begin_after is None else _after(library, dataset, asked.begin_after)
    if start is None and asked.is_forced:
        start = 0
    if stop is None or start is None or start > stop:
        named = [each for each in (asked.stop_at, asked.begin_after) if each is not None]
        head = asked.stop_at or _head(library, dataset, size)
        return NoInterval(head, asked.begin_after or named[-1])
    counter = Counter()
    last: bytes | None = None
    for last in raws(library, dataset, start, stop):
        counter.add(last)
    return BlockInterval(start, stop, None if last is None else Multihash.sha3_256(last), counter.plan)


def named_blocks(library: ChainLibrary, dataset: DatasetId, interval: BlockInterval) -> Iterator[NamedBlock]:
    """Yields the blocks of an interval, oldest first. Raises Conflict at the end if they were replaced meanwhile."""
    name: Multihash | None = None
    for raw in raws(library, dataset, interval.start, interval.stop):
        name = Multihash.sha3_256(raw)
        yield name, raw
    if name != interval.last:
        raise Conflict("the history was replaced meanwhile", rule="smart-moved", hint="ask again")


def raws(library: ChainLibrary, dataset: DatasetId, start: int, stop: int) -> Iterator[bytes]:
    while start < stop:
        page = library.blocks(dataset, start, PAGE_BYTES)[: stop - start]
        if not page:
            raise Conflict("the history became shorter meanwhile", rule="smart-moved", hint="ask again")
        yield from page
        start += len(page)


def _after(library: ChainLibrary, dataset: DatasetId, name: Multihash) -> int | None:
    number = library.number_of(dataset, name)
    return None if number is None else number + 1


def _head(library: ChainLibrary, dataset: DatasetId, size: int) -> Multihash:
    return Multihash.sha3_256(library.blocks(dataset, size - 1, PAGE_BYTES)[0])
