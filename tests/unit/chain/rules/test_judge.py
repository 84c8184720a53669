"""A stream of raw blocks is judged as the blocks one by one would be, however it is cut."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.codec.blocks import decode_block, encode_block
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model import schema as odf
from chain.model.block import Block, MetadataBlock, objects_of
from chain.model.events import (
    AddData,
    Checkpoint,
    DatasetKind,
    DataSlice,
    OffsetInterval,
    Seed,
    SetDataSchema,
    SetInfo,
)
from chain.model.schema import DataField, DataSchema
from chain.multihash import ARROW0_SHA3_256, SHA2_256, SHA3_256, Multihash
from chain.rules.check import ChainChecker, seal
from chain.state import ChainState
from worlds.chains import linked

STAMP = odf.Timestamp(unit=odf.TimeUnit.MILLISECOND, timezone="UTC")
COLUMNS = (
    DataField(name="offset", type=odf.Int64()),
    DataField(name="op", type=odf.Int32()),
    DataField(name="system_time", type=STAMP),
    DataField(name="event_time", type=STAMP),
)


def chain_of(count: int, back: int | None = None, every: int = 17) -> list[Block]:
    """Watermarks in a row, with a SetInfo now and then; at ``back`` the watermark goes back."""
    events: list[Seed | SetInfo | AddData] = []
    for number in range(count):
        event: Seed | SetInfo | AddData = AddData(new_watermark=Instant(10**18 + number * 10**9 * (number != back)))
        if number == 0:
            event = Seed(dataset_id=DatasetId.from_public_key(bytes(32)), dataset_kind=DatasetKind.ROOT)
        elif number % every == 0 and number != back:
            event = SetInfo(description=f"{number}")
        events.append(event)
    return linked(events, Instant(10**18), step=1)


@pytest.mark.slow
@given(st.integers(1, 80), st.lists(st.integers(1, 30), min_size=1))
def test_the_cuts_of_a_stream_do_not_matter(count: int, cuts: list[int]) -> None:
    blocks = chain_of(count)
    judge = ChainChecker(ChainState.EMPTY)
    sealed = []
    start = 0
    while start < count:
        size = cuts[start % len(cuts)]
        sealed += judge.take([block.raw for block in blocks[start : start + size]])
        start += size
    state = ChainState.EMPTY
    for block in blocks:
        state = state.advance(block)
    assert judge.state == state
    assert sealed == [seal(decode_block(block.raw)) for block in blocks]


@pytest.mark.parametrize("every", [5, 1000])
def test_the_first_broken_rule_ends_it_and_nothing_is_taken(every: int) -> None:
    blocks = chain_of(60, back=40, every=every)
    judge = ChainChecker(ChainState.EMPTY)
    with pytest.raises(Invalid, match="the watermark goes back") as caught:
        judge.take([block.raw for block in blocks])
    assert (caught.value.rule, caught.value.place) == ("watermark-monotonic", "block #40")
    assert judge.state == ChainState.EMPTY


def test_bytes_that_are_no_block_end_it() -> None:
    raws = [block.raw for block in chain_of(40, every=1000)]
    raws[30] = bytes(len(raws[30]))
    judge = ChainChecker(ChainState.EMPTY)
    with pytest.raises(Invalid):
        judge.take(raws)
    assert judge.state == ChainState.EMPTY


def digest(text: str, code: int = SHA3_256) -> Multihash:
    return Multihash.from_digest(code, hashlib.sha3_256(text.encode()).digest())


def data_chain(count: int, often: int, code: int) -> list[Block]:
    """A slice in each block, a checkpoint in most; slices are named by the algorithm ``code``."""
    blocks: list[Block] = []
    left: Multihash | None = None
    events: list[Any] = [
        Seed(dataset_id=DatasetId.from_public_key(bytes(32)), dataset_kind=DatasetKind.ROOT),
        SetDataSchema(schema=DataSchema(fields=COLUMNS)),
    ]
    for number in range(count):
        slice_ = DataSlice(
            logical_hash=digest(f"rows {number}", ARROW0_SHA3_256),
            physical_hash=digest(f"{number}", code),
            offset_interval=OffsetInterval(start=number, end=number),
            size=number + 9,
        )
        checkpoint = Checkpoint(physical_hash=digest(f"left {number}"), size=number) if number % often else None
        offset = number - 1 if number else None
        events.append(AddData(prev_checkpoint=left, prev_offset=offset, new_data=slice_, new_checkpoint=checkpoint))
        left = checkpoint.physical_hash if checkpoint else None
    for number, event in enumerate(events):
        head = blocks[-1].hash if blocks else None
        content = MetadataBlock(system_time=Instant(10**18), prev_block_hash=head, sequence_number=number, event=event)
        blocks.append(encode_block(content))
    return blocks


@pytest.mark.slow
@given(st.integers(10, 60), st.sampled_from([2, 7, 1000]), st.sampled_from([SHA3_256, SHA2_256]))
def test_what_blocks_bring_is_told_without_decoding_them(count: int, often: int, code: int) -> None:
    blocks = data_chain(count, often, code)
    sealed = ChainChecker(ChainState.EMPTY).take([block.raw for block in blocks])
    assert [each.objects for each in sealed] == [objects_of(block) for block in blocks]
    assert [len(each.objects) for each in sealed] == [0, 0, *(2 if number % often else 1 for number in range(count))]
