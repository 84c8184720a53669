"""The objects that blocks bring, on their way here: several at once, each checked against its block before it counts.

What arrived of an object that was cut off stays and is gone on with. One ``Arrivals`` serves all mirrors, so that no
object is fetched twice at the same time.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec
import trio

from chain.errors import Environment, Invalid, Refused
from chain.model.block import Block, NamedObject, SealedBlock, objects_of
from chain.multihash import Multihash
from chain.store.objects import DiskObjects
from odfd.errors import sole_fault
from odfd.mirrors.sinks import PartialObject
from odfd.mirrors.tally import Tally
from odfd.verify.objects import check_event
from odfd.verify.terms import Terms, bringing_objects
from p2p.ports import PeerId, Replication

AT_ONCE: Final = 4
"""Blocks whose objects are on their way at the same time, for one mirror."""
_SPOILT: Final = frozenset({"slice-physical-hash", "slice-missing", "checkpoint-physical-hash", "checkpoint-missing"})
"""Rules that bytes which were hashed when they came can break only through our own disk."""


class ObjectLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What objects of mirrors may cost this node."""

    object_bytes: int = 16 << 30
    """Of one object; larger ones are refused before a byte of them is asked for."""
    disk_reserve: int = 0
    """Bytes left free on the disk of the state directory: below it nothing more is taken."""


class Arrivals:
    """See the module."""

    def __init__(
        self, objects: DiskObjects, partial: Path, replication: Replication, limits: ObjectLimits | None = None
    ) -> None:
        self._objects = objects
        self._partial = partial
        self._replication = replication
        self.limits = limits or ObjectLimits()
        self._on_the_way: dict[Multihash, trio.Event] = {}

    async def bring(self, peers: Sequence[PeerId], terms: Terms, blocks: Sequence[SealedBlock], tally: Tally) -> int:
        """All that blocks after ``terms`` bring; how many objects that is.

        Raises Remote (peers), Invalid or Refused (an object is not what its block says, or too much), Environment.
        """
        wanted = [named for block in blocks for named in block.objects]
        tally.slices, tally.slices_wanted = 0, len(wanted)
        tally.bytes, tally.bytes_wanted = 0, sum(size for _, size in wanted)
        await trio.to_thread.run_sync(self._check_room, wanted)
        waiting = bringing_objects(terms, blocks)

        async def work() -> None:
            for said, block in waiting:
                for name, size in objects_of(block):
                    await self._have(peers, name, size)
                    tally.slices += 1
                    tally.bytes += size
                await self._check(peers, said, block)

        try:
            async with trio.open_nursery() as nursery:
                for _ in range(AT_ONCE if wanted else 0):
                    nursery.start_soon(work)
        except BaseExceptionGroup as group:
            fault = sole_fault(group)
            if fault is None:
                raise
            raise fault from group
        return len(wanted)

    async def again(self, peers: Sequence[PeerId], names: Iterable[NamedObject]) -> None:
        """Fetch objects over those that are here, which are damaged. Raises Remote."""
        for name, size in names:
            async with self._alone(name):
                await trio.to_thread.run_sync(self._objects.remove, name)
                await self._fetch(peers, name, size)

    async def _check(self, peers: Sequence[PeerId], terms: Terms, block: Block) -> None:
        """Against their block. What our own disk has spoilt since it came is fetched again. Raises Invalid."""
        findings = await trio.to_thread.run_sync(check_event, self._objects, terms, block)
        if any(found.rule in _SPOILT for found in findings):
            await self.again(peers, objects_of(block))
            findings = await trio.to_thread.run_sync(check_event, self._objects, terms, block)
        for found in findings:
            raise Invalid(found.message, rule=found.rule, place=f"block #{block.sequence_number}")

    def _check_room(self, wanted: Iterable[NamedObject]) -> None:
        """Before anything is asked for. Raises Refused for an object that is too large, Environment for a full disk."""
        limits = self.limits
        missing = [(name, size) for name, size in wanted if not self._objects.has(name)]
        for name, size in missing:
            if size > limits.object_bytes:
                raise Refused(
                    f"object {name.short} has {size:,} bytes",
                    rule="object-bytes",
                    hint=f"limits.object-bytes of the settings allows {limits.object_bytes:,}",
                )
        needed, free = sum(size for _, size in missing), shutil.disk_usage(self._partial).free
        if missing and free - needed < limits.disk_reserve:
            raise Environment(
                f"{needed:,} bytes are missing, and the disk has {free:,} free",
                rule="disk-reserve",
                hint=f"free some space; limits.disk-reserve-bytes keeps {limits.disk_reserve:,} of it",
            )

    async def _have(self, peers: Sequence[PeerId], name: Multihash, size: int) -> None:
        """Fetch an object unless it is here."""
        async with self._alone(name):
            if not await trio.to_thread.run_sync(self._objects.has, name):
                await self._fetch(peers, name, size)

    @asynccontextmanager
    async def _alone(self, name: Multihash) -> AsyncIterator[None]:
        """Two mirrors may want one object: the second waits for the first, lest both write one partial file."""
        while (fetching := self._on_the_way.get(name)) is not None:
            await fetching.wait()
        self._on_the_way[name] = here = trio.Event()
        try:
            yield
        finally:
            del self._on_the_way[name]
            here.set()

    async def _fetch(self, peers: Sequence[PeerId], name: Multihash, size: int) -> None:
        sink = await trio.to_thread.run_sync(PartialObject, self._partial, self._objects, name)
        try:
            await self._replication.fetch_object(peers, name, size, sink)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(sink.close)
