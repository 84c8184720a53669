"""Checks that offsets number the rows of a dataset from zero without gaps. Spec: DataSlice, OffsetInterval."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from chain.model.block import Block
from chain.model.events import AddData, DataSlice, ExecuteTransform
from chain.rules.columns import Mask, Run
from chain.rules.rule import Rule, Violation
from chain.state import ChainState


class SlicesAreContiguous(Rule):
    """A slice begins right after the offset that its event carries."""

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
    """``prevOffset`` is the last offset of the chain; none before the first row. The reference lets the first pass."""

    name = "prev-offset"
    clause = "AddData.prevOffset, ExecuteTransform.prevOffset"
    concerns = (AddData, ExecuteTransform)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        event = block.event
        if isinstance(event, AddData | ExecuteTransform) and event.prev_offset != state.last_offset:
            yield self.broken(
                "prevOffset is not the last offset of the chain",
                expected=_shown(state.last_offset),
                actual=_shown(event.prev_offset),
            )

    def doubts(self, run: Run) -> Mask:
        carried = run.numbers("event.prev_offset")
        last = run.numbers("event.new_data.offset_interval.end").or_else(carried)
        return ~carried.same(run.before(last, run.state.last_offset))


def _slices(block: Block) -> Iterator[DataSlice]:
    event = block.event
    if isinstance(event, AddData | ExecuteTransform) and event.new_data is not None:
        yield event.new_data


def _shown(offset: int | None) -> str:
    return "none" if offset is None else str(offset)
