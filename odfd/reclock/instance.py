"""Runs one of several instances that ingest one source into the shards of a collection at a commit point.

Each instance does the same, and knows of no other. It takes the first binding of the reclocking chain that the shards
lack, computes its transaction from the captured bytes and the shards before it, and proposes it to all shards; who is
not the first finds its own bytes there. Without such a binding it fetches, stores the bytes and proposes a binding at
the next time; if another one was first, its own is forgotten. Blocks are a function of the bindings, so neither the
number of instances, their clocks nor their deaths change any byte. Spec: docs/spec/collections.md#reclocking.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import trio

from chain.errors import Conflict, Refused
from chain.ids import DatasetId
from chain.instant import Instant, from_millis, to_millis
from chain.model.events import SetPollingSource
from chain.multihash import Multihash
from chain.state import ChainState, load_state
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
from odfd.datasets.captures import Capture
from odfd.datasets.commit import block_time, check_jump
from odfd.ingest.capturing import captured
from odfd.ingest.consumed_files import ConsumedFileIndex
from odfd.ingest.decoding import decoded
from odfd.ingest.driver import IngestDependencies, check_unchanged, fetched, names_of
from odfd.ingest.fetch.base import Fetched, Unchanged
from odfd.ingest.fetch.files import left_alone
from odfd.ingest.file_writer import staged_folder
from odfd.ingest.plan import Batch, polling
from odfd.ingest.settlement import IngestOutcome, Settled
from odfd.ingest.sharded_writes import divided
from odfd.ingest.slices import SliceIndex
from odfd.ingest.trigger import TriggerTime, is_uncacheable
from odfd.reclock.bindings import FOUNDING, Division, bound, capture_of, layout_of
from odfd.reclock.shared_chains import SharedChains
from odfd.runtime.tasks import outside
from odfd.trust.signing.owner_commit import author_blocks


class InstanceCounts(msgspec.Struct, kw_only=True):
    """Counts the work of one instance."""

    bound: int = 0
    """Bindings of its own that were accepted."""
    forgotten: int = 0
    """Bindings of its own that came after another one."""
    written: int = 0
    """Transactions that it was the first to write."""
    repeated: int = 0
    """Transactions that were there already, with the same content."""


class Instance:
    """One instance of the ingest of one collection."""

    def __init__(
        self,
        deps: IngestDependencies,
        place: SharedChains,
        chain: DatasetId,
        source: SetPollingSource,
        ahead: Callable[[Instant | None], int] = lambda _: 0,
    ) -> None:
        """``chain``: the reclocking chain. ``source``: the only source that is read, whatever the chains declare.

        ``ahead``: how far the clock was set ahead, from ``JumpWatch``. Reads the shards that the chain names.
        Raises Invalid if it is no reclocking chain, Remote.
        """
        self._place, self._chain, self._source, self._ahead = place, chain, source, ahead
        place.read([chain])
        self._layout = layout_of(load_state(place.chains.chain(chain)).set_info, chain.short)
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
        self.counts = InstanceCounts()

    @property
    def layout(self) -> Division:
        return self._layout

    async def run(self, most: int | None = None) -> InstanceCounts:
        """Takes in what is new, up to ``most`` steps; for ``None`` all. Returns the counts so far.

        Raises Conflict for a collection where two instances disagree, and what fetching and decoding raise.
        """
        steps = 0
        while (most is None or steps < most) and await self.step():
            steps += 1
        return self.counts

    async def step(self) -> bool:
        """Writes one transaction, or proposes one binding; false if there is nothing new."""
        reading = await trio.to_thread.run_sync(self._place.read, [self._chain, *self._layout.shards])
        await trio.to_thread.run_sync(self._check_source)
        least = min(reading.views[each].shard.upper for each in self._layout.shards)
        time = reading.views[self._chain].next_time(least)
        if time is None:
            return await self._bind()
        await self._write(reading, time)
        return True

    def _check_source(self) -> None:
        """Raises Refused if the shards declare another source, which whoever writes there could choose."""
        state = load_state(self._place.chains.chain(self._layout.shards[0]))
        if state.polling_source != self._source:
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
        capture = await trio.to_thread.run_sync(self._captured, reading.views[self._chain], time)
        _, settled = await decoded(self._deps, self._layout.shards[0], capture, time)
        proposals = await trio.to_thread.run_sync(self._proposals, settled, capture, time)
        outcomes = await trio.to_thread.run_sync(self._point.append, proposals)
        _check(outcomes, time)
        if all(isinstance(each, STANDS) for each in outcomes):
            is_first = any(isinstance(each, Committed) for each in outcomes)
            self.counts.written += is_first
            self.counts.repeated += not is_first

    def _captured(self, view: View, time: int) -> Capture:
        """Returns the binding of a time, and brings its bytes here."""
        capture = capture_of(self._place.objects, view.transaction(time))
        for file in capture.files:
            self._place.fetch_object(self._chain, file.object, file.size)
        return capture

    def _proposals(self, settled: Settled, capture: Capture, time: int) -> list[Proposal]:
        """Builds the part of each shard; one for which nothing changes only moves its frontier."""
        states = [load_state(self._place.chains.chain(each)) for each in self._layout.shards]
        events, objects = (settled.events, settled.objects) if isinstance(settled, IngestOutcome) else ((), ())
        parts = [(tuple(events), tuple(objects))]
        if len(states) > 1:
            parts = divided(self._place.objects, states, self._layout.place_of(capture), events)
        proposals = []
        for shard, state, (own, names) in zip(self._layout.shards, states, parts, strict=True):
            blocks = author_blocks(state, own, from_millis(time))
            self._place.put_objects(shard, names)
            proposals.append(Proposal(dataset=shard, blocks=blocks, new_upper=time + 1, follows=self._chain))
        return proposals

    async def _bind(self) -> bool:
        """Fetches, and proposes to bind what came; whatever the answer, the chain tells what to do next."""
        state = await trio.to_thread.run_sync(load_state, self._place.chains.chain(self._layout.shards[0]))
        polled, _ = polling(state)
        bindings = await trio.to_thread.run_sync(load_state, self._place.chains.chain(self._chain))
        if bindings.size > FOUNDING and is_uncacheable(polled, state.source_state, self._deps.trigger):
            return False
        async with staged_folder(self._deps.settings.staging) as folder:
            async with outside("its source"):
                found = await fetched(self._deps, self._layout.shards[0], polled, state, folder)
                if isinstance(found, Unchanged):
                    return False
                if not await left_alone(found.local, self._deps.settings, self._deps.now):
                    return False
            batch = _batch(found, fills=getattr(polled.fetch, "event_time", None) is not None)
            capture = await trio.to_thread.run_sync(captured, self._place.objects, batch, "")
            await check_unchanged(batch)
        return await trio.to_thread.run_sync(self._propose, capture, bindings)

    def _propose(self, capture: Capture, state: ChainState) -> bool:
        """Proposes a binding; false if it is the last one again."""
        if state.size > FOUNDING:
            last = self._place.chains.chain(self._chain).block_at(state.sequence_number)
            if capture_of(self._place.objects, [last]) == capture:
                return False
        now = self._deps.now()
        check_jump(self._ahead(state.system_time), now)
        time = block_time(state, now, self._place.chains.upper(self._chain))
        event = bound(self._place.objects, state, capture, time)
        assert event.new_data is not None
        files = [file.object for file in capture.files]
        self._place.put_objects(self._chain, [*files, event.new_data.physical_hash])
        proposal = Proposal(
            dataset=self._chain,
            blocks=author_blocks(state, [event], time),
            new_upper=to_millis(time) + 1,
            objects=files,
        )
        (outcome,) = self._point.append([proposal])
        if isinstance(outcome, ShardSealed):
            raise _sealed(self._chain)
        self.counts.bound += isinstance(outcome, Committed)
        self.counts.forgotten += not isinstance(outcome, Committed)
        return True


def _batch(found: Fetched, *, fills: bool) -> Batch:
    """Returns the bytes as they came, which each instance prepares when it decodes them."""
    return Batch(
        paths=(found.path, *found.more),
        names=names_of(found),
        identity=found.identity,
        event_time=found.event_time,
        state=found.state,
        fills_event_time=found.event_time is not None and fills,
        local=found.local,
        decoded=found.decoded,
    )


def _check(outcomes: Sequence[Outcome], time: int) -> None:
    """Raises Conflict if a shard has another transaction of this time, Refused if one is sealed."""
    for each in outcomes:
        if isinstance(each, Conflicting):
            stored, proposed = (_named(names) for names in (each.stored, each.proposed))
            raise Conflict(
                f"at {time} the collection has the blocks {stored}, and this instance computed {proposed}",
                rule="reclock-conflict",
                hint="instances of different versions disagree; nothing was written. Let one version ingest",
            )
        if isinstance(each, ShardSealed):
            raise _sealed(None)


def _named(blocks: Sequence[Multihash]) -> str:
    return ", ".join(each.short for each in blocks) or "none"


def _sealed(chain: DatasetId | None) -> Refused:
    named = "a shard" if chain is None else chain.short
    return Refused(f"{named} is sealed: it takes no block more", rule="shard-sealed")
