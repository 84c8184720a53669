"""Stores a person's decisions on datasets where no rule decides, as a view of the decisions in the log.

A decision binds this node alone, names by hash what it settles, and settles only that: a fork up to the named block,
the verdicts on single steps, one version of an authority, one epoch. Later contradictions stop the dataset again. Calls
are synchronous, on the connection they are given. Spec: docs/spec/trust.md#epochs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from functools import cached_property
from typing import Final

import msgspec

from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import Multihash
from odfd.store.ledger.tables import RESOLVED

BRANCH: Final = "branch"
"""In an epoch that forks: follow the history that has ``name`` at ``place``, and so all before it."""
VERDICT: Final = "verdict"
"""The step ``name`` at ``place`` is relied on as data, whatever the verdicts on it are."""
VERSION: Final = "version"
"""Of two authorities of one version: follow the one whose sid is ``name``."""
EPOCH: Final = "epoch"
"""Follow an epoch although it drops blocks that are here; ``name`` is the head that was seen."""
ABANDONED: Final = "abandoned"
"""Rely on nothing beyond the first ``place`` blocks, and accept no more."""


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """One decision about one matter."""

    matter: str
    number: int
    """The number of the epoch, the version or the step."""
    place: int
    name: Multihash
    at: Instant


class Decided(msgspec.Struct, frozen=True, dict=True):
    """A person's decisions on one dataset."""

    all: tuple[Resolution, ...] = ()

    @cached_property
    def _found(self) -> Mapping[tuple[str, int], Resolution]:
        return {(each.matter, each.number): each for each in self.all}

    def branch(self, epoch: int) -> Resolution | None:
        """Returns the decision which history of a forked epoch is followed."""
        return self._found.get((BRANCH, epoch))

    @property
    def places(self) -> dict[int, int]:
        """Returns, for each forked epoch, the place up to which a history was chosen."""
        return {each.number: each.place for each in self.all if each.matter == BRANCH}

    def version(self, number: int) -> Multihash | None:
        """Returns the statement of a version that is followed by decision."""
        found = self._found.get((VERSION, number))
        return None if found is None else found.name

    def verdict(self, step: int) -> Multihash | None:
        """Returns the block of a step that is relied on in spite of verdicts."""
        found = self._found.get((VERDICT, step))
        return None if found is None else found.name

    def follows(self, epoch: int) -> bool:
        """Whether a person chose to follow the epoch or a later one, which builds on it."""
        return any(each.matter == EPOCH and each.number >= epoch for each in self.all)

    @property
    def abandoned(self) -> Resolution | None:
        return self._found.get((ABANDONED, 0))


class Resolutions:
    """Stores a person's decisions, over one SQLite connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def of(self, dataset: DatasetId) -> Decided:
        rows = RESOLVED.rows(self._db, "dataset = ? ORDER BY at, matter, number", (dataset,))
        return Decided(
            tuple(
                Resolution(matter=matter, number=number, place=place, name=Multihash(name), at=Instant(at))
                for _, matter, number, place, name, at in rows
            )
        )

    def take_up(self, dataset: DatasetId) -> None:
        """Revokes the decision to abandon the dataset."""
        self._db.execute("DELETE FROM trust_resolved WHERE dataset = ? AND matter = ?", (dataset, ABANDONED))

    def keep(self, dataset: DatasetId, made: Resolution) -> None:
        RESOLVED.put(self._db, dataset, made.matter, made.number, made.place, made.name, made.at)
