"""What a mirror does when its dataset turns to a new epoch: go on where nothing here is given up, else wait.

Blocks that an epoch gives up are not taken away by this version of the store; the mirror stands still, keeps and serves
what it has, and says so. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from chain.errors import Invalid, Refused
from chain.model.block import Block
from chain.statements.authority import Rights
from chain.statements.statement import HeadStatement
from chain.statements.tree import Frontier
from odfd.trust.epochs import turn_to
from odfd.trust.ledger import Checked


class RewriteWaiting(Refused):
    """An epoch was opened that gives up blocks which are here."""


def check_turn(checked: Checked, head: HeadStatement, walk: Sequence[Rights]) -> bool:
    """Whether the blocks here already are the beginning of the head's epoch. Raises RewriteWaiting."""
    tree = checked.frontier
    if not tree.size or head.epoch <= checked.epoch:
        return False
    turn = turn_to(head.epoch, checked.epoch, walk)
    if turn is None or not turn.keeps(tree.size, lambda size: tree.root if size == tree.size else None):
        kept = "other blocks" if turn is None else f"{turn.base.size} blocks"
        why = "" if turn is None else f" ({', '.join(turn.reasons)})"
        raise RewriteWaiting(
            f"epoch {head.epoch}{why} keeps {kept}, and {tree.size} of epoch {checked.epoch} are here",
            rule="rewrite-waiting",
            hint="to follow it, delete the dataset here and mirror it anew; to keep what is here, do nothing",
        )
    return tree.size == turn.base.size


def check_base(frontier: Frontier, blocks: Sequence[Block], head: HeadStatement, rights: Rights) -> None:
    """New blocks go through what their epoch keeps of the one before. Raises Invalid."""
    opened = rights.opened(head.epoch)
    if opened is None or opened.base.size <= frontier.size:
        return
    reached = frontier.extend(block.hash.digest for block in blocks[: opened.base.size - frontier.size])
    if (reached.size, reached.root) != (opened.base.size, opened.base.root_hash):
        raise Invalid(
            f"the chain is not the one that epoch {head.epoch} was opened on",
            rule="trust.epoch-base",
            hint="its writer and its roots contradict each other",
        )
