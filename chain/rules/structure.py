"""Checks how blocks join into one chain: seed, links, numbers, times that only grow, and offsets without gaps.

Spec: Metadata Chain, MetadataBlock, DataSlice, OffsetInterval.
"""

from __future__ import annotations

from collections.abc import Iterator

from chain import instant
from chain.instant import Instant
from chain.libraries import np
from chain.model.block import Block, UnknownEvent
from chain.model.events import AddData, DataSlice, ExecuteTransform, Seed
from chain.rules.columns import Mask, Run
from chain.rules.rule import Binds, Rule, Violation
from chain.state import ChainState


class FirstBlockIsSeed(Rule):
    """The first block of a chain is a Seed."""

    name = "first-block-seed"
    clause = "Metadata / Seed; FirstBlockMustBeSeed"

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        if state.head is None and not isinstance(block.event, Seed):
            yield self.broken(
                "a chain begins with a Seed", expected="Seed", actual=type(block.event).__name__, hint="write it first"
            )

    def doubts(self, run: Run) -> Mask:
        return np.full(run.size, run.state.head is None)


class OneSeed(Rule):
    """Only the first block of a chain is a Seed."""

    name = "one-seed"
    clause = "Metadata / Seed; AppendingSeedBlockToNonEmptyChain"
    concerns = (Seed,)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        if state.head is not None:
            yield self.broken(
                "a second Seed", expected="no Seed after block 0", actual=f"Seed at #{block.sequence_number}"
            )


class LinksToHead(Rule):
    """A block names its predecessor by hash; the first has none. The reference underflows at number zero."""

    name = "prev-block-link"
    clause = "Metadata Chain; PrevBlockNotFound"

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        if block.prev_block_hash != state.head:
            yield self.broken(
                "prevBlockHash is not the hash of the block before",
                expected=state.head or "none",
                actual=block.prev_block_hash or "none",
            )

    def doubts(self, run: Run) -> Mask:
        return ~run.digests("prev_block_hash").same(run.before(run.hashes, run.state.head))


class NumbersAreSequential(Rule):
    """Sequence numbers count from zero without gaps."""

    name = "sequence-number"
    clause = "MetadataBlock.sequenceNumber; SequenceIntegrity"

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        if block.sequence_number != state.size:
            yield self.broken("sequenceNumber does not follow", expected=state.size, actual=block.sequence_number)

    def doubts(self, run: Run) -> Mask:
        numbers = run.numbers("sequence_number")
        wrong: Mask = numbers.values != run.before(numbers, run.state.sequence_number).values + 1
        return wrong


class EventsAreKnown(Rule):
    """This node writes only events that it can read."""

    name = "known-event"
    clause = "MetadataEvent"
    binds = Binds.AUTHORS
    concerns = (UnknownEvent,)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        if isinstance(block.event, UnknownEvent):
            yield self.broken("an event of a newer schema", actual=f"variant {block.event.variant}")


class SystemTimeIsMonotonic(Rule):
    """A block's system time is not before its predecessor's."""

    name = "system-time-monotonic"
    clause = "MetadataBlock.systemTime; SystemTimeIsNotMonotonic"

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        if state.system_time is not None and block.system_time < state.system_time:
            yield self.broken(
                "systemTime goes back",
                expected=f"{instant.render(state.system_time)} or later",
                actual=instant.render(block.system_time),
                hint="check this machine's clock",
            )

    def doubts(self, run: Run) -> Mask:
        times = run.times("system_time")
        before = run.before(times, run.state.system_time)
        return before.present & (times.values < before.values)


class SystemTimeIsInMilliseconds(Rule):
    """A block's system time is in whole milliseconds, as that of its rows."""

    name = "system-time-millis"
    clause = "design: what a block holds is a function of its system time"
    binds = Binds.AUTHORS

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        if block.system_time % instant.MILLISECOND:
            yield self.broken("systemTime is finer than milliseconds", actual=instant.render(block.system_time))


class WatermarkIsMonotonic(Rule):
    """After the first watermark every data block has one, and none is earlier than the one before."""

    name = "watermark-monotonic"
    clause = "Watermark; WatermarkIsNotMonotonic"
    concerns = (AddData, ExecuteTransform)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        event = block.event
        if not isinstance(event, AddData | ExecuteTransform) or state.watermark is None:
            return
        if event.new_watermark is None or event.new_watermark < state.watermark:
            yield self.broken(
                "the watermark goes back" if event.new_watermark is not None else "the watermark is dropped",
                expected=f"{instant.render(state.watermark)} or later",
                actual=_shown(event.new_watermark),
                hint="carry the last watermark on when it does not advance",
            )

    def doubts(self, run: Run) -> Mask:
        marks = run.times("event.new_watermark")
        before = run.before(marks, run.state.watermark)
        return before.present & ~(marks.present & (marks.values >= before.values))


def _shown(time: Instant | None) -> str:
    return "none" if time is None else instant.render(time)


class SlicesAreContiguous(Rule):
    """A slice begins at the offset after the ``prevOffset`` of its event."""

    name = "offsets-sequential"
    clause = "DataSlice.offsetInterval; OffsetsAreNotSequential"
    concerns = (AddData, ExecuteTransform)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        event = block.event
        if not isinstance(event, AddData | ExecuteTransform) or event.new_data is None:
            return
        expected = 0 if event.prev_offset is None else event.prev_offset + 1
        if event.new_data.offset_interval.start != expected:
            yield self.broken(
                "the slice does not begin after prevOffset",
                expected=expected,
                actual=event.new_data.offset_interval.start,
            )

    def doubts(self, run: Run) -> Mask:
        start, before = run.numbers("event.new_data.offset_interval.start"), run.numbers("event.prev_offset")
        wrong: Mask = start.values != np.where(before.present, before.values + 1, 0)
        return start.present & wrong


class IntervalsAreNotEmpty(Rule):
    """An interval holds at least one row: both ends belong to it."""

    name = "offset-interval"
    clause = "OffsetInterval; Invalid offset interval"
    concerns = (AddData, ExecuteTransform)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        for new_data in _slices(block):
            interval = new_data.offset_interval
            if interval.end < interval.start:
                yield self.broken(
                    "the offset interval ends before it starts",
                    expected=f"an end of {interval.start} or more",
                    actual=interval.end,
                )

    def doubts(self, run: Run) -> Mask:
        interval = "event.new_data.offset_interval"
        start, end = run.numbers(f"{interval}.start"), run.numbers(f"{interval}.end")
        return end.present & (end.values < start.values)


class PrevOffsetIsLast(Rule):
    """``prevOffset`` is the last offset of the chain; none before the first row. The reference skips the first."""

    name = "prev-offset"
    clause = "AddData.prevOffset, ExecuteTransform.prevOffset"
    concerns = (AddData, ExecuteTransform)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        event = block.event
        if isinstance(event, AddData | ExecuteTransform) and event.prev_offset != state.last_offset:
            yield self.broken(
                "prevOffset is not the last offset of the chain",
                expected=_shown_offset(state.last_offset),
                actual=_shown_offset(event.prev_offset),
            )

    def doubts(self, run: Run) -> Mask:
        carried = run.numbers("event.prev_offset")
        last = run.numbers("event.new_data.offset_interval.end").or_else(carried)
        return ~carried.same(run.before(last, run.state.last_offset))


def _slices(block: Block) -> Iterator[DataSlice]:
    event = block.event
    if isinstance(event, AddData | ExecuteTransform) and event.new_data is not None:
        yield event.new_data


def _shown_offset(offset: int | None) -> str:
    return "none" if offset is None else str(offset)
