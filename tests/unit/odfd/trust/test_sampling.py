"""Steps that are picked to be re-run: by block and secret alone, as often as is asked, and none twice looked at."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.codec.blocks import encode_block
from chain.instant import Instant
from chain.model.block import Block, MetadataBlock
from chain.model.events import DatasetKind, ExecuteTransform, ExecuteTransformInput, Seed, SetInfo
from chain.multihash import Multihash
from chain.statements.keys import SigningKey
from odfd.trust.validation.validator import Sample

OWNER, ME, OTHER = (SigningKey(letter * 32) for letter in (b"d", b"m", b"o"))
HASHES = [Multihash.sha3_256(number.to_bytes(4, "big")) for number in range(4000)]


@pytest.mark.slow
def test_about_so_many_are_picked() -> None:
    picks = Sample(ME)
    for share in (0.01, 0.1, 0.5):
        count = sum(picks.is_picked(name, share) for name in HASHES)
        assert 0.5 * share < count / len(HASHES) < 1.5 * share
    assert all(picks.is_picked(name, 1.0) for name in HASHES)
    assert not any(picks.is_picked(name, 0.0) for name in HASHES)


@pytest.mark.slow
def test_nobody_else_knows_which() -> None:
    mine, theirs = ({name for name in HASHES if Sample(key).is_picked(name, 0.5)} for key in (ME, OTHER))
    assert 0.3 < len(mine & theirs) / len(mine) < 0.7
    assert mine == {name for name in HASHES if Sample(ME).is_picked(name, 0.5)}


@given(st.sampled_from(HASHES), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_picks_all_that_a_smaller_one_does(name: Multihash, one: float, other: float) -> None:
    picks = Sample(ME)
    assert picks.is_picked(name, min(one, other)) <= picks.is_picked(name, max(one, other))


class Chain:
    """Blocks in a list; counts what is read."""

    def __init__(self, blocks: list[Block]) -> None:
        self.blocks, self.read = blocks, 0

    def block_at(self, number: int) -> Block:
        return self.blocks[number]

    def last_of(self, kinds: Any, before: int | None = None) -> Block | None:
        self.read += 1
        found = [block for block in self.blocks[:before] if type(block.event).__name__ in kinds]
        return found[-1] if found else None


def chain_of(kinds: list[bool]) -> Chain:
    """True: a step."""
    read = ExecuteTransformInput(dataset_id=OWNER.dataset_id)
    events: list[Any] = [Seed(dataset_id=OWNER.dataset_id, dataset_kind=DatasetKind.DERIVATIVE)]
    events += [
        ExecuteTransform(query_inputs=(read,), new_watermark=Instant(number)) if step else SetInfo(description="x")
        for number, step in enumerate(kinds)
    ]
    blocks: list[Block] = []
    for number, event in enumerate(events):
        before = blocks[-1].hash if blocks else None
        content = MetadataBlock(system_time=Instant(0), prev_block_hash=before, sequence_number=number, event=event)
        blocks.append(encode_block(content))
    return Chain(blocks)


@pytest.mark.slow
@given(st.lists(st.booleans(), max_size=20), st.floats(0, 1), st.lists(st.integers(1, 21), max_size=4))
def test_however_often_it_is_asked_the_answer_is_the_last_picked_step(
    kinds: list[bool], share: float, sizes: list[int]
) -> None:
    chain, picks = chain_of(kinds), Sample(ME)
    for size in (*(min(each, len(chain.blocks)) for each in sizes), len(chain.blocks)):
        wanted = [
            number
            for number, block in enumerate(chain.blocks[:size])
            if isinstance(block.event, ExecuteTransform) and picks.is_picked(block.hash, share)
        ]
        assert picks.last(chain, OWNER.dataset_id, size, share) == (wanted[-1] if wanted else None)  # type: ignore[arg-type]


def test_what_was_looked_at_is_not_looked_at_again() -> None:
    chain, picks = chain_of([True] * 50), Sample(ME)
    assert picks.last(chain, OWNER.dataset_id, 40, 0.0) is None  # type: ignore[arg-type]
    chain.read = 0
    picks.last(chain, OWNER.dataset_id, 41, 0.0)  # type: ignore[arg-type]
    assert chain.read <= 2
