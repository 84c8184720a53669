"""Compares two copies of a chain: equal, one ahead, or diverged, and after which block. Spec: Synchronization.

A block's hash covers its predecessor's, so chains that agree on one block agree on all before it: the last common block
is found by bisection, with a number of reads that grows with the logarithm of the length.
"""

from __future__ import annotations

import enum
from typing import Protocol

import msgspec

from chain.multihash import Multihash


class Relation(enum.Enum):
    EQUAL = "equal"
    AHEAD = "ahead"
    """The first chain has all blocks of the second, and more."""
    BEHIND = "behind"
    DIVERGED = "diverged"


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    relation: Relation
    common: int
    """Number of blocks that both have, from the first on; zero when they share nothing, not even the Seed."""
    ours: int
    """Number of blocks that only the first chain has."""
    theirs: int

    def describe(self, ours: str, theirs: str) -> str:
        """Describes the relation for people. Blocks count from 0, so the first that differs has number ``common``."""
        if self.relation is Relation.EQUAL:
            return f"{ours} and {theirs} are equal"
        if self.relation is Relation.AHEAD:
            return f"{ours} is {_blocks(self.ours)} ahead of {theirs}, from #{self.common} on"
        if self.relation is Relation.BEHIND:
            return f"{ours} is {_blocks(self.theirs)} behind {theirs}, from #{self.common} on"
        if not self.common:
            return f"{ours} and {theirs} have no block in common: they are different datasets"
        apart = f"{_blocks(self.ours)} of {ours} against {_blocks(self.theirs)} of {theirs}"
        return f"{ours} and {theirs} diverge at block #{self.common}: {apart}"


def _blocks(count: int) -> str:
    return f"{count:,} block{'' if count == 1 else 's'}"


class _Named(Protocol):
    @property
    def hash(self) -> Multihash: ...

    @property
    def sequence_number(self) -> int: ...


class HashedChain(Protocol):
    """The reads of each side that a comparison needs; every ``ChainReader`` of the store provides them."""

    def head(self) -> _Named | None: ...

    def block_at(self, sequence_number: int) -> _Named: ...


def compare(ours: HashedChain, theirs: HashedChain) -> Comparison:
    """Compares two chains. Reads at most ``2 * (2 + log2(length))`` blocks; errors of ``block_at`` pass through."""
    our_size, their_size = _size(ours), _size(theirs)
    common = _common(ours, theirs, min(our_size, their_size))
    if common < min(our_size, their_size):
        relation = Relation.DIVERGED
    elif our_size == their_size:
        relation = Relation.EQUAL
    else:
        relation = Relation.AHEAD if our_size > their_size else Relation.BEHIND
    return Comparison(relation=relation, common=common, ours=our_size - common, theirs=their_size - common)


def _size(chain: HashedChain) -> int:
    head = chain.head()
    return head.sequence_number + 1 if head else 0


def _common(ours: HashedChain, theirs: HashedChain, shorter: int) -> int:
    """Returns the number of blocks that both chains begin with, at most ``shorter``."""
    if shorter and _same(ours, theirs, shorter - 1):
        return shorter
    low, high = 0, max(shorter - 1, 0)
    while low < high:
        middle = (low + high) // 2
        if _same(ours, theirs, middle):
            low = middle + 1
        else:
            high = middle
    return low


def _same(ours: HashedChain, theirs: HashedChain, number: int) -> bool:
    return ours.block_at(number).hash == theirs.block_at(number).hash
