"""Makes Merkle proofs (RFC 6962) about chains that this node serves, and caches full subtrees between requests.

Called from worker threads. A proof reads the hashes of one or two thousand blocks. Only the first proof of a chain
without stored subtree roots (``odfd.store.ledger.subtree_roots``), as after a rewrite, reads those of all blocks.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Final

import msgspec
from cachetools import FIFOCache

from chain.errors import Environment, NotFound
from chain.ids import DatasetId
from chain.statements.tree import Frontier, Tree
from chain.store.base import BLOCK_DAMAGED
from chain.store.database import Database
from odfd.store.ledger.log import Ledger
from odfd.store.ledger.subtree_roots import Subtrees

MAX_TREES: Final = 64
"""Chains whose subtrees are cached; those of a million blocks take 200 KiB."""
_ATTEMPTS: Final = 3
"""Attempts at a chain that is rewritten each time."""
_HASHES: Final = (
    "SELECT hash FROM blocks WHERE dataset = (SELECT number FROM datasets WHERE id = ?)"
    " AND sequence >= ? AND sequence < ? ORDER BY sequence"
)


class _Grown(msgspec.Struct):
    """A tree, and the last block that it includes: while the chain still has that block, the tree is valid."""

    tree: Tree
    size: int = 0
    last: bytes = b""


class TreeProofs:
    """Makes the proofs of one node."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._trees: FIFOCache[DatasetId, _Grown] = FIFOCache(MAX_TREES)
        self._lock = threading.Lock()

    def prove(self, dataset: DatasetId, size: int, *, old: int | None = None, index: int | None = None) -> list[bytes]:
        """Proves for a chain of ``size`` blocks; returns the proof's nodes of 32 bytes, at most one for each level.

        Raises Environment for damaged hashes, but not for those of a chain that is rewritten meanwhile.
        """
        for _ in range(_ATTEMPTS):
            known = self._find_known(dataset)
            try:
                return self._prove(dataset, size, old, index)
            except Environment:
                if self._find_known(dataset) == known:
                    raise
        raise NotFound(f"{dataset.short} is being rewritten", rule="chain-not-served", hint="ask again")

    def _prove(self, dataset: DatasetId, size: int, old: int | None, index: int | None) -> list[bytes]:
        with self._lock:
            grown = self._trees.pop(dataset, None)
            if grown is None or self._digests(dataset, grown.size - 1, grown.size) != [grown.last]:
                grown = _Grown(self._tree(dataset))
            self._trees[dataset] = grown
            nodes = grown.tree.inclusion(index or 0, size) if old is None else grown.tree.consistency(old, size)
            self._check(dataset, grown.tree)
            if size > grown.size:
                (grown.last,) = self._leaves(dataset, size - 1, size)
                grown.size = size
            return nodes

    def _check(self, dataset: DatasetId, tree: Tree) -> None:
        """Checks a tree against the chain: false proofs would cost this node its peers' trust. Raises Environment."""
        known = self._find_known(dataset)
        if known.size and tree.root(known.size) != known.root:
            del self._trees[dataset]
            raise _damage(dataset, "the hashes of the blocks are not those that were checked")

    def _tree(self, dataset: DatasetId) -> Tree:
        """Reads the tree of a chain that has none cached, since the start or since a rewrite."""
        leaves = partial(self._leaves, dataset)
        known = self._find_known(dataset)
        with self._database.read() as connection:
            kept = Subtrees(connection).load(dataset, known, leaves)
        if kept is not None:
            return kept
        tree = Tree(leaves)
        tree.root(known.size)  # before anybody has to wait for the transaction
        with self._database.write() as connection:
            Subtrees(connection).learn(dataset, known, tree)
        return tree

    def _leaves(self, dataset: DatasetId, start: int, stop: int) -> list[bytes]:
        """Returns the leaf hashes of all requested blocks. Raises Environment."""
        found = self._digests(dataset, start, stop)
        if len(found) != stop - start:
            raise _damage(dataset, f"not all blocks from #{start} to #{stop - 1} are in their place")
        return found

    def _find_known(self, dataset: DatasetId) -> Frontier:
        with self._database.read() as connection:
            return Ledger(connection).chain(dataset).frontier

    def _digests(self, dataset: DatasetId, start: int, stop: int) -> list[bytes]:
        with self._database.read() as connection:
            return [bytes(name[-32:]) for (name,) in connection.execute(_HASHES, (dataset, start, stop))]


def _damage(dataset: DatasetId, message: str) -> Environment:
    hint = "odfctl verify shows which; odfctl pull REF --repair repairs them"
    return Environment(message, rule=BLOCK_DAMAGED, hint=hint, place=dataset.short)
