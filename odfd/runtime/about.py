"""Names the things that an event or a task tells of, by which it is decided who is told of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

import msgspec


class About(msgspec.Struct, frozen=True, kw_only=True):
    """The things that something tells of. ``things``: dids of datasets, and ids of other resources.

    With neither things nor an account it tells of the node, whose owner alone gets it.
    """

    things: frozenset[str] = frozenset()
    inputs: bool = False
    """Its words may name what these datasets derive from."""
    account: str | None = None
    """Id of the account that it is of, and of nobody else."""
    task: str = ""
    """Id of a task that it is of: who began that is told of it."""


Sees: TypeAlias = Callable[[Sequence[About]], Awaitable[Sequence[bool]]]
"""Whether somebody is told of each of some items."""
NODE: Final = About()
"""What tells of the node, of other nodes, or of what no right is given on."""


def about(*things: object, inputs: bool = False) -> About:
    """Returns what tells of some datasets or resources, each by its id."""
    return About(things=frozenset(map(str, things)), inputs=inputs)
