"""Decides the next durable effect of a command to hand over: the whole controller as one pure function.

Each effect is one idempotent step. What was done is read back from M, from shards and from the command's row, never
remembered: recovery after a crash is the next call. Before the handover is in M nothing is visible; from there on all
follows from M. Spec: docs/spec/collections.md#handover.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, TypeAlias

import msgspec

from chain.store.shards import SEALED
from odfd.renditions.timeline import Switch, Timeline, applied, is_needed, is_open

KEEP_WARM: Final = 3_600_000
"""Milliseconds that the old rendition can be handed back to."""
RETAIN: Final = 7 * 86_400_000
"""Milliseconds that its data stays, for readers that hold nothing."""


class Command(msgspec.Struct, frozen=True):
    """Holds a handover command as it is stored."""

    id: str
    to: int
    asked: int = 0
    """The earliest time of the handover."""
    time: int | None = None
    """The time that was chosen for it."""


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """All that the decision depends on, as it is durable now."""

    command: Command
    timeline: Timeline
    uppers: Mapping[int, int]
    """Of the renditions' shards, by number."""
    bound: int
    """The upper of what binds source bytes to times: the new rendition has to be as far."""
    now: int
    held: int | None = None
    """The earliest time that a reader holds."""
    wanted: Collection[int] = ()
    """Renditions that other commands name: none of them is sealed or dropped."""
    dropped: Collection[int] = ()


class ChooseTime(msgspec.Struct, frozen=True):
    """Step 2: note the time of the handover in the command's row."""

    time: int


class BringUp(msgspec.Struct, frozen=True):
    """Step 3: let the rendition have every transaction that is bound before ``until``."""

    rendition: int
    until: int


class HandOver(msgspec.Struct, frozen=True):
    """Step 4: append the block to M. Only this is seen by readers."""

    time: int
    to: int


class RunOn(msgspec.Struct, frozen=True):
    """Step 5: let the frontier of a rendition reach ``until``: all before it is complete."""

    rendition: int
    until: int


class Seal(msgspec.Struct, frozen=True):
    """Step 7: let the rendition take nothing more."""

    rendition: int


class Drop(msgspec.Struct, frozen=True):
    """Step 8: mark it dropped; its data goes after that."""

    rendition: int


class Rest(msgspec.Struct, frozen=True):
    """Nothing is to be done before ``until``; ``None``: before something else changes."""

    until: int | None


class Refuse(msgspec.Struct, frozen=True):
    """The command cannot be done; nothing happened."""

    rule: str
    message: str


Effect: TypeAlias = ChooseTime | BringUp | HandOver | RunOn | Seal | Drop | Rest | Refuse


def next_effect(on: Situation) -> Effect:
    """Returns what is to be done next for a command; it is done once ``Seal``, ``Drop`` or ``Rest`` comes."""
    switch = applied(on.timeline, on.command.id)
    return _towards(on) if switch is None else _after(on, switch)


def _towards(on: Situation) -> Effect:
    """Before the handover is in M."""
    command, timeline = on.command, on.timeline
    if command.to not in on.uppers or command.to in on.dropped:
        return Refuse("rendition-unknown", f"there is no rendition {command.to}")
    if timeline.last.number == command.to:
        return Refuse("rendition-active", f"rendition {command.to} is active already")
    if on.uppers[command.to] == SEALED:
        return Refuse("rendition-sealed", f"rendition {command.to} is sealed: it takes nothing more")
    if command.time is None or not is_open(timeline, command.time):
        return ChooseTime(max(timeline.upper, command.asked, on.now, on.uppers[timeline.last.number]))
    if on.uppers[command.to] < on.bound:
        return BringUp(command.to, on.bound)
    return HandOver(command.time, command.to)


def _after(on: Situation, switch: Switch) -> Effect:
    """Once it is: what is left follows from M."""
    old, new = _before(on.timeline, switch), switch.to.number
    if on.uppers[old] < switch.time:
        return RunOn(old, switch.time)
    if on.uppers[new] <= switch.time and new == on.timeline.last.number:
        return RunOn(new, switch.time + 1)
    if on.timeline.last.number == old or old in on.wanted or old in on.dropped or _ends_later(on.timeline, switch, old):
        return Rest(None)
    if on.uppers[old] != SEALED:
        warm = switch.time + KEEP_WARM
        return Rest(warm) if on.now < warm else Seal(old)
    free = switch.time + RETAIN
    if on.now < free:
        return Rest(free)
    return Rest(None) if is_needed(on.timeline, old, on.held) else Drop(old)


def _ends_later(timeline: Timeline, switch: Switch, number: int) -> bool:
    """Whether a rendition was active again after this handover: then a later one counts."""
    place = timeline.switches.index(switch)
    return any(each.to.number == number for each in timeline.switches[place + 1 :])


def _before(timeline: Timeline, switch: Switch) -> int:
    return timeline.switches[timeline.switches.index(switch) - 1].to.number
