"""RFC 6962 trees: the known vectors of Certificate Transparency, and every proof against a recursive definition."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from chain.statements.tree import (
    EMPTY_ROOT,
    Frontier,
    Tree,
    is_consistent,
    leaf_hash,
    node_hash,
    root_from_inclusion,
)

VECTORS = [
    ("", "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"),
    ("00", "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"),
    ("10", "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77"),
    ("2021", "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7"),
    ("3031", "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4"),
    ("40414243", "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef"),
    ("5051525354555657", "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c"),
    ("606162636465666768696a6b6c6d6e6f", "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"),
]
"""Leaf, and the root once it is appended: the tree of the Certificate Transparency reference implementation."""


def by_definition(leaves: Sequence[bytes]) -> bytes:
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaf_hash(leaves[0])
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return node_hash(by_definition(leaves[:split]), by_definition(leaves[split:]))


def some_leaves(count: int) -> list[bytes]:
    return [hashlib.sha3_256(bytes([index & 255, index >> 8])).digest() for index in range(count)]


def tree_of(leaves: Sequence[bytes]) -> Tree:
    return Tree(lambda start, stop: leaves[start:stop])


def test_known_roots() -> None:
    frontier = Frontier()
    assert frontier.root == EMPTY_ROOT
    for leaf, root in VECTORS:
        frontier = frontier.append(bytes.fromhex(leaf))
        assert frontier.root.hex() == root


@given(st.integers(0, 70), st.integers(0, 70))
def test_frontier_is_the_tree_however_it_is_extended(first: int, second: int) -> None:
    leaves = some_leaves(first + second)
    frontier = Frontier().extend(leaves[:first]).extend(leaves[first:])
    assert frontier.root == by_definition(leaves) == tree_of(leaves).root(len(leaves))
    assert Frontier.from_bytes(frontier.to_bytes()) == frontier


@given(st.data(), st.integers(1, 70))
def test_inclusion(data: st.DataObject, size: int) -> None:
    leaves = some_leaves(size)
    index = data.draw(st.integers(0, size - 1))
    path = tree_of(leaves).inclusion(index, size)
    root = by_definition(leaves)
    assert root_from_inclusion(leaves[index], index, size, path) == root
    assert root_from_inclusion(b"other", index, size, path) != root
    if size > 1:
        assert root_from_inclusion(leaves[index], index, size, path[:-1]) != root
    assert root_from_inclusion(leaves[index], index, size, [*path, root]) != root
    assert root_from_inclusion(leaves[index], size, size, path) is None


@given(st.data(), st.integers(1, 70))
def test_consistency(data: st.DataObject, new: int) -> None:
    leaves = some_leaves(new)
    old = data.draw(st.integers(1, new))
    old_root, new_root = by_definition(leaves[:old]), by_definition(leaves)
    proof = tree_of(leaves).consistency(old, new)
    assert is_consistent(old, old_root, new, new_root, proof)
    assert not is_consistent(old, leaf_hash(b"other"), new, new_root, proof)
    if old < new:
        assert not is_consistent(old, old_root, new, leaf_hash(b"other"), proof)
        assert not is_consistent(old, old_root, new, new_root, proof[:-1])
    assert not is_consistent(old, old_root, new, new_root, [*proof, new_root])


@given(st.lists(st.binary(min_size=32, max_size=32), max_size=80), st.integers(0, 90), st.integers(0, 90))
def test_hostile_proofs_are_refused_not_crashed_on(path: list[bytes], one: int, other: int) -> None:
    root = leaf_hash(b"root")
    assert root_from_inclusion(b"leaf", one, other, path) != root
    assert not is_consistent(one, root, other, leaf_hash(b"new"), path)
