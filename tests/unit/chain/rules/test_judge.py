"""A stream of raw blocks is judged as the blocks one by one would be, however it is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.codec.blocks import decode_block, encode_block
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import Block, MetadataBlock
from chain.model.events import AddData, DatasetKind, Seed, SetInfo
from chain.rules.judge import Judge, seal
from chain.state import ChainState


def chain_of(count: int, back: int | None = None, every: int = 17) -> list[Block]:
    """Watermarks in a row, with a SetInfo now and then; at ``back`` the watermark goes back."""
    blocks: list[Block] = []
    for number in range(count):
        event: Seed | SetInfo | AddData = AddData(new_watermark=Instant(10**18 + number * 10**9 * (number != back)))
        if number == 0:
            event = Seed(dataset_id=DatasetId.from_public_key(bytes(32)), dataset_kind=DatasetKind.ROOT)
        elif number % every == 0 and number != back:
            event = SetInfo(description=f"{number}")
        content = MetadataBlock(
            system_time=Instant(10**18 + number),
            prev_block_hash=blocks[-1].hash if blocks else None,
            sequence_number=number,
            event=event,
        )
        blocks.append(encode_block(content))
    return blocks


@given(st.integers(1, 80), st.lists(st.integers(1, 30), min_size=1))
def test_the_cuts_of_a_stream_do_not_matter(count: int, cuts: list[int]) -> None:
    blocks = chain_of(count)
    judge = Judge(ChainState.EMPTY)
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
def test_the_first_broken_rule_ends_it(every: int) -> None:
    blocks = chain_of(60, back=40, every=every)
    judge = Judge(ChainState.EMPTY)
    with pytest.raises(Invalid, match="the watermark goes back") as caught:
        judge.take([block.raw for block in blocks])
    assert (caught.value.rule, caught.value.place) == ("watermark-monotonic", "block #40")
    assert judge.state.size == 40


def test_bytes_that_are_no_block_end_it() -> None:
    raws = [block.raw for block in chain_of(40, every=1000)]
    raws[30] = bytes(len(raws[30]))
    judge = Judge(ChainState.EMPTY)
    with pytest.raises(Invalid):
        judge.take(raws)
    assert judge.state.size == 30
