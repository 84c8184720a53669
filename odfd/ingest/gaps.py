"""Names the messages that a source let go of before they were taken, and commits the block that goes on without them.

A gap is accepted by a person alone, by its name, a hash of what is lost: so nobody accepts more than was shown.
The block has no rows. Its source state is where the source goes on, and ``extra["odfd/gap"]`` says what is missing, so
whoever has the chain sees it. Capturing and binding have it as bytes of no file. Spec: docs/spec/collections.md#gaps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec
import trio

from chain.errors import Conflict, Refused
from chain.ids import DatasetId
from chain.instant import to_millis
from chain.model.events import AddData, SourceState
from chain.multihash import Multihash
from chain.state import ChainState
from chain.store.base import ChainReader, UpperMove
from engines.contract import RowCounts
from odfd.datasets.commit import Commit, CommitPart, block_time
from odfd.ingest.driver import ATTEMPTS, IngestDependencies, fetch_job, load
from odfd.ingest.fetch.dispatch import polled_source
from odfd.ingest.fetch.source import AddressRange
from odfd.ingest.file_writer import staged_folder
from odfd.ingest.plan import polling
from odfd.ingest.settlement import IngestOutcome
from odfd.runtime.tasks import outside
from odfd.store.captures import Capture
from odfd.store.row_counts import NOTHING_READ

EXTRA: Final = "odfd/gap"
"""The attribute of a block that goes on without messages which the source let go of."""
GAP_NONE: Final = "gap-none"
GAP_CHANGED: Final = "gap-changed"
LOOKED_BACK: Final = 1_000
"""Most data blocks, from the newest, among which a gap that was accepted is found again."""


class _Lost(msgspec.Struct, frozen=True):
    part: str
    start: int = msgspec.field(name="from")
    end: int = msgspec.field(name="to")


class SourceGap(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of a source that are gone before they were taken, by partition."""

    ranges: tuple[AddressRange, ...]

    @property
    def name(self) -> str:
        """A hash of what is lost."""
        said = "\n".join(f"{range_.part}:{range_.start}-{range_.end}" for range_ in self.ranges)
        return hashlib.sha3_256(said.encode()).hexdigest()[:16]

    @property
    def count(self) -> int:
        """The number of addresses, which is at least that of the messages: some may never have had any."""
        return sum(range_.end - range_.start for range_ in self.ranges)

    def as_attribute(self) -> Mapping[str, Any]:
        """Returns what the block says of it."""
        lost = [{"part": range_.part, "from": range_.start, "to": range_.end} for range_ in self.ranges]
        return {"gap": self.name, "lost": lost}


class AcceptedGap(NamedTuple):
    """A gap that was accepted, with the time (ms) and the block by which the source goes on."""

    gap: SourceGap
    time: int
    block: Multihash


def gap_between(state: ChainState, after: SourceState | None) -> SourceGap:
    """Returns the gap over which a source state goes on. Raises Refused if there is none between two positions."""
    before, polled = state.source_state, state.polling_source
    lost = None
    if before is not None and after is not None and polled is not None:
        lost = polled_source(polled).addresses_between(before, after)
    if lost is None:
        raise _none("bytes of no file are bound, and the source has no positions")
    if not lost:
        raise _none("bytes of no file are bound, and the position after them does not follow the one before")
    return SourceGap(ranges=lost)


def gap_transaction(state: ChainState, gap: SourceGap, after: SourceState | None) -> IngestOutcome:
    """Builds the transaction that goes on where ``after`` says, without the gap."""
    event = AddData(
        prev_checkpoint=state.checkpoint.physical_hash if state.checkpoint else None,
        prev_offset=state.last_offset,
        new_watermark=state.watermark,
        new_source_state=after,
        extra={EXTRA: dict(gap.as_attribute())},
    )
    counts: RowCounts = NOTHING_READ
    return IngestOutcome(events=(event,), objects=(), counts=counts)


