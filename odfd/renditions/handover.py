"""Decides the next durable effect of a handover command: the whole controller as one pure function.

Each effect is one idempotent step. What was done is read back from M, from shards and from the command's row, never
remembered, so recovery after a crash is just the next call. Before the handover is in M nothing is visible; afterwards
everything follows from M. Spec: docs/spec/collections.md#handover.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, TypeAlias

import msgspec

from chain.store.shards import SEALED
from odfd.renditions.timeline import Switch, Timeline, find_switch, is_needed, is_open

KEEP_WARM: Final = 3_600_000
"""Milliseconds after a handover in which it can be undone by handing back."""
RETAIN: Final = 7 * 86_400_000
"""Milliseconds that the data of the old rendition stays for readers without a hold."""


class Command(msgspec.Struct, frozen=True):
    """A handover command as it is stored."""

    id: str
    to: int
    asked: int = 0
    """The earliest time of the handover, in milliseconds."""
    time: int | None = None
    """The time that was chosen for it, in milliseconds; ``None`` before that."""


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """All that the decision depends on, as it is durable now; times are in milliseconds."""

    command: Command
    timeline: Timeline
    uppers: Mapping[int, int]
    """Frontiers of the renditions, by number."""
    bound: int
    """The time up to which transactions are bound; the new rendition has to be complete up to it."""
    now: int
    held: int | None = None
    """The earliest time that a reader holds."""
    wanted: Collection[int] = ()
    """Numbers of renditions that other commands name, which are neither sealed nor dropped."""
    dropped: Collection[int] = ()


class ChooseTime(msgspec.Struct, frozen=True):
    """Step 2: write the time of the handover into the command's row."""

    time: int


class BringUp(msgspec.Struct, frozen=True):
    """Step 3: give the rendition every transaction that is bound before ``until``."""

    rendition: int
    until: int


class HandOver(msgspec.Struct, frozen=True):
    """Step 4: append the block to M, the only effect that readers see."""

    time: int
    to: int


class RunOn(msgspec.Struct, frozen=True):
    """Step 5: move the frontier of a rendition to ``until``, so that all before it is complete."""

    rendition: int
    until: int


class Seal(msgspec.Struct, frozen=True):
    """Step 7: let the rendition take in nothing more."""

    rendition: int


class Drop(msgspec.Struct, frozen=True):
    """Step 8: mark the rendition as dropped; its data is freed afterwards."""

    rendition: int


class Rest(msgspec.Struct, frozen=True):
    """Nothing is to be done before ``until``; for ``None`` before something else changes."""

    until: int | None


class Refuse(msgspec.Struct, frozen=True):
    """The command cannot be carried out, and nothing happened."""

    rule: str
    message: str


Effect: TypeAlias = ChooseTime | BringUp | HandOver | RunOn | Seal | Drop | Rest | Refuse


def next_effect(on: Situation) -> Effect:
    """Returns the next effect of a command, which is finished at ``Seal``, ``Drop`` or ``Rest``."""
    switch = find_switch(on.timeline, on.command.id)
    return _towards(on) if switch is None else _after(on, switch)


def _towards(on: Situation) -> Effect:
    """Returns the next effect before the handover is in M."""
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
    """Returns the next effect after the handover is in M."""
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
    """Whether a rendition was active again after this handover, so that a later handover counts."""
    place = timeline.switches.index(switch)
    return any(each.to.number == number for each in timeline.switches[place + 1 :])


def _before(timeline: Timeline, switch: Switch) -> int:
    return timeline.switches[timeline.switches.index(switch) - 1].to.number
