"""Runs one of several instances that ingest one source into the shards of a collection at a commit point.

Each instance does the same, and knows of no other. It takes the first binding of the reclocking chain that the shards
lack, computes its transaction from the captured bytes and the shards before it, and proposes it to all shards; who is
not the first finds its own bytes there. Without such a binding it fetches, stores the bytes and proposes a binding at
the next time; if another one was first, its own is forgotten. Who came second stands by while others go on
(``standby``). Blocks are a function of the bindings, so neither the number of instances, their clocks nor their deaths
change any byte. Spec: docs/spec/collections.md#reclocking.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

import trio

from chain.errors import Conflict, Refused
from chain.ids import DatasetId
from chain.instant import Instant, from_millis, to_millis
from chain.model.defaults import same
from chain.model.events import MetadataEvent, SetPollingSource, SourceState
from chain.multihash import Multihash
from chain.state import ChainState
from chain.store.objects import staged_in
from chain.store.shards import (
    STANDS,
    CommitPoint,
    Committed,
    Conflicting,
    Outcome,
    Proposal,
    Reading,
    ShardSealed,
    View,
)
from engines.contract import SkippedFile
from odfd.datasets.captures import Capture, CapturedFile
from odfd.datasets.commit import block_time, check_jump
from odfd.ingest.brokers.job import FORGOT, REWROTE
from odfd.ingest.capture_bindings import FOUNDING, Binding, Division, binding_of, bound, layout_of
from odfd.ingest.consumed_files import ConsumedFileIndex
from odfd.ingest.decoding import decoded
from odfd.ingest.driver import IngestDependencies
from odfd.ingest.file_writer import staged_folder
from odfd.ingest.gaps import (
    GAP_CHANGED,
    AcceptedGap,
    SourceGap,
    accepted,
    accepted_before,
    check_name,
    position_before,
)
from odfd.ingest.plan import Batch, polling
from odfd.ingest.raw_capture import captured
from odfd.ingest.settlement import IngestOutcome, Settled
from odfd.ingest.sharded_writes import divided
from odfd.ingest.slices import SliceIndex
from odfd.ingest.trigger import TriggerTime, is_uncacheable
from odfd.reclock.addresses import Addresses, KeptFiles, Offer, addresses_of
from odfd.reclock.creation import Declared, declared_in
from odfd.reclock.outcomes import InstanceCounts, check_outcomes, sealed
from odfd.reclock.pushes import Pushes, PushIndex
from odfd.reclock.shared_chains import SharedChains
from odfd.reclock.standby import Standby
from odfd.runtime.tasks import outside
from odfd.trust.signing.owner_commit import author_blocks

_Part: TypeAlias = tuple[tuple[MetadataEvent, ...], tuple[Multihash, ...]]
"""A shard's events of one transaction, and the slices that they name."""


class _Prepared(NamedTuple):
    """A transaction that was computed before its binding was proposed."""

    binding: Binding
    time: int
    heads: tuple[Multihash | None, ...]
    parts: Sequence[_Part]


class _Lost(NamedTuple):
    """What a source let go of, after which state, and the time of the binding that is lost with it, if any."""

    gap: SourceGap | None
    before: SourceState | None
    cancels: int | None


