"""Checks how blocks join into one chain: the seed, the links, the numbers, and that times only grow.

Spec: Metadata Chain, MetadataBlock.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from chain import instant
from chain.instant import Instant
from chain.model.block import Block, UnknownEvent
from chain.model.events import AddData, ExecuteTransform, Seed
from chain.rules.columns import Mask, Run
from chain.rules.rule import Binds, Rule, Violation
from chain.state import ChainState


class FirstBlockIsSeed(Rule):
    """A chain begins with a Seed."""

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
    """A Seed stands nowhere but at the beginning."""

    name = "one-seed"
    clause = "Metadata / Seed; AppendingSeedBlockToNonEmptyChain"
    concerns = (Seed,)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        if state.head is not None:
            yield self.broken(
                "a second Seed", expected="no Seed after block 0", actual=f"Seed at #{block.sequence_number}"
            )


class LinksToHead(Rule):
    """A block names its predecessor by hash; the first has none. Closes the reference's underflow at number zero."""

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
    """We write no event that we cannot read."""

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
    """Rows carry system time in milliseconds; a block that agrees with its rows is in whole milliseconds too."""

    name = "system-time-millis"
    clause = "design: what a block holds is a function of its system time"
    binds = Binds.AUTHORS

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        if block.system_time % instant.MILLISECOND:
            yield self.broken("systemTime is finer than milliseconds", actual=instant.render(block.system_time))


class WatermarkIsMonotonic(Rule):
    """Once there is a watermark, every data block carries one, and none goes back."""

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
