"""Fetches the objects that blocks name from peers: several at once, each verified against its block before it counts.

Objects that rows link to are fetched after the rows were checked, a page of names at a time however many there are. No
block states their size: a peer does, and its claim matters only for fetching from that peer. Received parts of an
interrupted object stay, and the fetch continues there. One ``ObjectFetcher`` serves all mirrors, so that no object is
fetched twice at the same time.

``Packs`` fetches small objects of many blocks in few answers, and verifies them together in memory, without temporary
files. A dataset that is written each minute has a slice of a few kilobytes in every block; a question, a file and a
thread for each would cost ten times as much as the bytes. Objects that do not come this way, or do not agree with their
block, are left to ``object_fetcher``, which asks each peer for each object and reports what is wrong.
"""

from __future__ import annotations

import math
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, closing, suppress
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, TypeVar

import msgspec
import trio
from cachetools import LRUCache

from chain.data.object_links import links_in
from chain.errors import Environment, Invalid, Refused, Remote
from chain.ids import DatasetId
from chain.model.block import Block, NamedObject, SealedBlock, objects_of
from chain.model.events import AddData, ExecuteTransform
from chain.multihash import Multihash
from chain.store.objects import DiskObjects
from odfd.datasets.uncommitted_objects import UncommittedObjects
from odfd.errors import sole_faults
from odfd.mirrors.data_retention import DataRetention
from odfd.mirrors.mirror_state import MirrorProgress
from odfd.mirrors.piece_fetcher import PieceFetcher
from odfd.mirrors.quota import MirrorQuota, RateLimits, StagedBlocks
from odfd.mirrors.sinks import PartialObject, SmallObjects
from odfd.mirrors.swarm_fetcher import LEAST, SwarmFetch, SwarmStep
from odfd.published.replication import Replication
from odfd.runtime.filesystem import check_room
from odfd.runtime.spans import span
from odfd.store.mirror_specs import MirrorSpec
from odfd.verify.batch import sound_of
from odfd.verify.objects import LINKED, check_event, check_object
from odfd.verify.terms import Bringing, ChainTerms, bringing_objects
from p2p.pace import Pace
from p2p.ports import PeerId
from p2p.wire.limits import MAX_PACKED
from p2p.wire.swarm import LARGE_OBJECT

WAIT: Final = 0.25
"""Seconds after which the next peer is asked too."""

Offer: TypeAlias = tuple[PeerId, int]
"""A peer that has the object, and the size in bytes that it states."""


class Asking(NamedTuple):
    found: trio.MemoryReceiveChannel[Offer]
    """Offers as they come; ends when all peers have answered."""
    taking: trio.Lock
    """While it is held no further peer is asked, because one is sending the object."""
    all_at_once: trio.Event
    """Once set, further peers are asked without waiting."""


@asynccontextmanager
async def offers(
    replication: Replication, peers: Iterable[PeerId], name: Multihash, reasons: dict[PeerId, str]
) -> AsyncIterator[Asking]:
    """Yields the offers; ``reasons`` receives the reasons of peers that do not have the object."""
    out, found = trio.open_memory_channel[Offer](0)
    asked = Asking(found, trio.Lock(), trio.Event())

    async def ask(peer: PeerId, answered: trio.Event) -> None:
        try:
            size = await replication.object_size(peer, name)
            if size is None:
                reasons[peer] = "does not have it"
            else:
                await out.send((peer, size))
        except Remote as fault:
            reasons[peer] = fault.message
        finally:
            answered.set()

    async def ask_all() -> None:
        async with out, trio.open_nursery() as asking:
            for peer in peers:
                answered = trio.Event()
                asking.start_soon(ask, peer, answered)
                if not asked.all_at_once.is_set():
                    with trio.move_on_after(WAIT):
                        await answered.wait()
                async with asked.taking:
                    pass

    with sole_faults():
        async with found, trio.open_nursery() as nursery:
            nursery.start_soon(ask_all)
            yield asked
            nursery.cancel_scope.cancel()


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


