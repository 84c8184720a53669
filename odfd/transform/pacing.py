"""Limits how much one transaction settles, so that a backlog is emitted in slices of bounded size.

The limit affects only when output is emitted, not its content; so it is a policy of this node, and a replay uses the
recorded output watermark instead. Pure. Spec: docs/spec/engine-semantics.md#pacing.
"""

from __future__ import annotations

from collections.abc import Sequence

from chain.instant import Instant
from odfd.transform.checkpoint_info import TransformProgress
from odfd.transform.plan import DataBlock, InputView, Pace


def within(rows: int) -> Pace:
    """Returns a limit so that about ``rows`` input rows are settled; no limit if fewer wait.

    Rows of a block have event times from about the watermark before it on; a chain without its slices tells no more. So
    the limit is one of those watermarks, moved by as much as output event time is ahead of that of inputs.
    """

    def limit(past: TransformProgress, views: Sequence[InputView]) -> Instant | None:
        shift = 0 if past.settled is None or past.slowest is None else past.settled - past.slowest
        blocks = (block for view in views for block in (*view.reopened, *view.new) if block.new_data is not None)
        placed = sorted(((block.watermark_before, _rows(block)) for block in blocks), key=_by_time)
        total = 0
        for before, count in placed:
            total += count
            if total <= rows or before is None:
                continue
            found = Instant(before + shift)
            if past.emitted is None or found > past.emitted:
                return found
        # A table keeps its waiting rows in the checkpoint: as many ticks as their share of the rows allows.
        return past.due[max(len(past.due) * rows // past.held - 1, 0)] if past.due and past.held > rows else None

    return limit


def up_to(recorded: Instant | None) -> Pace:
    """Returns the pace of a recorded transaction, whose output watermark is the limit of what it settled."""
    return lambda *_: recorded


def _by_time(placed: tuple[Instant | None, int]) -> tuple[bool, int]:
    before, _ = placed
    return before is not None, before or 0


def _rows(block: DataBlock) -> int:
    if block.new_data is None:
        return 0
    interval = block.new_data.offset_interval
    return interval.end - interval.start + 1
