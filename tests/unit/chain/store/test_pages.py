"""Blocks are given to SQLite in pages: all of them, in order, and none too large to bind."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.model.block import SealedBlock
from chain.multihash import Multihash
from chain.store import sqlite

NAME = Multihash.sha3_256(b"")
ROWS = st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=40)
"""Of each block its size, and whether one is lacking before it."""


@given(rows=ROWS, blocks=st.integers(1, 7), size=st.integers(1, 20))
def test_pages_are_in_a_row_and_fit(rows: list[tuple[int, bool]], blocks: int, size: int) -> None:
    numbers = itertools.accumulate(1 + gap for _, gap in rows)
    made = [SealedBlock(bytes(room), NAME, None, at, 1, ()) for (room, _), at in zip(rows, numbers, strict=True)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite, "_BOUND_BLOCKS", blocks)
        patch.setattr(sqlite, "_BOUND_BYTES", size)
        pages = list(sqlite._pages(made))
    assert list(itertools.chain(*pages)) == made
    for page, following in itertools.pairwise([*pages, None]):
        assert page
        assert [one.sequence_number - page[0].sequence_number for one in page] == list(range(len(page)))
        room = sum(len(one.raw) for one in page)
        assert len(page) == 1 or (len(page) <= blocks and room <= size)
        if following and following[0].sequence_number == page[-1].sequence_number + 1:
            assert len(page) == blocks or room + len(following[0].raw) > size, "no page is shorter than it must be"