AT_ONCE: Final = 4
"""Blocks whose objects are fetched at the same time, for one mirror; and objects of one slice's links."""
CHECKED: Final = 2
"""Blocks whose objects are checked while AT_ONCE others are fetched: those that began together are also complete
together, and without others the line would be idle while they are checked."""
PAGE: Final = 256
"""Names of linked objects that are read at once."""
MAX_TOLD: Final = 5
"""Peers whose reasons are reported."""
HASTE: Final = 2.0
"""Seconds in which a peer that offers a linked object must give some of it, while there are other peers."""
PATIENCE: Final = 20.0
"""The same without other peers: a part of 1 MiB in it is 50 KiB/s."""
WORD: Final = 16 << 20
"""Bytes of a linked object accepted on one peer's claim;
for a larger one other peers are asked first, for ``HASTE``."""
STALLED: Final = "stalled"
REMEMBERED: Final = 1024
"""Peers remembered for offering a linked object and giving nothing in time."""
_SPOILT: Final = frozenset({"slice-physical-hash", "slice-missing", "checkpoint-physical-hash", "checkpoint-missing"})
"""Rules that bytes which were hashed on arrival can break only because our own disk damaged them."""

Item = TypeVar("Item")


class ObjectLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits on objects of mirrors."""

    object_bytes: int = 16 << 30
    """Bytes of one object; a larger one is refused before any of it is requested."""
    mirror_bytes: int = 0
    """Bytes of all data that mirrors hold on disk; 0: as much as the disk has."""
    disk_reserve: int = 0
    """Bytes to leave free on the disk of the state directory; nothing more is fetched below it."""


class ObjectFetcher:
    """Fetches objects for all mirrors of a node."""

    def __init__(
        self,
        objects: DiskObjects,
        keeping: DataRetention,
        partial: Path,
        replication: Replication,
        limits: Callable[[], ObjectLimits],
        arriving: UncommittedObjects,
        staging: StagedBlocks,
    ) -> None:
        """``arriving``: the objects on their way, reported to peers that fetch the same."""
        self.arriving = arriving
        self.objects = objects
        self.keeping = keeping
        self._partial = partial
        self._replication = replication
        self._packs = Packs(objects, replication)
        self._pieces = PieceFetcher(objects, partial, replication, self.arriving)
        self._limits = limits
        self.paces = RateLimits()
        self._on_the_way: dict[Multihash, trio.Event] = {}
        self.room = MirrorQuota(
            keeping,
            partial,
            lambda: self.limits.mirror_bytes,
            lambda: [str(each) for each in self._on_the_way],
            staging,
        )
        self._stalled: LRUCache[PeerId, int] = LRUCache(REMEMBERED)
        """How often in a row each peer offered a linked object and gave nothing of it in time."""
        self._turn = 0
        """The position of the peer that is asked first for the next linked object."""

    @property
    def limits(self) -> ObjectLimits:
        return self._limits()

    async def bring(
        self,
        spec: MirrorSpec | None,
        peers: Sequence[PeerId],
        terms: ChainTerms,
        blocks: Sequence[SealedBlock],
        tally: MirrorProgress,
        swarm: SwarmStep | None = None,
    ) -> int:
        """Fetches all objects of blocks after ``terms``; returns their number. Objects received count even if it fails.

        ``spec``: the mirror that holds them; ``None``: the dataset is no mirror yet, so they are not counted for a
        quota. ``swarm``: fetch them together with other mirrors first.

        Raises Remote (peers), Invalid or Refused (an object is not what its block says, or is too large), Environment.
        """
        wanted = [named for block in blocks for named in block.objects]
        tally.slices, tally.slices_wanted = 0, len(wanted)
        tally.bytes, tally.bytes_wanted = 0, sum(size for _, size in wanted)
        missing = await trio.to_thread.run_sync(self._missing, wanted)
        # Before a byte is requested (test_exactly_the_quota_fits_and_a_byte_less_does_not_begin).
        promised = await trio.to_thread.run_sync(self._promise, spec, missing)
        counted, pace = _Counted(self.keeping, self.room, spec, tally), self.paces.of(spec)
        fetching = trio.Semaphore(AT_ONCE)

        async def take(group: Sequence[Bringing]) -> None:
            async with fetching:
                sound = await self._packs.take(peers, group, missing, pace) if len(group) > 1 else set()
            for place, (in_force, block) in enumerate(group):
                come: list[Multihash] = []
                for name, size in objects_of(block):
                    if place not in sound:
                        async with fetching:
                            if await self._have(peers, name, size, pace):
                                come.append(name)
                    await counted.add(name, size, block.sequence_number)
                    tally.slices += 1
                    tally.bytes += size
                if place not in sound:
                    await self._check(peers, in_force, block, come)
                if swarm is not None:
                    swarm.step.note(block.sequence_number)
                await self._bring_links(peers, in_force, block, tally, counted)

        try:
            with span("objects") as seen:
                if swarm is not None and sum(missing.values()) >= LEAST:
                    await self._with_others(swarm, blocks, missing, tally, pace)
                await _several(together(bringing_objects(terms, blocks)), take, AT_ONCE + CHECKED)
                seen.note("odfd.objects", tally.slices)
        finally:
            with trio.CancelScope(shield=True):
                await counted.settle()
            await self._take_back(promised)
        return tally.slices

    async def _with_others(
        self,
        swarm: SwarmStep,
        blocks: Sequence[SealedBlock],
        missing: Mapping[Multihash, int],
        tally: MirrorProgress,
        pace: Pace | None,
    ) -> None:
        """Fetches as many objects as possible from peers that fetch the same; the others stay missing."""

        async def take_large(named: NamedObject) -> None:
            name, size = named
            async with self._alone(name):
                if not await trio.to_thread.run_sync(self.objects.has, name):
                    await self._pieces.fetch(swarm.goal, name, size, tally, pace)

        async def take(peer: PeerId, wanted: Sequence[NamedObject]) -> None:
            small = [name for name, size in wanted if size <= MAX_PACKED and not self.objects.has(name)]
            if small:
                await self._replication.fetch_small([peer], small, SmallObjects(self.objects, small), pace)
            for name, size in wanted:
                if size > MAX_PACKED:
                    async with self._alone(name):
                        if not await trio.to_thread.run_sync(self.objects.has, name):
                            await self._fetch([peer], name, size, pace, PATIENCE)
            tally.ahead += sum(size for _, size in wanted)

        try:
            with sole_faults(), span("swarm"):
                await _several((each for each in missing.items() if each[1] >= LARGE_OBJECT), take_large)
                left = await trio.to_thread.run_sync(self._missing, list(missing.items()))
                if sum(left.values()) >= LEAST:
                    await SwarmFetch(self._replication, swarm, blocks, left, take, self.arriving.counts).run()
        finally:
            tally.ahead = 0

    def _missing(self, wanted: Sequence[NamedObject]) -> dict[Multihash, int]:
        sizes = dict(wanted)
        return {name: sizes[name] for name in self.objects.missing(sizes)}

    async def again(self, peers: Sequence[PeerId], names: Iterable[NamedObject]) -> None:
        """Fetches damaged objects again, replacing them; some may be repaired by now. Raises Remote."""
        for name, size in names:
            async with self._alone(name):
                if await trio.to_thread.run_sync(self._whole, name) is None:
                    await self._fetch(peers, name, size)

    async def linked(self, spec: MirrorSpec | None, peers: Sequence[PeerId], name: Multihash) -> int:
        """Fetches an object that rows link to, unless it is here undamaged;
        returns its size. Raises Remote, Environment.

        Without a ``spec`` it was here before, so its room is still reserved.
        """
        async with self._alone(name):
            size = await trio.to_thread.run_sync(self._whole, name)
            return await self._fetch_linked(spec, peers, name) if size is None else size

    async def _bring_links(
        self, peers: Sequence[PeerId], terms: ChainTerms, block: Block, tally: MirrorProgress, counted: _Counted
    ) -> None:
        event = block.event
        if not terms.links or not isinstance(event, AddData | ExecuteTransform) or event.new_data is None:
            return
        path = await trio.to_thread.run_sync(self.objects.path, event.new_data.physical_hash)

        async def take(name: Multihash) -> None:
            size = await self.linked(counted.spec, peers, name)
            await counted.add(name, size, block.sequence_number)
            tally.slices += 1
            tally.bytes += size
            tally.bytes_wanted += size

        with closing(links_in(path, terms.links)) as names:
            while page := await trio.to_thread.run_sync(_page, names, block):
                tally.slices_wanted += len(page)
                await _several(iter(page), take)

    def _whole(self, name: Multihash) -> int | None:
        """Returns the size of an object if it is here undamaged; deletes a damaged one."""
        if not self.objects.has(name):
            return None
        size = self.objects.size(name)
        if check_object(self.objects, LINKED, name, size):
            self.objects.remove(name)
            return None
        return size

    async def _fetch_linked(self, spec: MirrorSpec | None, peers: Sequence[PeerId], name: Multihash) -> int:
        """Fetches a linked object from one peer, by the size that it states;
        a false size spoils nothing for other peers.

        If a peer offers the object and gives nothing, the next one is tried; it is waited for longer once all have
        answered. An object that is large by a peer's claim is begun only after others had time to answer, smallest
        claim first. So as long as one peer tells the truth, no more false bytes are received than the object has true
        ones.
        """
        self._turn += 1
        turn = self._turn % max(1, len(peers))
        order = sorted([*peers[turn:], *peers[:turn]], key=lambda peer: self._stalled.get(peer, 0))
        seen = _Offers()
        async with offers(self._replication, order, name, seen.reasons) as asking:
            with trio.CancelScope() as others:
                async for offer in asking.found:
                    if offer[1] > WORD:
                        seen.large.append(offer)
                        asking.all_at_once.set()
                        others.deadline = min(others.deadline, trio.current_time() + HASTE)
                        continue
                    others.deadline = math.inf
                    await asking.taking.acquire()
                    if await self._take_offer(spec, name, offer, HASTE, seen):
                        return offer[1]
                    asking.taking.release()
                    if seen.large:
                        others.deadline = trio.current_time() + HASTE
        for patience, waiting in ((HASTE, seen.large), (PATIENCE, seen.stalled)):
            for offer in sorted(waiting, key=lambda each: each[1]):
                if await self._take_offer(spec, name, offer, patience, seen):
                    return offer[1]
        if seen.no_room is not None:
            raise seen.no_room
        reasons = seen.reasons
        text = "; ".join(f"{peer}: {reason}" for peer, reason in list(reasons.items())[:MAX_TOLD])
        raise Remote(
            f"object {name.short}, which a row links to: no peer could give it: {text}",
            rule="no-peer",
            hint="other peers may have it: odfctl peer list, or try again later",
        )

    async def _take_offer(
        self, spec: MirrorSpec | None, name: Multihash, offer: Offer, patience: float, seen: _Offers
    ) -> bool:
        peer, size = offer
        if size > self.limits.object_bytes:
            seen.reasons[peer] = f"it has {size:,} bytes, and limits.object-bytes allows {self.limits.object_bytes:,}"
            return False
        try:
            await self._fetch_promised(spec, peer, name, size, patience)
        except Environment as fault:
            seen.no_room = fault  # by the word of this one: another may say less
            return False
        except Remote as fault:
            seen.reasons[peer] = fault.message
            if fault.rule == STALLED:
                self._stalled[peer] = self._stalled.get(peer, 0) + 1
                seen.stalled.append(offer)
            return False
        self._stalled.pop(peer, None)
        return True

    async def _check(
        self, peers: Sequence[PeerId], terms: ChainTerms, block: Block, come: Collection[Multihash]
    ) -> None:
        """Checks objects against their block; fetches objects again that our own disk has damaged since.

        ``come``: those that came just now, and were hashed as they came. Raises Invalid.
        """
        findings = await trio.to_thread.run_sync(check_event, self.objects, terms, block, come)
        if findings and come:  # is it the block that is wrong, or our own disk?
            findings = await trio.to_thread.run_sync(check_event, self.objects, terms, block)
        if any(found.rule in _SPOILT for found in findings):
            await self.again(peers, objects_of(block))
            findings = await trio.to_thread.run_sync(check_event, self.objects, terms, block)
        for found in findings:
            raise Invalid(found.message, rule=found.rule, place=f"block #{block.sequence_number}")

    async def _fetch_promised(
        self, spec: MirrorSpec | None, peer: PeerId, name: Multihash, size: int, patience: float
    ) -> None:
        """Reserves room for an object and fetches it; releases the room if it does not come."""
        promised = await trio.to_thread.run_sync(self._promise, spec, {name: size})
        try:
            await self._fetch([peer], name, size, self.paces.of(spec), patience)
        except BaseException:
            await self._take_back(promised)
            raise

    async def _take_back(self, promised: Sequence[Multihash]) -> None:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self.room.take_back, promised)

    def _promise(self, spec: MirrorSpec | None, missing: Mapping[Multihash, int]) -> list[Multihash]:
        """Reserves room for missing objects by their sizes, before any is requested; returns the reserved names.

        Raises Refused if an object is too large, Environment if the disk is full or a quota is reached.
        """
        limits = self.limits
        for name, size in missing.items():
            if size > limits.object_bytes:
                raise Refused(
                    f"object {name.short} has {size:,} bytes",
                    rule="object-bytes",
                    hint=f"limits.object-bytes of the settings allows {limits.object_bytes:,}",
                )
        if missing:
            self._check_disk(missing)
        if spec is None:
            return []
        self.room.promise(spec, dict(missing))
        return list(missing)

    def _check_disk(self, missing: Mapping[Multihash, int]) -> None:
        """Checks that the disk has room for these beside what is reserved already. Raises Environment."""
        needed = self.room.to_come(missing)
        check_room(self._partial, self.limits.disk_reserve, needed, f"{needed:,} bytes are missing")

    async def _have(self, peers: Sequence[PeerId], name: Multihash, size: int, pace: Pace | None) -> bool:
        """Fetches an object unless it is here; returns whether it came now."""
        async with self._alone(name):
            if await trio.to_thread.run_sync(self.objects.has, name):
                return False
            await self._fetch(peers, name, size, pace)
            return True

    @asynccontextmanager
    async def _alone(self, name: Multihash) -> AsyncIterator[None]:
        """Lets one task at a time fetch an object; two mirrors may want the same, and would write one partial file."""
        while (fetching := self._on_the_way.get(name)) is not None:
            await fetching.wait()
        self._on_the_way[name] = here = trio.Event()
        try:
            yield
        finally:
            del self._on_the_way[name]
            here.set()

    async def _fetch(
        self, peers: Sequence[PeerId], name: Multihash, size: int, pace: Pace | None = None, patience: float = math.inf
    ) -> None:
        """Fetches one object. ``patience``: seconds in which some of it must come. Raises Remote."""
        sink = await trio.to_thread.run_sync(PartialObject, self._partial, self.objects, name)
        try:
            # What is here came by a larger size that another peer stated.
            if sink.received > size:
                await trio.to_thread.run_sync(sink.abandon)
            with sole_faults():
                async with trio.open_nursery() as nursery:
                    if patience < math.inf:
                        nursery.start_soon(_watch, sink, size, patience)
                    await self._replication.fetch_object(peers, name, size, sink, pace)
                    nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(sink.close)


class _Offers:
    """The offers of peers for one linked object."""

    def __init__(self) -> None:
        self.reasons: dict[PeerId, str] = {}
        """The reason of each peer that could not give it."""
        self.large: list[Offer] = []
        self.stalled: list[Offer] = []
        self.no_room: Environment | None = None


class _Counted:
    """Counts the objects that came for a dataset, in pages."""

    def __init__(
        self, keeping: DataRetention, room: MirrorQuota, spec: MirrorSpec | None, tally: MirrorProgress
    ) -> None:
        self._keeping = keeping
        self._room = room
        self._tally = tally
        self.spec = spec
        self._waiting: list[tuple[Multihash, int, int]] = []

    async def add(self, name: Multihash, size: int, number: int) -> None:
        """Adds an object that the block of this number names or links to."""
        self._waiting.append((name, size, number))
        self._tally.slices_uncounted = len(self._waiting)
        if len(self._waiting) >= PAGE:
            await self.settle()

    async def settle(self) -> None:
        page, self._waiting = self._waiting, []
        if page and self.spec is not None:
            await trio.to_thread.run_sync(self._note, self.spec.id, page)
        self._tally.slices_uncounted = len(self._waiting)

    def _note(self, dataset: DatasetId, page: Sequence[tuple[Multihash, int, int]]) -> None:
        self._keeping.note(dataset, page)
        self._room.take_back(name for name, _, _ in page)


async def _several(waiting: Iterator[Item], take: Callable[[Item], Awaitable[None]], at_once: int = AT_ONCE) -> None:
    """Calls ``take`` for each item, ``at_once`` at a time. Raises only the first fault."""

    async def work() -> None:
        for item in waiting:
            await take(item)

    with sole_faults():
        async with trio.open_nursery() as nursery:
            for _ in range(at_once):
                nursery.start_soon(work)


async def _watch(sink: PartialObject, size: int, patience: float) -> None:
    received = -1
    # Once all of it came, it is being checked, and no peer is late.
    while received < sink.received or received >= size:
        received = sink.received
        await trio.sleep(patience)
    raise Remote(f"gave nothing of it in {patience:g} s", rule=STALLED)


def _page(names: Iterator[Multihash], block: Block) -> list[Multihash]:
    try:
        return list(islice(names, PAGE))
    except Invalid as fault:
        raise Invalid(fault.message, rule=fault.rule, place=f"block #{block.sequence_number}") from fault
