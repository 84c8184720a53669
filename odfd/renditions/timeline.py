"""States which rendition of a collection is active at which time: the contents of its rendition chain, M, as a value.

``upper`` promises that nothing else was decided before it; a handover never has an earlier time. The first rendition
counts from the beginning of time. Spec: docs/spec/collections.md#renditions.
"""

from __future__ import annotations

from typing import Final

import msgspec

from chain.errors import Conflict, Invalid

SWITCHES: Final = 4096
"""Handovers of one collection: each is a block and a row of M, which readers hold in memory."""


class RenditionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One derivation of a collection's history."""

    number: int
    shards: tuple[str, ...]
    """The dids of its chains. The first has the collection's name while the rendition is active."""
    by: tuple[str, ...] = ()
    """Columns whose hash decides the shard of a row; where there are several shards."""
    since: int = 0
    """Times from it on accumulate right, in milliseconds."""
    pipeline: str = ""
    """The pipeline that decoded it."""
    reason: str = ""


class Switch(msgspec.Struct, frozen=True):
    """From ``time`` on ``to`` is active; ``command`` asked for it, and is the id of no other switch."""

    time: int
    command: str
    to: RenditionRow


class Timeline(msgspec.Struct, frozen=True):
    switches: tuple[Switch, ...]
    """At least one, in the order of their times."""
    upper: int

    @property
    def last(self) -> RenditionRow:
        return self.switches[-1].to


def active(timeline: Timeline, time: int) -> RenditionRow:
    """Returns the rendition that is active at a time; of a time that was not promised the answer may change."""
    return next((each.to for each in reversed(timeline.switches) if each.time <= time), timeline.switches[0].to)


def switch_after(timeline: Timeline, time: int) -> Switch | None:
    """Returns the first handover after a time."""
    return next((each for each in timeline.switches[1:] if each.time > time), None)


def applied(timeline: Timeline, command: str) -> Switch | None:
    """Returns the handover that a command made, wherever its process died after it."""
    return next((each for each in timeline.switches if each.command == command), None)


def is_open(timeline: Timeline, time: int) -> bool:
    """Whether a handover may still have this time."""
    return time >= timeline.upper


def appended(timeline: Timeline, switch: Switch) -> Timeline:
    """Adds a handover. Raises Conflict for a time that was promised, Invalid for a command that is there already."""
    if applied(timeline, switch.command) is not None:
        raise Invalid(f"command {switch.command} made its handover already", rule="rendition-command")
    if len(timeline.switches) >= SWITCHES:
        raise Invalid(f"a collection hands over at most {SWITCHES} times", rule="rendition-limit")
    if not is_open(timeline, switch.time):
        raise Conflict(
            f"a handover at {switch.time}, and all times before {timeline.upper} are decided",
            rule="rendition-promised",
            hint="plan again: it gets a later time",
        )
    return Timeline((*timeline.switches, switch), switch.time + 1)


def advanced(timeline: Timeline, upper: int) -> Timeline:
    """Promises that nothing happens before ``upper``; a promise is never taken back."""
    return Timeline(timeline.switches, max(upper, timeline.upper))


def is_needed(timeline: Timeline, number: int, held: int | None) -> bool:
    """Whether a rendition may be read yet: it is active now, or at a time that is not before ``held``.

    ``held``: the earliest time that a reader holds; ``None``: nobody holds any. A reader that is at ``held`` reads the
    old rendition one time before its end, so a hold of exactly that time still needs it.
    """
    if timeline.last.number == number:
        return True
    ends = [
        after.time
        for before, after in zip(timeline.switches, timeline.switches[1:], strict=False)
        if before.to.number == number
    ]
    return held is not None and bool(ends) and held < _free_from(max(ends))


def _free_from(end: int) -> int:
    """From which held time on a rendition is free that ended at ``end``: its last reading is at ``end - 1``."""
    return end
