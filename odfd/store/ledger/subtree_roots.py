"""Stores subtree roots of each chain's Merkle tree, so that proofs over long chains are cheap.

Without them an earlier root or a proof would read a chain from its beginning, and peers request those at will. The
stored roots are not trusted: a tree made with them must have the root that was checked with the blocks; otherwise it is
made from the blocks alone. Calls are synchronous, on the connection they are given.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from chain.ids import DatasetId
from chain.statements.tree import GROUP, HASH_SIZE, Frontier, Leaves, Tree
from chain.store import bulk_rows


class Subtrees:
    """Reads and writes the table of subtree roots, which is the ledger's."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def keep(self, dataset: DatasetId, before: Frontier, groups: Sequence[bytes]) -> None:
        """Stores the subtrees completed since ``before``, replacing those of another continuation."""
        first = before.size // GROUP
        self._db.execute("DELETE FROM trust_subtrees WHERE dataset = ? AND place >= ?", (dataset, first))
        self._db.execute(
            "INSERT INTO trust_subtrees SELECT ?1, value, substr(?2, key * ?3 + 1, ?3) FROM json_each(?4)",
            (dataset, b"".join(groups), HASH_SIZE, bulk_rows.numbers(range(first, first + len(groups)))),
        )

    def tree(self, dataset: DatasetId, known: Frontier, leaves: Leaves) -> Tree:
        """Returns the tree of a chain whose checked tree is ``known``; stores missing subtrees.
        Raises what ``leaves`` does."""
        tree = self.load(dataset, known, leaves)
        if tree is None:
            tree = Tree(leaves)
            self.learn(dataset, known, tree)
        return tree

    def load(self, dataset: DatasetId, known: Frontier, leaves: Leaves) -> Tree | None:
        """Returns the tree from stored subtrees and the last leaves; ``None`` if its root is not that of ``known``."""
        groups = self._groups(dataset, known.size)
        tree = Tree(leaves, groups)
        is_whole = len(groups) == known.size // GROUP and tree.root(known.size) == known.root
        return tree if is_whole else None

    def learn(self, dataset: DatasetId, known: Frontier, tree: Tree) -> None:
        """Stores subtrees that were computed from the leaves, if they match the checked tree."""
        if tree.root(known.size) == known.root:
            self.keep(dataset, Frontier(), tree.groups(known.size))

    def _groups(self, dataset: DatasetId, size: int) -> dict[int, bytes]:
        rows = self._db.execute(
            "SELECT place, root FROM trust_subtrees WHERE dataset = ? AND place < ?", (dataset, size // GROUP)
        )
        return dict(rows.fetchall())
