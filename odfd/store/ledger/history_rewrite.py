"""Updates the ledger when a chain is rewritten, by its owner or by a mirror that follows the owner.

Both give up blocks from some number on and everything that was concluded from them, in the transaction that moves the
head. The owner's order is: objects durable; then one transaction with the new blocks, their tree and references, and
the version of the authority that opens the epoch; then that version is journalled and announced; then the head of the
new epoch is signed. A crash before the transaction leaves the old history, and a few objects for the collector. A crash
after it leaves the new history, whose version is journalled and whose head is signed at the next start
(``note_newest``, ``OwnerCommitter.sign_unsigned``). Others may see the epoch before its first head, but never a history
before the epoch that declares it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Final

from chain.errors import Conflict
from chain.ids import DatasetId
from chain.model.block import Block, objects_of
from chain.multihash import Multihash
from chain.statements.statement import Epoch, TreeHead
from chain.statements.tree import Frontier
from chain.store.base import ChainReader
from chain.store.rewriting import RewritePlan
from odfd.store import pushes, row_counts
from odfd.store.damage import Damage
from odfd.store.ledger.log import CheckedChain, Ledger
from odfd.store.references import drop_later, keep_named, move_links

_BATCH: Final = 4096
"""Leaves that are added to a tree at once."""


def kept_tree(chain: ChainReader, size: int) -> Frontier:
    """Returns the tree over the first ``size`` blocks, or over all if there are fewer."""
    return Frontier().extend(Multihash.sha3_256(raw).digest for raw in chain.raw_blocks(0, size))


def tree_head(tree: Frontier) -> TreeHead:
    return TreeHead(size=tree.size, root_hash=tree.root)


def give_up(connection: sqlite3.Connection, dataset: DatasetId, keep: int, checked: CheckedChain) -> None:
    """Deletes conclusions about blocks from ``keep`` on, and what only those named; ``checked`` holds from now on."""
    _conclude(connection, dataset, keep, checked)
    drop_later(connection, dataset, keep)
    row_counts.cut(connection, dataset, keep)
    pushes.cut(connection, dataset, keep)


def _conclude(connection: sqlite3.Connection, dataset: DatasetId, keep: int, checked: CheckedChain) -> None:
    ledger = Ledger(connection)
    ledger.forget(dataset)
    ledger.keep_chain(dataset, checked)
    Damage(connection).forget_later(dataset, keep)


def check_opening(opened: Epoch | None, kept: Frontier, last: Frontier) -> None:
    """Raises Conflict unless the epoch is opened on exactly this history."""
    if opened is None or (opened.base, opened.last) != (tree_head(kept), tree_head(last)):
        raise Conflict(
            "the epoch speaks of another history than the one that is here",
            rule="rewrite-draft",
            hint="the chain moved since it was drafted: repeat the command",
        )


class RewrittenHistory:
    """Follows the blocks of a new history as they stream by:
    computes their tree with the kept blocks, and their objects.

    Memory: about 150 bytes for each object named.
    """

    def __init__(self, chain: ChainReader, plan: RewritePlan) -> None:
        self._plan = plan
        self._tree = self.kept = kept_tree(chain, plan.base.size)
        self._leaves: list[bytes] = []
        self._named: list[tuple[Multihash, int]] = []

    def watch(self, blocks: Iterable[Block]) -> Iterator[Block]:
        for block in blocks:
            self._leaves.append(block.hash.digest)
            self._named += [(name, block.sequence_number) for name, _ in objects_of(block)]
            if len(self._leaves) >= _BATCH:
                self._grow()
            yield block

    @property
    def tree(self) -> Frontier:
        self._grow()
        return self._tree

    def settle(self, connection: sqlite3.Connection, checked: CheckedChain) -> None:
        """Updates the ledger in the transaction that moves the head; ``checked`` holds from now on."""
        plan = self._plan
        if plan.after == "merged":
            _conclude(connection, plan.dataset, plan.base.size, checked)
            move_links(connection, plan.dataset, plan.base.size, plan.moved())
            row_counts.move(connection, plan.dataset, plan.base.size, plan.moved())
            pushes.move(connection, plan.dataset, plan.base.size, plan.moved())
        else:
            give_up(connection, plan.dataset, plan.base.size, checked)
        keep_named(connection, plan.dataset, self._named)

    def _grow(self) -> None:
        self._tree, self._leaves = self._tree.extend(self._leaves), []
