"""Decides whether a witness may cosign a tree after its last cosignature of the same origin: rules of tlog-witness.

All callers share this decision and differ in how they answer ``begins``: a mirror finds the old tree in its own blocks,
a witness without a copy has peers prove it, and a log sends the proof with its request. Pure.
Spec: docs/spec/trust.md#witnesses; c2sp.org/tlog-witness.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from chain.statements.tree import EMPTY_ROOT, is_consistent


class KnownTree(NamedTuple):
    """A tree that was cosigned or submitted: its size and root."""

    size: int
    root: bytes


NOTHING: Final = KnownTree(0, EMPTY_ROOT)
"""The empty tree: every tree begins with it, so the first tree of an origin needs no proof."""

Begins = Callable[[KnownTree], bool]
"""Whether the tree in question begins with this one."""


class ConsistencyResult(enum.Enum):
    """The decision on a tree."""

    COSIGN = "cosign"
    SMALLER = "smaller"
    """The tree has fewer leaves than the one that it claims to continue."""
    CONFLICT = "conflict"
    """The tree claims to continue another tree than the one cosigned last."""
    UNPROVEN = "unproven"
    """Nothing shows that the tree begins with the one cosigned last."""


def last_of(known: Collection[KnownTree]) -> KnownTree:
    """Returns the largest cosigned tree, or the empty tree."""
    return max(known, default=NOTHING)


def rule(known: Collection[KnownTree], old: int, tree: KnownTree, begins: Begins) -> ConsistencyResult:
    """Decides on a tree. ``known``: trees cosigned before, as far as recorded;
    ``old``: the size at which a proof starts."""
    if old > tree.size:
        return ConsistencyResult.SMALLER
    if old != last_of(known).size:
        return ConsistencyResult.CONFLICT
    return ConsistencyResult.COSIGN if all(begins(each) for each in known or (NOTHING,)) else ConsistencyResult.UNPROVEN


def shown_by(nodes: Sequence[bytes], old: int, tree: KnownTree) -> Begins:
    """Answers by a consistency proof. A tree smaller than ``old`` was shown to be its prefix when ``old`` was
    cosigned."""

    def begins(seen: KnownTree) -> bool:
        if not seen.size:
            return not nodes
        return seen.size < old or is_consistent(*seen, *tree, nodes)

    return begins


def proven_after(old: KnownTree) -> Begins:
    """Answers by an earlier check that the tree begins with ``old``."""
    return lambda seen: seen.size < old.size or seen == old
