"""Computes the Merkle tree of RFC 6962 over a chain: leaf i is the sha3-256 of block i, nodes are SHA-256.

A head signs this tree, so that inclusion, consistency and forks are provable in O(log n) without blocks. ``Frontier``
holds the log2(n) full subtrees that appending needs, so a writer never reads history. Proofs are built from a function
that gives the roots of aligned full subtrees; a store may cache those.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec

from chain.errors import Invalid

HASH_SIZE: Final = 32
MAX_PATH: Final = 64
"""Most nodes in a path: those of a tree of 2^64 leaves."""
GROUP: Final = 1024
"""Leaves of a full subtree whose root is worth storing: a root or a proof then reads two groups at most."""
_BATCH: Final = 4096
"""Number of leaves hashed at once."""


def leaf_hash(leaf: bytes) -> bytes:
    return hashlib.sha256(b"\0" + leaf).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()


EMPTY_ROOT: Final = hashlib.sha256(b"").digest()


class Frontier(msgspec.Struct, frozen=True):
    """The full subtrees of a tree of ``size`` leaves, largest first, which is all that an append and the root need."""

    size: int = 0
    nodes: tuple[bytes, ...] = ()

    def append(self, leaf: bytes) -> Frontier:
        """Appends one leaf, at amortised constant cost."""
        node, nodes, size = leaf_hash(leaf), list(self.nodes), self.size
        while size & 1:
            node = node_hash(nodes.pop(), node)
            size >>= 1
        return Frontier(self.size + 1, (*nodes, node))

    def extend(self, leaves: Iterable[bytes], groups: list[bytes] | None = None) -> Frontier:
        """Appends many leaves, some thousand at a time and level by level, to keep the cost per hash low.

        The roots of the groups that become full are added to ``groups``, from number ``self.size // GROUP`` on.
        """
        frontier, following = self, iter(leaves)
        while some := list(islice(following, _BATCH)):
            frontier = frontier._extended(some, [] if groups is None else groups)
        return frontier

    def _extended(self, leaves: Sequence[bytes], groups: list[bytes]) -> Frontier:
        sha256 = hashlib.sha256
        nodes, before, ends = list(self.nodes), self.size, []
        row = [sha256(b"\0" + leaf).digest() for leaf in leaves]
        width = 1
        while row:
            if width == GROUP:
                groups += row
            width *= 2
            if before & 1:
                row.insert(0, nodes.pop())
            if len(row) & 1:
                ends.append(row.pop())
            lefts = iter(row)
            row = [sha256(b"\1" + left + right).digest() for left, right in zip(lefts, lefts, strict=True)]
            before >>= 1
        return Frontier(self.size + len(leaves), (*nodes, *reversed(ends)))

    @property
    def root(self) -> bytes:
        if not self.nodes:
            return EMPTY_ROOT
        node = self.nodes[-1]
        for left in reversed(self.nodes[:-1]):
            node = node_hash(left, node)
        return node

    def to_bytes(self) -> bytes:
        return self.size.to_bytes(8, "big") + b"".join(self.nodes)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Frontier:
        """Decodes the bytes of ``to_bytes``. Raises Invalid."""
        size = int.from_bytes(raw[:8], "big")
        if len(raw) != 8 + HASH_SIZE * size.bit_count():
            raise Invalid("not a tree frontier", rule="tree-frontier")
        nodes = tuple(raw[at : at + HASH_SIZE] for at in range(8, len(raw), HASH_SIZE))
        return cls(size, nodes)


Leaves = Callable[[int, int], Sequence[bytes]]
"""Returns the leaves ``start <= i < stop`` of the tree."""


class Tree:
    """Makes proofs over leaves that a callback reads; costs O(n) hashes for uncached subtrees, so callers cache."""

    def __init__(self, leaves: Leaves, groups: Mapping[int, bytes] | None = None) -> None:
        """Sets the source of leaves. ``groups``: known roots of full groups, by number; they are not checked."""
        self.leaves = leaves
        self._full = {(number * GROUP, GROUP): node for number, node in (groups or {}).items()}

    def root(self, size: int) -> bytes:
        return self._range(0, size) if size else EMPTY_ROOT

    def ending(self, size: int, leaf: bytes) -> Tree:
        """Returns the tree of the first ``size`` leaves and one more, with the known subtrees of this one."""

        def leaves(start: int, stop: int) -> Sequence[bytes]:
            return [*self.leaves(start, min(stop, size)), *([leaf] if stop > size else [])]

        full = [(start // GROUP, node) for (start, count), node in self._full.items() if count == GROUP]
        return Tree(leaves, {number: node for number, node in full if (number + 1) * GROUP <= size})

    def groups(self, size: int) -> list[bytes]:
        """Returns the roots of the full groups within the first ``size`` leaves."""
        return [self._range(start, start + GROUP) for start in range(0, size - GROUP + 1, GROUP)]

    def inclusion(self, index: int, size: int) -> list[bytes]:
        """Returns the audit path of leaf ``index`` in the tree of ``size`` leaves (RFC 6962, 2.1.1)."""
        if not 0 <= index < size:
            raise ValueError(f"leaf {index} of {size}")
        return self._path(index, 0, size)

    def consistency(self, old: int, new: int) -> list[bytes]:
        """Returns the proof that the tree of ``old`` leaves is a prefix of that of ``new`` (RFC 6962, 2.1.2)."""
        if not 0 < old <= new:
            raise ValueError(f"consistency of {old} and {new}")
        return self._subproof(old, 0, new, whole=True)

    def _range(self, start: int, stop: int) -> bytes:
        count = stop - start
        aligned = count & (count - 1) == 0
        if aligned and (found := self._full.get((start, count))) is not None:
            return found
        if count <= GROUP:
            node = Frontier().extend(self.leaves(start, stop)).root
        else:
            split = _split(count)
            node = node_hash(self._range(start, start + split), self._range(start + split, stop))
        if aligned:
            self._full[start, count] = node
        return node

    def _path(self, index: int, start: int, stop: int) -> list[bytes]:
        if stop - start == 1:
            return []
        middle = start + _split(stop - start)
        if start + index < middle:
            return [*self._path(index, start, middle), self._range(middle, stop)]
        return [*self._path(index - (middle - start), middle, stop), self._range(start, middle)]

    def _subproof(self, old: int, start: int, stop: int, *, whole: bool) -> list[bytes]:
        count = stop - start
        if old == count:
            return [] if whole else [self._range(start, stop)]
        split = _split(count)
        if old <= split:
            return [*self._subproof(old, start, start + split, whole=whole), self._range(start + split, stop)]
        return [*self._subproof(old - split, start + split, stop, whole=False), self._range(start, start + split)]


def _split(count: int) -> int:
    """Returns the largest power of two below ``count``."""
    return 1 << (count - 1).bit_length() - 1


def root_from_inclusion(leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> bytes | None:
    """Returns the root to which an audit path leads; ``None`` if the path is impossible (RFC 9162, 2.1.3.2)."""
    if not 0 <= index < size or len(path) > MAX_PATH:
        return None
    place, last, node = index, size - 1, leaf_hash(leaf)
    for sibling in path:
        if last == 0:
            return None
        if place & 1 or place == last:
            node = node_hash(sibling, node)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            node = node_hash(node, sibling)
        place, last = place >> 1, last >> 1
    return node if last == 0 else None


def is_consistent(old: int, old_root: bytes, new: int, new_root: bytes, proof: Sequence[bytes]) -> bool:
    """Whether ``proof`` shows that the old tree is a prefix of the new (RFC 9162, 2.1.4.2)."""
    if not 0 < old <= new or len(proof) > MAX_PATH:
        return False
    if old == new:
        return not proof and old_root == new_root
    nodes = list(proof)
    if old & (old - 1) == 0:
        nodes.insert(0, old_root)
    if not nodes:
        return False
    place, last = old - 1, new - 1
    while place & 1:
        place, last = place >> 1, last >> 1
    first = second = nodes[0]
    for node in nodes[1:]:
        if last == 0:
            return False
        if place & 1 or place == last:
            first, second = node_hash(node, first), node_hash(node, second)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            second = node_hash(second, node)
        place, last = place >> 1, last >> 1
    return last == 0 and first == old_root and second == new_root