def stated_in(event: object) -> Mapping[str, Any] | None:
    """Returns what an event says of a gap; ``None`` if it is none."""
    said = (event.extra or {}).get(EXTRA) if isinstance(event, AddData) else None
    return said if isinstance(said, dict) else None


def accepted_before(chain: ChainReader, name: str) -> AcceptedGap | None:
    """Returns a gap that was accepted; ``None`` if its block is not among the newest of data."""
    block = chain.last_of(("AddData",))
    for _ in range(LOOKED_BACK):
        if block is None:
            return None
        gap = _gap_of(stated_in(block.event))
        if gap is not None and gap.name == name:
            return AcceptedGap(gap, to_millis(block.system_time), block.hash)
        block = chain.last_of(("AddData",), block.sequence_number)
    return None


def _gap_of(said: Mapping[str, Any] | None) -> SourceGap | None:
    """Returns the gap that a block states; ``None`` if it states none that can be."""
    try:
        lost = msgspec.convert((said or {}).get("lost", ()), tuple[_Lost, ...])
    except msgspec.ValidationError:
        return None
    return SourceGap(ranges=tuple(AddressRange(each.part, each.start, each.end) for each in lost)) if lost else None


def check_name(gap: SourceGap | None, name: str) -> SourceGap:
    """Returns the gap of what is forgotten. Raises Refused if it is none, or has another name."""
    if gap is None:
        raise _none("the source has no gap")
    if gap.name != name:
        raise other_gap(gap, name)
    return gap


def other_gap(gap: SourceGap, name: str) -> Refused:
    return Refused(
        f"the gap {name} is another one now: {gap.name}, of {gap.count:,} addresses",
        rule=GAP_CHANGED,
        hint="odfctl gap show lists what is lost now; nothing was written",
    )


def _none(what: str) -> Refused:
    return Refused(what, rule=GAP_NONE, hint="pull: nothing stops it here")


async def gap_of(deps: IngestDependencies, dataset: DatasetId, state: ChainState) -> SourceGap | None:
    """Asks the source what it let go of after the position in ``state``; ``None``: nothing, or it has no positions.

    Raises Refused (no polling source), and what a fetch raises.
    """
    polled, _ = polling(state)
    source = await trio.to_thread.run_sync(polled_source, polled)
    async with staged_folder(deps.settings.staging) as folder, outside("its source"):
        job = await fetch_job(deps, dataset, polled, state, folder)
        found = await source.find_lost(job)
    return SourceGap(ranges=found) if found else None


async def accept_gap(deps: IngestDependencies, dataset: DatasetId, name: str) -> AcceptedGap:
    """Commits that the dataset, or all of its shards, go on after the gap of this name. Repeated, it is the same.

    Raises Refused if nothing is forgotten, or something else, and as ``gap_of``; Conflict.
    """
    for attempt in range(ATTEMPTS):
        upper = await trio.to_thread.run_sync(deps.store.upper, dataset)
        state = await trio.to_thread.run_sync(load, deps, dataset)
        before = await trio.to_thread.run_sync(accepted_before, deps.store.chain(dataset), name)
        if before is not None:
            return before
        gap = check_name(await gap_of(deps, dataset, state), name)
        assert state.source_state is not None, "a gap is after a position"
        label = polled_source(polling(state)[0]).skip(state.source_state, gap.ranges)
        is_captured = await trio.to_thread.run_sync(deps.is_captured, dataset)
        time = block_time(state, deps.now(), upper, alone=is_captured)
        events = gap_transaction(state, gap, label).events
        records = (NOTHING_READ, *((Capture(files=(), label=label),) if is_captured else ()))
        part = CommitPart.after(state, time, events, upper=UpperMove(upper), records=records)
        try:
            (head,) = await deps.committer.commit(Commit(parts=(part,)))
        except Conflict:
            if attempt + 1 == ATTEMPTS:
                raise
            continue
        return AcceptedGap(gap, to_millis(time), head.hash)
    raise AssertionError("the last attempt returns or raises")
