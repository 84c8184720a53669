"""Decides what a reader of a collection reads next, across handovers: updates of one rendition, or a difference.

Pure. A reader is at a time ``after``: everything up to it was delivered. It reads updates of the rendition that is
active there, and stops before the next handover. At the handover it gets exactly what differs at that time, and goes on
with the next rendition. It never passes the times that M has promised, even where shards are further, since later
handovers are not known yet. Spec: docs/spec/collections.md#renditions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from odfd.renditions.timeline import Timeline, active, switch_after


class Updates(msgspec.Struct, frozen=True):
    """Says to read the updates of ``rendition`` after ``after`` and before ``until``; then to be at ``until - 1``."""

    rendition: int
    after: int
    until: int


class ContentDifference(msgspec.Struct, frozen=True):
    """Says to give the contents of ``new`` at ``time`` less those of ``old`` at ``old_time``; then to be there."""

    time: int
    old: int
    old_time: int
    new: int


class Waiting(msgspec.Struct, frozen=True):
    """Says to wait until the frontier of ``rendition`` is past ``time``; for ``None`` that of M."""

    rendition: int | None
    time: int


Reading: TypeAlias = Updates | ContentDifference | Waiting


def next_reading(after: int, timeline: Timeline, uppers: Mapping[int, int]) -> Reading:
    """Returns what a reader at ``after`` reads next. ``uppers``: frontiers of the renditions, by number."""
    now, switch = active(timeline, after).number, switch_after(timeline, after)
    end = _decide(timeline) if switch is None else switch.time
    until = min(end, uppers[now])
    if until > after + 1:
        return Updates(now, after, until)
    if switch is None:
        return Waiting(None, after + 1) if end <= uppers[now] else Waiting(now, after + 1)
    if switch.time > after + 1:
        return Waiting(now, after + 1)
    new = switch.to.number
    if uppers[new] <= switch.time:
        return Waiting(new, switch.time)
    return ContentDifference(switch.time, now, _old_side(switch.time), new)


def readable(timeline: Timeline, uppers: Mapping[int, int], time: int) -> bool:
    """Whether a snapshot at a time is definite: M has promised it, and the active rendition is complete then."""
    return time < _decide(timeline) and time < uppers[active(timeline, time).number]


def _decide(timeline: Timeline) -> int:
    return timeline.upper


def _old_side(switch: int) -> int:
    """Returns the time at which the old rendition is read: it is not complete at the handover itself."""
    return switch - 1
