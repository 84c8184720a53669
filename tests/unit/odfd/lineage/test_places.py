"""Which block holds a record, whatever stands between the blocks that hold data."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import NotFound
from chain.model.events import AddData, DataSlice, OffsetInterval
from chain.multihash import Multihash
from odfd.services.lineage.question import block_of_record

HASH = Multihash.sha3_256(b"")


class Chain:
    """Blocks as the store gives them; counts what is read."""

    def __init__(self, sizes: list[int | None]) -> None:
        """Records of each data block; ``None``: an event that holds no data."""
        self.blocks: list[Any] = []
        self.reads = 0
        offset = 0
        for number, size in enumerate(sizes):
            event: object = "SetInfo"
            if size is not None:
                data = DataSlice(
                    logical_hash=HASH, physical_hash=HASH, size=1,
                    offset_interval=OffsetInterval(start=offset, end=offset + size - 1),
                ) if size else None  # fmt: skip
                event = AddData(prev_offset=offset - 1 if offset else None, new_data=data)
                offset += size
            self.blocks.append(SimpleNamespace(sequence_number=number, event=event))
        self.records = offset

    def head(self) -> Any:
        return SimpleNamespace(size=len(self.blocks)) if self.blocks else None

    def block_at(self, number: int) -> Any:
        self.reads += 1
        return self.blocks[number]

    def last_of(self, _: Any, before: int | None = None) -> Any:
        self.reads += 1
        stop = len(self.blocks) if before is None else before
        return next((block for block in self.blocks[:stop][::-1] if isinstance(block.event, AddData)), None)


@given(st.lists(st.none() | st.integers(0, 4), max_size=40))
def test_every_record_is_found_in_its_block(sizes: list[int | None]) -> None:
    chain: Any = Chain(sizes)
    expected = [number for number, size in enumerate(sizes) for _ in range(size or 0)]
    assert [block_of_record(chain, offset).sequence_number for offset in range(chain.records)] == expected
    for beyond in (-1, chain.records):
        with pytest.raises(NotFound, match=f"no record {beyond}"):
            block_of_record(chain, beyond)


def test_a_long_chain_is_not_walked() -> None:
    chain: Any = Chain([1] * 4096)
    assert block_of_record(chain, 1000).sequence_number == 1000
    assert chain.reads < 20
