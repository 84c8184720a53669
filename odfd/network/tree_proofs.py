"""Makes Merkle proofs (RFC 6962) about chains that this node serves, keeping full subtrees between requests.

Made with the library, called from worker threads. A proof reads the hashes of a thousand blocks or two; only the first
of a chain whose groups are not kept (``odfd.trust.ledger.subtree_roots``) those of all, as after it was rewritten.
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
from odfd.trust.ledger.log import Ledger
from odfd.trust.ledger.subtree_roots import Subtrees

MAX_TREES: Final = 64
"""Chains whose subtrees are kept: of a million blocks they take 200 KiB."""
_ATTEMPTS: Final = 3
"""At a chain that becomes another one each time."""
_HASHES: Final = (
    "SELECT hash FROM blocks WHERE dataset = (SELECT number FROM datasets WHERE id = ?)"
    " AND sequence >= ? AND sequence < ? ORDER BY sequence"
)


class _Grown(msgspec.Struct):
    """A tree, and the last block of those it has read: while that stands, so do all before it."""

    tree: Tree
    size: int = 0
    last: bytes = b""


class TreeProofs:
    """The proofs that one node makes."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._trees: FIFOCache[DatasetId, _Grown] = FIFOCache(MAX_TREES)
        self._lock = threading.Lock()

    def prove(self, dataset: DatasetId, size: int, *, old: int | None = None, index: int | None = None) -> list[bytes]:
        """``size`` blocks are here. Nodes of the proof, one of 32 bytes for each level of the tree at most.

        Raises Environment for hashes that are damaged; not for those of a chain that is rewritten meanwhile.
        """
        for _ in range(_ATTEMPTS):
            known = self._known(dataset)
            try:
                return self._prove(dataset, size, old, index)
            except Environment:
                if self._known(dataset) == known:
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
        """A proof from a spoilt hash proves nothing, and costs us the asker's regard. Raises Environment."""
        known = self._known(dataset)
        if known.size and tree.root(known.size) != known.root:
            del self._trees[dataset]
            raise _damaged(dataset, "the hashes of the blocks are not those that were checked")

    def _tree(self, dataset: DatasetId) -> Tree:
        """Reads the tree of a chain that was not asked for since the start, or was rewritten."""
        leaves = partial(self._leaves, dataset)
        known = self._known(dataset)
        with self._database.read() as connection:
            kept = Subtrees(connection).kept(dataset, known, leaves)
        if kept is not None:
            return kept
        tree = Tree(leaves)
        tree.root(known.size)  # before anybody has to wait for the transaction
        with self._database.write() as connection:
            Subtrees(connection).learn(dataset, known, tree)
        return tree

    def _leaves(self, dataset: DatasetId, start: int, stop: int) -> list[bytes]:
        """All of those asked for. Raises Environment."""
        found = self._digests(dataset, start, stop)
        if len(found) != stop - start:
            raise _damaged(dataset, f"not all blocks from #{start} to #{stop - 1} are in their place")
        return found

    def _known(self, dataset: DatasetId) -> Frontier:
        with self._database.read() as connection:
            return Ledger(connection).chain(dataset).frontier

    def _digests(self, dataset: DatasetId, start: int, stop: int) -> list[bytes]:
        with self._database.read() as connection:
            return [bytes(name[-32:]) for (name,) in connection.execute(_HASHES, (dataset, start, stop))]


def _damaged(dataset: DatasetId, message: str) -> Environment:
    hint = "odfctl verify tells which; odfctl pull REF --repair mends them"
    return Environment(message, rule=BLOCK_DAMAGED, hint=hint, place=dataset.short)
