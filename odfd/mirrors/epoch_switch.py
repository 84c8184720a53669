"""Decides what a mirror does when its dataset begins a new epoch: continue, go back to where the epoch begins, or wait.

Blocks beyond what an epoch keeps are given up if they were not published, or if the policy allows it; otherwise the
mirror stands still, keeps and serves what it has, and reports it. Decisions are pure; ``go_back`` is one transaction of
the store. Spec: docs/spec/trust.md#epochs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import NamedTuple

from chain.errors import Invalid, Refused
from chain.ids import DatasetId
from chain.model.block import SealedBlock
from chain.statements.authority import Rights
from chain.statements.statement import HeadStatement
from chain.statements.tree import Frontier
from chain.store import uppers
from chain.store.base import ChainStore, FormerEpochs, Rewrite
from chain.wording import plural
from config import model
from odfd.policy.policy import apart, follows_rewrites
from odfd.store.ledger.history_rewrite import give_up, kept_tree
from odfd.store.ledger.log import CheckedChain
from odfd.trust.admission.rules import EpochSwitch, turn_to


class Following(NamedTuple):
    """The policy on epochs that give up held blocks; its functions are called each time."""

    follow: Callable[[], bool] = lambda: False
    """Whether such epochs are followed."""
    apart: Callable[[int], FormerEpochs | None] = lambda _: None
    """Returns where blocks of a former epoch are kept; ``None``: they are not."""


def following(policy: Callable[[], model.Policy]) -> Following:
    """Reads the policy from the settings in force."""
    return Following(lambda: follows_rewrites(policy()), lambda epoch: apart(policy(), epoch))


class RewriteWaiting(Refused):
    """An epoch was opened that gives up blocks which are here."""


def is_there(checked: CheckedChain, head: HeadStatement) -> bool:
    """Whether the held blocks already belong to this or a later epoch, as after an import of a folder."""
    tree = checked.frontier
    return head.epoch > checked.epoch and (tree.size, tree.root) == (head.size, head.root_hash)


def turn_of(checked: CheckedChain, head: HeadStatement, walk: Sequence[Rights], *, follow: bool) -> EpochSwitch | None:
    """Returns the switch to the head's epoch; ``None`` if there is none. Raises RewriteWaiting."""
    tree = checked.frontier
    if not tree.size or head.epoch <= checked.epoch:
        return None
    turn = turn_to(head.epoch, checked.epoch, walk)
    if turn is None:
        raise _waiting(checked, head, "it is not known how it began")
    if follow or turn.keeps(tree.size, lambda _: tree.root):
        return turn
    if turn.replaces:
        raise _waiting(checked, head, f"{', '.join(turn.reasons)}, of which {plural(turn.base.size, 'block')} kept")
    return turn


def _waiting(checked: CheckedChain, head: HeadStatement, why: str) -> RewriteWaiting:
    return RewriteWaiting(
        f"epoch {head.epoch} drops blocks that are here ({why}; {checked.frontier.size} of epoch {checked.epoch})",
        rule="rewrite-waiting",
        hint=f"to follow it: odfctl trust resolve REF --follow {head.head}; to keep what is here, do nothing",
    )


def go_back(
    chains: ChainStore,
    dataset: DatasetId,
    checked: CheckedChain,
    turn: EpochSwitch,
    epoch: int,
    parts_at: int | None = None,
    apart: FormerEpochs | None = None,
) -> CheckedChain | None:
    """Gives up the blocks beyond the base, atomically; returns what remains checked. ``apart``: where they are kept.

    ``parts_at``: where the present epoch is proven to fork, if the other history may be followed; a node whose history
    does not have the base goes back to there. Returns ``None`` while fewer blocks are here than the epoch keeps. Raises
    RewriteWaiting if the base is not in this chain.
    """
    tree, keep = checked.frontier, turn.base.size
    chain = chains.chain(dataset)
    if tree.size < keep or kept_tree(chain, keep).root != turn.base.root_hash:
        if parts_at is not None and 0 < parts_at < min(tree.size, keep):
            keep = parts_at
        elif tree.size < keep:
            return None
    kept = kept_tree(chain, keep)
    if keep == turn.base.size and kept.root != turn.base.root_hash:
        raise RewriteWaiting(
            f"epoch {epoch} begins with {plural(keep, 'block')} other than here",
            rule="rewrite-waiting",
            hint="another branch was kept: delete the dataset here and mirror it again",
        )
    now = CheckedChain(kept, min(checked.data, keep), epoch)
    head = chain.head()
    if tree.size == keep or head is None:
        return now

    def together(connection: sqlite3.Connection) -> None:
        give_up(connection, dataset, keep, now)
        uppers.forget(connection, dataset)  # it was signed for the epoch that is given up

    chains.rewrite(Rewrite(dataset=dataset, expected=head, keep=keep, apart=apart), together)
    return now


def check_base(frontier: Frontier, blocks: Sequence[SealedBlock], head: HeadStatement, rights: Rights) -> None:
    """Raises Invalid unless new blocks contain the base that their epoch keeps of the one before."""
    opened = rights.opened(head.epoch)
    if opened is None or opened.base.size <= frontier.size:
        return
    reached = frontier.extend(block.hash.digest for block in blocks[: opened.base.size - frontier.size])
    if (reached.size, reached.root) != (opened.base.size, opened.base.root_hash):
        raise Invalid(
            f"the chain is not the one that epoch {head.epoch} was opened on",
            rule="trust.epoch-base",
            hint="its writer and its root keys contradict each other",
        )
