"""Checks that time moves forward: system time from block to block, the watermark from data block to data block."""

from __future__ import annotations

from collections.abc import Iterator

from chain import instant
from chain.instant import Instant
from chain.model.block import Block
from chain.model.events import AddData, ExecuteTransform
from chain.rules.columns import Mask, Run
from chain.rules.rule import Binds, Rule, Violation
from chain.state import ChainState


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
