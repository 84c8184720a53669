"""Determines which of the blocks held here a new epoch keeps, and which it gives up. Pure.

A node follows an epoch that replaces no blocks without asking; its policy decides whether it follows one that does
(docs/spec/trust.md#epochs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from chain.errors import Conflict
from chain.statements.authority import Rights
from chain.statements.statement import Epoch, HeadStatement, TreeHead
from chain.wording import plural

RootAt = Callable[[int], bytes | None]
"""Returns the root of my own tree at a size, or ``None`` if I have fewer blocks."""


class EpochSwitch(msgspec.Struct, frozen=True):
    """The step from an earlier epoch to a later one."""

    base: TreeHead
    """The shortest of the trees that the epochs in between keep."""
    reasons: tuple[str, ...]
    replaces: bool
    """Whether any published block is given up."""

    def keeps(self, size: int, root_at: RootAt) -> bool:
        """Whether none of my ``size`` blocks has to be given up, as far as known without the other blocks."""
        return size < self.base.size or (size == self.base.size and root_at(size) == self.base.root_hash)


def turn_to(epoch: int, mine: int, walk: Sequence[Rights]) -> EpochSwitch | None:
    """Returns the switch from epoch ``mine`` to ``epoch``;
    ``None`` if an epoch in between is unknown, or there is none."""
    known: dict[int, Epoch] = {each.number: each for rights in walk for each in rights.epochs}
    between = [known.get(number) for number in range(mine + 1, epoch + 1)]
    opened = [each for each in between if each is not None]
    if not opened or len(opened) < len(between):
        return None
    return EpochSwitch(
        base=min((each.base for each in opened), key=lambda base: base.size),
        reasons=tuple(each.reason for each in opened),
        replaces=any(each.replaces for each in opened),
    )


def begins_at(head: HeadStatement, base: TreeHead) -> bool:
    """Whether a head can belong to an epoch that begins with ``base``, as far as known without blocks."""
    return head.size > base.size or (head.size == base.size and head.root_hash == base.root_hash)


def epoch_of(size: int, root_at: RootAt, walk: Sequence[Rights], heads: Iterable[HeadStatement]) -> int:
    """Determines the epoch of an imported chain of ``size`` blocks from signed heads; ``root_at`` computes its roots.

    The newest head whose tree is in the chain gives the epoch. Each later epoch then counts as the chain's too, if it
    keeps all blocks that are here, or begins within them and did not give up the rest. Raises Conflict if a later epoch
    gave the chain up, or if nobody can tell.
    """
    known = {each.number: each for rights in walk for each in rights.epochs}
    of_it = [each for each in heads if each.size <= size and root_at(each.size) == each.root_hash]
    newest = max(of_it, key=lambda each: each.order, default=None)
    epoch = 0 if newest is None or (newest.epoch and newest.epoch not in known) else newest.epoch
    while (opened := known.get(epoch + 1)) is not None and opened.base.size <= size:
        base, last = opened.base, opened.last
        if root_at(base.size) != base.root_hash:
            raise _given_up(opened, f"it keeps {plural(base.size, 'block')} other than those of the copy")
        if size > base.size:
            if newest is not None and newest.size > base.size:
                raise _given_up(opened, f"of its {plural(size, 'block')} that keeps {base.size}")
            if opened.replaces and size < last.size:
                raise Conflict(
                    f"it cannot be told whether the blocks from #{base.size} on are those that epoch {opened.number}"
                    " gave up",
                    rule="import-epoch",
                    hint="no signed head came with the copy: export it anew from a node that has it",
                )
            if opened.replaces and root_at(last.size) == last.root_hash:
                raise _given_up(opened, f"of its {plural(size, 'block')} that keeps {base.size}")
        epoch += 1
    return epoch


def _given_up(opened: Epoch, why: str) -> Conflict:
    return Conflict(
        f"the copy is of a history that epoch {opened.number} gave up ({opened.reason}): {why}",
        rule="import-given-up",
        hint="import a copy that was made since, or mirror the dataset",
    )
