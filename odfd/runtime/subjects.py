"""Names the datasets, resources, account and task that an event or task is about, which decides who may see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import msgspec


class Subjects(msgspec.Struct, frozen=True, kw_only=True):
    """The subjects of an event or task. ``things``: dids of datasets, and ids of other resources.

    With neither things nor an account it is about the node, and only the node's owner sees it.
    """

    things: frozenset[str] = frozenset()
    inputs: bool = False
    """Whether its text may name the inputs that these datasets derive from."""
    account: str | None = None
    """Id of the account that it is about, which alone may see it."""
    task: str = ""
    """Id of the task that it is about; whoever began that may see it."""


Sees: TypeAlias = Callable[[Sequence[Subjects]], Sequence[bool]]
"""Tells for each of some items whether a caller may see it. Blocking."""
NODE: Final = Subjects()
"""Subject of items about the node, about other nodes, or about things that no right is given on."""


def about(*things: object, inputs: bool = False) -> Subjects:
    """Returns the subject of an item about some datasets or resources, each by its id."""
    return Subjects(things=frozenset(map(str, things)), inputs=inputs)
