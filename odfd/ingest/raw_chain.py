"""Writes and reads the captured bytes of a dataset as a chain of captures, a dataset of its own that others may have.

Each capture is a binding: a block of the capture's time, whose rows name the captured objects as links. So whatever
carries datasets carries the bytes: peers, repositories and mirrors fetch what rows link to. The bindings name no
blocks: the bytes of a time are those of all renditions. The root names the chain, so nobody else can state its bytes.
Spec: docs/spec/collections.md#attested-roots.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from chain.errors import Invalid
from chain.ids import DatasetId
from chain.instant import from_millis, to_millis
from chain.model.block import Block
from chain.model.events import AddData, DatasetKind, MetadataEvent, Seed, SetDataSchema, SetInfo
from chain.model.schema import DataSchema
from chain.multihash import Multihash
from chain.state import ChainState
from chain.store.base import ChainReader, ObjectStore
from chain.walk import oldest_first
from odfd.ingest.capture_bindings import SCHEMA, Division, bind, binding_of, describe
from odfd.store.captures import BoundCapture, Capture, CapturedPart

_WORD: Final = "odfd/raw:"
_LINK: Final = {
    "opendatafabric.org/type": {"kind": "ObjectLink", "linkType": {"kind": "Multihash"}},
}
RAW_SCHEMA: Final = DataSchema(
    fields=tuple(
        msgspec.structs.replace(each, extra=_LINK) if each.name == "object" else each for each in SCHEMA.fields
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
    times = [each.time for each in captures]
    if len(set(times)) < len(times):
        raise Invalid(
            "two captures have one time, as earlier versions made them",
            rule="shard-times",
            hint="odfctl rendition create NAME --from snapshot begins a history without them",
        )
