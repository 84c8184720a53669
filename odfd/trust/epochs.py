"""What a new epoch makes of the blocks that are here: kept, or to be given up back to where the epochs agree. Pure.

An epoch that replaces nothing is followed unasked; whether a node follows one that does is its policy's to say
(trust.md section 2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from chain.statements.authority import Rights
from chain.statements.statement import Epoch, HeadStatement, TreeHead

RootAt = Callable[[int], bytes | None]
"""Root of my own tree at a size, or ``None`` when I have fewer blocks."""


class Turn(msgspec.Struct, frozen=True):
    """From an earlier epoch to a later one."""

    base: TreeHead
    """The shortest of what the epochs in between keep."""
    reasons: tuple[str, ...]
    replaces: bool
    """Whether anything that was published is given up."""

    def keeps(self, size: int, root_at: RootAt) -> bool:
        """Whether of my ``size`` blocks none would have to go, as far as can be told without theirs."""
        return size < self.base.size or (size == self.base.size and root_at(size) == self.base.root_hash)


def turn_to(epoch: int, mine: int, walk: Sequence[Rights]) -> Turn | None:
    """From epoch ``mine`` to ``epoch``; ``None`` when the versions known do not tell of each epoch in between."""
    known: dict[int, Epoch] = {each.number: each for rights in walk for each in rights.epochs}
    between = [known.get(number) for number in range(mine + 1, epoch + 1)]
    opened = [each for each in between if each is not None]
    if not opened or len(opened) < len(between):
        return None
    return Turn(
        base=min((each.base for each in opened), key=lambda base: base.size),
        reasons=tuple(each.reason for each in opened),
        replaces=any(each.replaces for each in opened),
    )


def begins_at(head: HeadStatement, base: TreeHead) -> bool:
    """Whether a head can be of an epoch that begins with ``base``, as far as can be told without blocks."""
    return head.size > base.size or (head.size == base.size and head.root_hash == base.root_hash)
