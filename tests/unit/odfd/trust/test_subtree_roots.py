"""Trees made with what is kept of a chain are those of its blocks, whatever happened to it, and read few of them."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.ids import DatasetId
from chain.statements.tree import GROUP, Frontier
from odfd.store.ledger.log import STEPS
from odfd.store.ledger.subtree_roots import Subtrees

DATASET = DatasetId.from_public_key(b"p" * 32)
OTHER = DatasetId.from_public_key(b"o" * 32)


@contextmanager
def subtrees() -> Iterator[Subtrees]:
    connection = sqlite3.connect(":memory:")
    try:
        for step in STEPS:
            connection.executescript(step)
        yield Subtrees(connection)
    finally:
        connection.close()


class Chain:
    """Leaves, and how many of them were read."""

    def __init__(self) -> None:
        self.leaves: list[bytes] = []
        self.tree = Frontier()
        self.read = 0

    def grow(self, kept: Subtrees | None, seed: str, count: int) -> None:
        leaves = [hashlib.sha3_256(f"{seed} {at}".encode()).digest() for at in range(count)]
        before, groups = self.tree, list[bytes]()
        self.leaves += leaves
        self.tree = before.extend(leaves, groups)
        if kept is not None:
            kept.keep(DATASET, before, groups)

    def cut(self, size: int) -> None:
        del self.leaves[size:]
        self.tree = Frontier().extend(self.leaves)

    def some(self, start: int, stop: int) -> list[bytes]:
        self.read += stop - start
        return self.leaves[start:stop]


STEP = st.tuples(st.sampled_from(["grow", "grow", "grow unseen", "cut"]), st.integers(1, 3 * GROUP))


@pytest.mark.slow
@settings(max_examples=40)
@given(steps=st.lists(STEP, max_size=6), size=st.integers(0, 20 * GROUP))
def test_right_whatever_happened(steps: list[tuple[str, int]], size: int) -> None:
    chain = Chain()
    with subtrees() as kept:
        for number, (step, count) in enumerate(steps):
            if step == "cut":
                chain.cut(count)
            else:
                chain.grow(None if step == "grow unseen" else kept, str(number), count)
        size %= len(chain.leaves) + 1
        for _ in range(2):
            chain.read = 0
            assert kept.tree(DATASET, chain.tree, chain.some).root(size) == Frontier().extend(chain.leaves[:size]).root
        assert chain.read <= 2 * GROUP, "what lacked was learnt"


@pytest.mark.slow
@settings(max_examples=20)
@given(st.lists(st.integers(1, 2 * GROUP), min_size=1, max_size=8))
def test_what_is_kept_as_it_grows_is_enough(counts: list[int]) -> None:
    chain = Chain()
    with subtrees() as kept:
        for number, count in enumerate(counts):
            chain.grow(kept, str(number), count)
        assert kept.load(DATASET, chain.tree, chain.some) is not None
        assert chain.read < GROUP


def test_of_a_chain_that_is_not_as_it_was_checked_nothing_is_kept() -> None:
    chain = Chain()
    chain.grow(None, "", 3 * GROUP)
    chain.leaves[5] = bytes(32)
    with subtrees() as kept:
        for _ in range(2):
            chain.read = 0
            kept.tree(DATASET, chain.tree, chain.some)
            assert chain.read == 3 * GROUP


def test_each_dataset_has_its_own() -> None:
    chain = Chain()
    with subtrees() as kept:
        chain.grow(kept, "", 3 * GROUP)
        assert kept.load(OTHER, chain.tree, chain.some) is None