class Instance:
    """One instance of the ingest of one collection."""

    def __init__(
        self,
        deps: IngestDependencies,
        place: SharedChains,
        chain: DatasetId,
        source: Declared,
        ahead: Callable[[Instant | None], int] = lambda _: 0,
        addresses: Callable[..., Addresses] = addresses_of,
    ) -> None:
        """``chain``: the reclocking chain. ``source``: the only source that is read, whatever the chains declare, or
        the push sources, through which clients push.

        ``ahead``: how far the clock was set ahead, from ``JumpWatch``. ``addresses`` reads the source. Reads the shards
        that the chain names. Raises Invalid if it is no reclocking chain, Remote.
        """
        self._place, self._chain, self._source, self._ahead = place, chain, source, ahead
        place.read([chain])
        self._layout = layout_of(place.state(chain).set_info, chain.short)
        self._point = CommitPoint(place)
        self._deps = replace(
            deps,
            store=place.chains,
            objects=place.objects,
            index=SliceIndex(),
            taken=ConsumedFileIndex(),
            quarantines=None,
            given=None,
            trigger=deps.trigger or TriggerTime.of(deps.now()),
            is_captured=lambda _: False,
            shards=lambda dataset: self._layout.shards if dataset == self._layout.shards[0] else (dataset,),
        )
        first, one_part = self._layout.shards[0], self._layout.by_part
        self._pushes = PushIndex(place.database, place.chains, chain)
        self._addresses: Addresses = Pushes(self._pushes)
        if isinstance(source, SetPollingSource):
            self._addresses = addresses(self._deps, first, source, one_part=one_part)
        self._bytes: set[Multihash] = set()
        """Bytes of ranges that are here until their transaction is written."""
        self._prepared: _Prepared | None = None
        self._standby = Standby()
        self.counts = InstanceCounts()

    @property
    def layout(self) -> Division:
        return self._layout

    @property
    def skipped(self) -> tuple[SkippedFile, ...]:
        """Files that the source has and no fetch will take, and what it lost."""
        return self._addresses.skipped if isinstance(self._addresses, KeptFiles) else ()

    async def run(self, most: int | None = None, jitter: Callable[[], float] = lambda: 0.0) -> InstanceCounts:
        """Takes in what is new, in up to ``most`` turns; for ``None`` all. Returns the counts so far.

        While another instance does so it stands by. ``jitter`` gives a number from 0 to 1. Raises Conflict for a
        collection where two instances disagree, and what fetching and decoding raise.
        """
        turns = 0
        while (most is None or turns < most) and (seconds := await self.turn(jitter())) is not None:
            turns += 1
            await trio.sleep(seconds)
        return self.counts

    async def turn(self, chance: float) -> float | None:
        """Takes a step, or stands by. Returns the seconds until the next turn; ``None`` if there is nothing new."""
        if self._standby.is_on:
            seen = await trio.to_thread.run_sync(self._place.shards, [self._chain, *self._layout.shards])
            if (seconds := self._standby.pause(seen, chance)) is not None:
                self.counts.paused += 1
                return seconds
        began, first, second = trio.current_time(), self.counts.first, self.counts.second
        if not await self.step():
            return None
        if self.counts.second > second:
            self._standby.came_second(trio.current_time() - began)
        elif self.counts.first > first:
            self._standby.came_first()
        return 0.0

    async def step(self) -> bool:
        """Writes one transaction, or proposes one binding; false if there is nothing new."""
        reading = await self.look()
        time = reading.views[self._chain].next_time(self.least_upper(reading))
        if time is None:
            return isinstance(self._source, SetPollingSource) and await self._bind()
        await self._write(reading, time)
        return True

    async def look(self) -> Reading:
        """Reads the commit point, and checks the source that the shards declare. Raises Refused, Remote, Conflict."""
        reading = await trio.to_thread.run_sync(self._place.read, [self._chain, *self._layout.shards])
        await trio.to_thread.run_sync(self._check_source)
        return reading

    def least_upper(self, reading: Reading) -> int:
        """Returns the time before which all shards are complete."""
        return min(reading.views[each].shard.upper for each in self._layout.shards)

    def state(self) -> ChainState:
        """Returns the state of the first shard, as it was read last. Blocking."""
        return self._place.state(self._layout.shards[0])

    def captured(self, batch: Batch, source: str) -> Capture:
        """Stores the bytes of a push here. ``source``: the name of the push source. Blocking."""
        return captured(self._place.objects, batch, source)

    def bound_push(self, push_id: str) -> tuple[int, Binding] | None:
        """Returns the time and the binding of a push in the chain as it was read last. Blocking."""
        for number in self._pushes.of(push_id):
            block = self._place.chains.chain(self._chain).block_at(number)
            return to_millis(block.system_time), binding_of(self._place.objects, [block])
        return None

    def lacks(self, reading: Reading) -> bool:
        """Whether the shards lack a transaction that is bound."""
        return reading.views[self._chain].next_time(self.least_upper(reading)) is not None

    async def bind(self, binding: Binding) -> None:
        """Proposes to bind a push after the chains as they were read last, which lack nothing. Raises as decoding."""
        bindings = await trio.to_thread.run_sync(self._place.state, self._chain)
        await self._propose(binding, bindings)

    def _check_source(self) -> None:
        """Raises Refused if the shards declare another source, which whoever writes there could choose."""
        state = self._place.state(self._layout.shards[0])
        if not same(declared_in(state), self._source):
            raise Refused(
                f"the shards of {self._chain.short} declare another source than this node's dataset",
                rule="reclock-source",
                hint="a node reads only a source that it declares itself: apply the same manifest here",
            )

    async def _write(self, reading: Reading, time: int) -> None:
        """Computes the transaction that is bound to a time, and proposes it to all shards."""
        if any(reading.views[each].shard.upper > time for each in self._layout.shards):
            raise Conflict(
                f"some shards of {self._chain.short} have the transaction of {time}, and others lack it",
                rule="reclock-parted",
                hint="they are written together, so something else wrote to one of them",
            )
        binding = await trio.to_thread.run_sync(self._bound, reading.views[self._chain], time)
        follows: DatasetId | None = self._chain
        parts: Sequence[_Part] = [((), ())] * len(self._layout.shards)
        if await trio.to_thread.run_sync(self._is_cancelled, reading, time):
            follows = None  # its time is passed over, which no shard does that follows the chain
        elif await self._brought(binding):
            parts = await self._computed(binding, time)
        else:
            self.counts.overtaken += 1
            return
        proposals = await trio.to_thread.run_sync(self._proposals, parts, time, follows)
        outcomes = await trio.to_thread.run_sync(self._point.append, proposals)
        if any(isinstance(each, Conflicting) for each in outcomes):
            again = await self.look()
            if await trio.to_thread.run_sync(self._is_cancelled, again, time):
                return
        check_outcomes(outcomes, time)
        if all(isinstance(each, STANDS) for each in outcomes):
            is_first = any(isinstance(each, Committed) for each in outcomes)
            self.counts.written += is_first
            self.counts.repeated += not is_first
            await trio.to_thread.run_sync(self._let_go)

    def _is_cancelled(self, reading: Reading, time: int) -> bool:
        """Whether a gap that was accepted cancels the binding of a time, whose bytes were gone."""
        view = reading.views[self._chain]
        later = view.next_time(time + 1)
        return later is not None and binding_of(self._place.objects, view.transaction(later)).cancels == time

    async def gap(self) -> SourceGap | None:
        """Returns what the source let go of before it was written; ``None``: nothing. Writes what is bound and there.

        Raises as ``step``.
        """
        return (await self._lost()).gap

    async def accept_gap(self, name: str) -> AcceptedGap:
        """Binds the gap of this name, and goes on after it in all shards, in one commit. Repeated, it is the same.

        Raises Refused if nothing is forgotten, or something else; and as ``step``.
        """
        lost = await self._lost()
        bindings = await trio.to_thread.run_sync(self._place.state, self._chain)
        before = await trio.to_thread.run_sync(accepted_before, self._place.chains.chain(self._chain), name)
        if before is not None:
            return before
        gap = check_name(lost.gap, name)
        now = self._deps.now()
        check_jump(self._ahead(bindings.system_time), now)
        time = block_time(bindings, now, self._place.chains.upper(self._chain))
        block = await trio.to_thread.run_sync(self._accepted, gap, lost, bindings, time)
        return AcceptedGap(gap, to_millis(time), block)

    def _accepted(self, gap: SourceGap, lost: _Lost, bindings: ChainState, time: Instant) -> Multihash:
        """Commits a gap. Returns its block in the reclocking chain. Raises Refused if the collection went on."""
        capture = Capture(files=(), label=gap.state_after(lost.before))
        binding = Binding(capture=capture, ranges=gap.ranges, kept=False, cancels=lost.cancels)
        event = bound(self._place.objects, bindings, binding, time)
        assert event.new_data is not None
        self._place.put_objects(self._chain, [event.new_data.physical_hash])
        blocks, end = author_blocks(bindings, [event], time), to_millis(time) + 1
        states = self._states()
        parts = self._divided(accepted(states[0], gap, capture.label), binding, states)
        proposals = self._proposals(parts, to_millis(time), None)
        outcomes = self._point.append([Proposal(dataset=self._chain, blocks=blocks, new_upper=end), *proposals])
        if not all(isinstance(each, STANDS) for each in outcomes):
            raise Refused(
                f"{self._chain.short} went on while the gap {gap.name} was accepted, and nothing was written",
                rule=GAP_CHANGED,
                hint="odfctl gap show says whether anything is lost now",
            )
        self.counts.accepted += 1
        return blocks[-1].hash

    async def _lost(self) -> _Lost:
        """Returns what is lost, after what is bound and there was written."""
        while True:
            reading = await self.look()
            view = reading.views[self._chain]
            time = view.next_time(self.least_upper(reading))
            binding = None if time is None else await trio.to_thread.run_sync(self._bound, view, time)
            state = await trio.to_thread.run_sync(self.state)
            before = position_before(state.source_state, binding.ranges if binding is not None else ())
            async with staged_folder(self._deps.settings.staging) as folder, outside("its source"):
                found = await self._addresses.forgotten(state, before, folder)
            gap = SourceGap(ranges=tuple(found)) if found else None
            if time is None or binding is None:
                return _Lost(gap, before, None)
            if gap is not None and await trio.to_thread.run_sync(self._is_lost, binding, gap):
                return _Lost(gap, before, time)
            await self._write(reading, time)

    def _is_lost(self, binding: Binding, gap: SourceGap) -> bool:
        """Whether bytes of a binding are in a gap, and neither kept nor here."""
        if binding.kept or self._has_all(binding.capture.files):
            return False
        ends = {each.part: each.end for each in gap.ranges}
        return any(each.start < ends.get(each.part, 0) for each in binding.ranges)

    def _bound(self, view: View, time: int) -> Binding:
        """Returns the binding of a time, and brings the bytes here that lie beside the chain."""
        binding = binding_of(self._place.objects, view.transaction(time))
        state = self._place.state(self._layout.shards[0])
        self._addresses.check_follows(state.source_state, binding.capture.label, binding.ranges)
        if binding.kept:
            for file in binding.capture.files:
                self._place.fetch_object(self._chain, file.object, file.size)
        return binding

    async def _brought(self, binding: Binding) -> bool:
        """Brings the bytes of bound ranges here again; false if another instance has written them meanwhile.

        Raises Refused by FORGOT for a source that let go of them, and by REWROTE for one that has other bytes there.
        """
        files = binding.capture.files
        if binding.kept or await trio.to_thread.run_sync(self._has_all, files):
            return True
        state = await trio.to_thread.run_sync(self._place.state, self._layout.shards[0])
        async with staged_folder(self._deps.settings.staging) as folder:
            try:
                async with outside("its source"):
                    paths = await self._addresses.again(state, binding.ranges, folder)
                await trio.to_thread.run_sync(self._take, binding, paths)
            except Refused as error:
                if error.rule in {FORGOT, REWROTE} and await self._is_written(state):
                    return False
                raise
        return True

    def _has_all(self, files: Sequence[CapturedFile]) -> bool:
        return all(self._place.objects.has(each.object) for each in files)

    def _take(self, binding: Binding, paths: Sequence[Path | None]) -> None:
        """Stores bytes that were read again. Raises Refused by REWROTE if they are not those that were bound."""
        for file, found, path in zip(binding.capture.files, binding.ranges, paths, strict=True):
            if path is None or not _is_bound(path, file):
                raise Refused(
                    f"addresses {found.start} to {found.end - 1} of {found.part} have other bytes than were bound",
                    rule=REWROTE,
                    hint="the source was rewritten, as by compaction: begin another collection, with --keep-raw",
                )
            with staged_in(self._place.objects) as staged:
                shutil.copyfile(path, staged)
                self._bytes.add(self._place.objects.add_file(staged))

    async def _is_written(self, state: ChainState) -> bool:
        """Whether the shards have gone on since ``state``, as by an instance that has read the bytes before."""
        await trio.to_thread.run_sync(self._place.read, [self._chain, *self._layout.shards])
        now = await trio.to_thread.run_sync(self._place.state, self._layout.shards[0])
        return now.head != state.head

    def _let_go(self) -> None:
        """Frees bytes of ranges whose transaction is written: the source has them."""
        names, self._bytes = tuple(self._bytes), set()
        self._place.objects.remove_all(names)

    async def _computed(self, binding: Binding, time: int) -> Sequence[_Part]:
        """Computes what a binding is in each shard after all that they have. A repetition is remembered."""
        states = await trio.to_thread.run_sync(self._states)
        prepared = _Prepared(binding, time, tuple(each.head for each in states), ())
        if self._prepared is not None and self._prepared._replace(parts=()) == prepared:
            return self._prepared.parts
        settled: Settled
        if binding.is_gap:
            settled = accepted(states[0], SourceGap(ranges=binding.ranges), binding.capture.label)
        else:
            _, settled = await decoded(self._deps, self._layout.shards[0], binding.capture, time)
        parts = await trio.to_thread.run_sync(self._divided, settled, binding, states)
        self._prepared = prepared._replace(parts=parts)
        return parts

    def _states(self) -> list[ChainState]:
        return [self._place.state(each) for each in self._layout.shards]

    def _divided(self, settled: Settled, binding: Binding, states: Sequence[ChainState]) -> Sequence[_Part]:
        events, objects = (settled.events, settled.objects) if isinstance(settled, IngestOutcome) else ((), ())
        if len(states) == 1:
            return [(tuple(events), tuple(objects))]
        return divided(self._place.objects, states, self._layout.place_of(binding), events)

    def _proposals(self, parts: Sequence[_Part], time: int, follows: DatasetId | None) -> list[Proposal]:
        """Builds the part of each shard; one for which nothing changes only moves its frontier.

        ``follows``: the chain whose bindings each shard writes all of, unless one is cancelled.
        """
        proposals = []
        for shard, state, (own, names) in zip(self._layout.shards, self._states(), parts, strict=True):
            blocks = author_blocks(state, own, from_millis(time))
            self._place.put_objects(shard, names)
            proposals.append(Proposal(dataset=shard, blocks=blocks, new_upper=time + 1, follows=follows))
        return proposals

    async def _bind(self) -> bool:
        """Fetches, and proposes to bind what came; whatever the answer, the chain tells what to do next."""
        state = await trio.to_thread.run_sync(self._place.state, self._layout.shards[0])
        polled, _ = polling(state)
        bindings = await trio.to_thread.run_sync(self._place.state, self._chain)
        if bindings.size > FOUNDING and is_uncacheable(polled, state.source_state, self._deps.trigger):
            return False
        last = await trio.to_thread.run_sync(self._last, bindings)
        async with staged_folder(self._deps.settings.staging) as folder:
            async with outside("its source"):
                offer = await self._addresses.offered(state, last.part if last is not None else None, folder)
            if offer is None:
                return False
            binding = await trio.to_thread.run_sync(self._stored, offer)
            await self._addresses.check(offer)
        if binding == last:
            return False
        await self._propose(binding, bindings)
        return True

    def _last(self, state: ChainState) -> Binding | None:
        """Returns the last binding of the chain in ``state``."""
        if state.size <= FOUNDING:
            return None
        return binding_of(self._place.objects, [self._place.chains.chain(self._chain).block_at(state.sequence_number)])

    def _stored(self, offer: Offer) -> Binding:
        """Stores the offered bytes here, and returns what would bind them."""
        capture = captured(self._place.objects, offer.batch, "")
        binding = Binding(capture=capture, ranges=offer.ranges, kept=offer.kept or self._layout.keep_raw)
        if not binding.kept:
            self._bytes.update(file.object for file in capture.files)
        return binding

    async def _propose(self, binding: Binding, state: ChainState) -> None:
        """Proposes a binding; whatever the answer, the chain tells what to do next.

        The transaction is computed first, so that nothing is bound which nobody could write.
        """
        now = self._deps.now()
        check_jump(self._ahead(state.system_time), now)
        time = block_time(state, now, self._place.chains.upper(self._chain))
        await self._computed(binding, to_millis(time))
        outcome = await trio.to_thread.run_sync(self._proposed, binding, state, time)
        self.counts.bound += isinstance(outcome, Committed)
        self.counts.forgotten += not isinstance(outcome, Committed)

    def _proposed(self, binding: Binding, state: ChainState, time: Instant) -> Outcome:
        event = bound(self._place.objects, state, binding, time)
        assert event.new_data is not None
        files = [file.object for file in binding.capture.files] if binding.kept else []
        self._place.put_objects(self._chain, [*files, event.new_data.physical_hash])
        proposal = Proposal(
            dataset=self._chain,
            blocks=author_blocks(state, [event], time),
            new_upper=to_millis(time) + 1,
            objects=files,
        )
        (outcome,) = self._point.append([proposal])
        if isinstance(outcome, ShardSealed):
            raise sealed(self._chain)
        return outcome


def _is_bound(path: Path, file: CapturedFile) -> bool:
    with path.open("rb") as found:
        return Multihash.sha3_256_of(found) == file.object
