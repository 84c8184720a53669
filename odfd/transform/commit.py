"""Declares the port that commits a transform transaction: one compare-and-append, signed with a writer's key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.events import MetadataEvent
from chain.multihash import Multihash
from chain.store.base import Head
from engines.contract import RowCounts


class TransformCommitter(Protocol):
    """Makes blocks of events, checks them by the rules for authors, and moves head and signature together."""

    async def commit(
        self,
        dataset: DatasetId,
        expected_head: Head | None,
        events: Sequence[MetadataEvent],
        objects: Sequence[Multihash],
        system_time: Instant,
        rows: RowCounts | None = None,
    ) -> Head:
        """All events or none, the objects being in the store already, and what became of the rows. The new head.

        Raises Conflict when the head moved since, Invalid when a rule is broken.
        """
