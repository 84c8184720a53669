"""Declares the port that commits a transaction: one compare-and-append, signed with a writer's key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.events import MetadataEvent
from chain.multihash import Multihash
from chain.store.base import Head
from engines.contract import RowCounts
from odfd.datasets.pushes import Push


class SideCommit(msgspec.Struct, frozen=True, kw_only=True):
    """What another chain gets in the same transaction."""

    dataset: DatasetId
    expected: Head | None
    events: tuple[MetadataEvent, ...]
    objects: tuple[Multihash, ...]
    rows: RowCounts
    time: Instant
    """Of the blocks, where it is all that is appended."""


class CommitExtras(msgspec.Struct, frozen=True, kw_only=True):
    """What else is written in the transaction of some blocks."""

    push: Push | None = None
    """What brought them."""
    beside: SideCommit | None = None


class Committer(Protocol):
    """Makes blocks of events, checks them by the rules for authors, and moves head and signature together."""

    async def commit(
        self,
        dataset: DatasetId,
        expected_head: Head | None,
        events: Sequence[MetadataEvent],
        objects: Sequence[Multihash],
        system_time: Instant,
        rows: RowCounts | None = None,
        along: CommitExtras = CommitExtras(),  # noqa: B008  it is frozen
    ) -> Head:
        """All events or none, the objects being in the store already, and what became of the rows. The new head.

        ``along``: what is written with them, all of it or none.

        Raises Conflict when the head moved since, Invalid when a rule is broken.
        """

    async def note_rows(
        self,
        dataset: DatasetId,
        head: Head,
        rows: RowCounts,
        along: CommitExtras = CommitExtras(),  # noqa: B008  it is frozen
    ) -> None:
        """What became of the rows of a transaction that left the chain as it was, at ``head``.

        Where another chain gets something it is one transaction, with the push remembered. Raises as ``commit``.
        """
