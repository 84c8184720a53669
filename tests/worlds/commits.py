"""Commits events to one chain, as tests do it that need no more than that."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.events import MetadataEvent
from chain.multihash import Multihash
from chain.store.base import Head
from odfd.datasets.commit import Commit, CommitPart
from odfd.trust.signing.owner_commit import OwnerCommitter


def commit_events(
    committer: OwnerCommitter,
    dataset: DatasetId,
    expected: Head | None,
    events: Sequence[MetadataEvent],
    time: Instant,
    objects: Sequence[Multihash] = (),
    also: Callable[[sqlite3.Connection], None] = lambda _: None,
) -> Head:
    part = CommitPart(dataset=dataset, expected=expected, events=events, objects=objects, time=time)
    (head,) = committer.commit_now(Commit(parts=(part,), also=also))
    return head
