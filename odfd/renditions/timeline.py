"""Says which rendition of a collection is active at which time: its rendition chain, M, as a value.

``upper`` is a promise that all handovers before it are known; later ones never have an earlier time. The first
rendition is active from the beginning of time. Spec: docs/spec/collections.md#renditions.
"""

from __future__ import annotations

from typing import Final

import msgspec

from chain.errors import Conflict, Invalid

SWITCHES: Final = 4096
"""Most handovers of one collection; each is a block and a row of M, which readers hold in memory."""


class RenditionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One derivation of a collection's history."""

    number: int
    shards: tuple[str, ...]
    """The dids of its chains. The first has the collection's name while the rendition is active."""
    by: tuple[str, ...] = ()
    """Columns whose hash decides the shard of a row; empty for one shard."""
    since: int = 0
    """From this time on, in milliseconds, its contents add up correctly."""
    reason: str = ""


class Switch(msgspec.Struct, frozen=True):
    """A handover: from ``time`` on ``to`` is active. ``command`` asked for it, and is the id of no other switch."""

    time: int
    command: str
    to: RenditionRow


class Timeline(msgspec.Struct, frozen=True):
    switches: tuple[Switch, ...]
    """At least one switch, in the order of their times."""
    upper: int

    @property
    def last(self) -> RenditionRow:
        return self.switches[-1].to


def active(timeline: Timeline, time: int) -> RenditionRow:
    """Returns the rendition that is active at a time; for a time that is not promised that may still change."""
    return next((switch.to for switch in reversed(timeline.switches) if switch.time <= time), timeline.switches[0].to)


def switch_after(timeline: Timeline, time: int) -> Switch | None:
    """Returns the first handover after a time."""
    return next((switch for switch in timeline.switches[1:] if switch.time > time), None)


def find_switch(timeline: Timeline, command: str) -> Switch | None:
    """Returns the handover that a command made, or ``None`` if it made none yet."""
    return next((switch for switch in timeline.switches if switch.command == command), None)


def is_open(timeline: Timeline, time: int) -> bool:
    """Whether a handover may still have this time."""
    return time >= timeline.upper


def append(timeline: Timeline, switch: Switch) -> Timeline:
    """Adds a handover. Raises Conflict for a time before ``upper``, Invalid for a command that made one already."""
    if find_switch(timeline, switch.command) is not None:
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


def advance(timeline: Timeline, upper: int) -> Timeline:
    """Promises that no handover will have a time before ``upper``; a promise is never taken back."""
    return Timeline(timeline.switches, max(upper, timeline.upper))


def is_needed(timeline: Timeline, number: int, held: int | None) -> bool:
    """Whether a rendition may still be read: it is active now, or was at a time from ``held`` on.

    ``held``: the earliest time that a reader holds; ``None`` if nobody holds any. A reader at ``held`` reads the old
    rendition one time before its end, so a hold of exactly that time still needs it.
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
    """Returns the held time from which on a rendition that ended at ``end`` is free: it is last read at ``end - 1``."""
    return end
