"""Fetches small objects of many blocks in few answers, and verifies them together in memory, without temporary files.

A dataset that is written each minute has a slice of a few kilobytes in every block; a question, a file and a thread for
each would cost ten times as much as the bytes. Objects that do not come this way, or do not agree with their block, are
left to ``object_fetcher``, which asks each peer for each object and reports what is wrong.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from typing import Final

import trio

from chain.errors import Remote
from chain.model.block import objects_of
from chain.multihash import Multihash
from chain.store.objects import DiskObjects
from odfd.mirrors.sinks import SmallObjects
from odfd.published.replication import Replication
from odfd.verify.batch import sound_of
from odfd.verify.terms import Bringing
from p2p.pace import Pace
from p2p.ports import PeerId
from p2p.wire.limits import MAX_PACKED

TOGETHER: Final = 128
"""Blocks whose objects are fetched and checked together."""


def together(bringing: Iterator[Bringing]) -> Iterator[list[Bringing]]:
    """Yields groups of adjacent blocks that have only small objects; any other block is a group by itself."""
    group: list[Bringing] = []
    for each in bringing:
        small = all(size <= MAX_PACKED for _, size in objects_of(each[1]))
        if group and (not small or len(group) == TOGETHER):
            yield group
            group = []
        if small:
            group.append(each)
        else:
            yield [each]
    if group:
        yield group


class Packs:
    """Fetches small objects. One serves all mirrors."""

    def __init__(self, objects: DiskObjects, replication: Replication) -> None:
        self._objects = objects
        self._replication = replication
        self._checking = trio.CapacityLimiter(1)
        """Checks run one at a time: they are Python's work for thousands of small slices,
        which threads would not speed up."""

    async def take(
        self,
        peers: Sequence[PeerId],
        group: Sequence[Bringing],
        missing: Container[Multihash],
        pace: Pace | None = None,
    ) -> set[int]:
        """Fetches the ``missing`` objects of a group; returns positions of verified blocks. Raises Environment."""
        names = list(dict.fromkeys(name for _, block in group for name, _ in objects_of(block) if name in missing))
        if names:
            with suppress(Remote):
                await self._replication.fetch_small(peers, names, SmallObjects(self._objects, names), pace)
        return await trio.to_thread.run_sync(sound_of, self._objects, group, limiter=self._checking)
