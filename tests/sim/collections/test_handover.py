"""Every interleaving of a controller, a reader, a collector, shards that grow, and deaths after any of their steps.

The controller is ``next_effect``, the reader ``next_reading``, the collector ``is_needed``, M a ``Timeline``: the code
of the product, over a world small enough to visit every state of it. A mutant breaks one rule; it must be caught.
Invariants of docs/spec/collections.md#invariants: I4, I5, I6, I7.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from chain.store.shards import SEALED
from odfd.renditions import handover, reader_position, timeline
from odfd.renditions.handover import (
    BringUp,
    ChooseTime,
    Command,
    Drop,
    HandOver,
    Refuse,
    Rest,
    RunOn,
    Seal,
    Situation,
    next_effect,
)
from odfd.renditions.reader_position import ContentDifference, Updates, Waiting, next_reading
from odfd.renditions.timeline import RenditionRow, Switch, Timeline, active, advance, append, find_switch

END: Final = 4
RENDITIONS: Final = 3
LATER: Final = 10**12
"""A clock by which the old rendition is not kept any longer."""
BEGINNING: Final = -1


class Broken(Exception):
    """An invariant does not hold."""


class World(NamedTuple):
    m: Timeline
    uppers: tuple[int, ...]
    alive: frozenset[int]
    at: int
    """Of the reader."""
    has: tuple[tuple[str, int], ...]
    """What it accumulated."""
    hold: int
    queue: int
    """How many commands are done."""
    chosen: int | None
    """The time in the row of the one that is next."""
    deaths: int


def rendition(number: int) -> RenditionRow:
    return RenditionRow(number=number, shards=(f"r{number}",))


def contents(number: int, time: int) -> Counter[str]:
    """Rows that all have, rows that change with time, and rows of one rendition alone."""
    if time < 0:
        return Counter()
    own = [f"r{number}"] if time > number else []
    return Counter(["common", f"r{number}@{time // 2}", *own])


def start(deaths: int) -> World:
    m = Timeline((Switch(BEGINNING, "", rendition(0)),), 0)
    return World(m, (0,) * RENDITIONS, frozenset(range(RENDITIONS)), BEGINNING, (), BEGINNING, 0, None, deaths)


def shot(world: World, number: int, time: int) -> Counter[str]:
    if number not in world.alive:
        raise Broken(f"I7: a reader needs rendition {number}, which was dropped")
    if time >= world.uppers[number]:
        raise Broken(f"I6: rendition {number} is read at {time}, which is not complete")
    return contents(number, time)


def steps(world: World, plan: tuple[int, ...]) -> Iterator[World]:
    for number, upper in enumerate(world.uppers):
        if upper < END and number in (0, *plan):
            yield world._replace(uppers=put(world.uppers, number, upper + 1))
    if world.m.upper < END:
        yield world._replace(m=advance(world.m, world.m.upper + 1))
    if world.queue < len(plan):
        yield from controller(world, plan)
    yield from reader(world)
    yield from collector(world, plan)


def controller(world: World, plan: tuple[int, ...]) -> Iterator[World]:
    """One effect, for every clock; a death after the effect and before the next is the same state, seen anew."""
    command = Command(str(world.queue), plan[world.queue], 0, world.chosen)
    for now in range(END) if world.chosen is None else (0,):
        effect = next_effect(situation(world, command, plan, now))
        match effect:
            case ChooseTime(time=time):
                if time < END:
                    yield world._replace(chosen=time)
            case HandOver(time=time, to=to):
                switch = Switch(time, command.id, rendition(to))
                after = world._replace(m=append(world.m, switch))
                old = world.m.last.number
                reached = put(put(world.uppers, old, max(time, world.uppers[old])), to, max(time + 1, world.uppers[to]))
                # The frontiers move with it, or later, where a version that died wrote them apart.
                for each in (after, *[after._replace(uppers=reached)] * (time < END)):
                    yield each
                    if world.deaths:  # an older row comes back: the time that was chosen is forgotten
                        yield each._replace(chosen=None, deaths=world.deaths - 1)
            case RunOn(rendition=number, until=until) | BringUp(rendition=number, until=until):
                if until <= END:
                    yield world._replace(uppers=put(world.uppers, number, max(until, world.uppers[number])))
            case Seal() | Drop() | Rest():
                yield world._replace(queue=world.queue + 1, chosen=None)
            case Refuse(message=message):
                raise Broken(f"I5: command {command.id} is refused: {message}")


def situation(world: World, command: Command, plan: tuple[int, ...], now: int) -> Situation:
    return Situation(
        command=command,
        timeline=world.m,
        uppers=dict(enumerate(world.uppers)),
        bound=0,
        now=now,
        held=world.hold,
        wanted=frozenset(plan[world.queue :]),
        dropped=frozenset(range(RENDITIONS)) - world.alive,
    )


def reader(world: World) -> Iterator[World]:
    has = Counter(dict(world.has))
    step = next_reading(world.at, world.m, dict(enumerate(world.uppers)))
    match step:
        case Updates(rendition=number, after=after, until=until):
            for time in range(after + 1, until):  # it may stop after any time
                has.update(shot(world, number, time))
                has.subtract(shot(world, number, time - 1) if time else Counter())
                yield world._replace(at=time, has=frozen(has))
        case ContentDifference(time=time, old=old, old_time=old_time, new=new):
            has.update(shot(world, new, time))
            has.subtract(shot(world, old, old_time) if old_time >= 0 else Counter())
            yield world._replace(at=time, has=frozen(has))
        case Waiting():
            pass
    if world.hold < world.at:
        yield world._replace(hold=world.at)
    if world.deaths and world.at > world.hold >= 0:  # it begins anew, with a snapshot where it holds
        number = active(world.m, world.hold).number
        yield world._replace(at=world.hold, has=frozen(shot(world, number, world.hold)), deaths=world.deaths - 1)


def collector(world: World, plan: tuple[int, ...]) -> Iterator[World]:
    """Seals and drops what the product would, once it is old enough."""
    for each in world.m.switches[1:]:
        command = Command(each.command, each.to.number, 0, each.time)
        old = situation(world, command, plan, LATER)
        sealed = msgspec.structs.replace(old, uppers=dict.fromkeys(range(RENDITIONS), SEALED))
        if isinstance(effect := next_effect(sealed), Drop):
            yield world._replace(alive=world.alive - {effect.rendition})


def check(world: World) -> None:
    commands = [each.command for each in world.m.switches]
    if len(set(commands)) != len(commands):
        raise Broken(f"I5: a command was applied twice: {commands}")
    times = [each.time for each in world.m.switches]
    if times != sorted(set(times)):
        raise Broken(f"I4: handovers that are not in order: {times}")
    if world.at >= 0 and world.has != frozen(contents(active(world.m, world.at).number, world.at)):
        raise Broken(f"I6: at {world.at} the reader has {world.has}")


def final(world: World, plan: tuple[int, ...]) -> None:
    """Where nothing can move any more."""
    if world.at != END - 1:
        raise Broken(f"the reader is stuck at {world.at}")
    if any(find_switch(world.m, str(number)) is None for number in range(world.queue)):
        raise Broken("a command that is done left no handover")


def put(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*values[:index], value, *values[index + 1 :])


def frozen(counted: Counter[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((key, count) for key, count in counted.items() if count))


def explore(plan: tuple[int, ...], deaths: int = 1) -> int:
    """Visits every state, breadth first; returns how many there are."""
    first = start(deaths)
    seen, queue = {first}, deque([first])
    while queue:
        world = queue.popleft()
        check(world)
        moved = False
        for after in steps(world, plan):
            if world.m != after.m and after.m.switches[: len(world.m.switches)] != world.m.switches:
                raise Broken("I4: M was rewritten")
            if any(time < world.m.upper for time in new_times(world, after)):
                raise Broken("I4: a handover at a time that was promised")
            moved = moved or after != world
            if after not in seen:
                seen.add(after)
                queue.append(after)
        if not moved:
            final(world, plan)
    return len(seen)


def new_times(before: World, after: World) -> list[int]:
    return [each.time for each in after.m.switches[len(before.m.switches) :]]


PLANS: Final = [(1,), (1, 2), (1, 0)]
"""One handover, two, and a rollback."""


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_readers_have_exactly_the_active_rendition_whatever_happens(plan: tuple[int, ...]) -> None:
    assert explore(plan) > 1000


def _passing(m: Timeline) -> int:
    return END


MUTANTS: Final[dict[str, list[tuple[Any, str, Callable[..., Any]]]]] = {
    "the new rendition is read less the old one at the handover": [(reader_position, "_old_side", lambda time: time)],
    "readers pass what M promised": [(reader_position, "_decide", _passing)],
    "a hold one time before a handover frees the old rendition": [(timeline, "_free_from", lambda end: end - 1)],
    "a handover at a time that was promised": [
        (handover, "is_open", lambda m, time: True),
        (timeline, "is_open", lambda m, time: True),
    ],
    "a command that is done is not looked for in M": [
        (handover, "find_switch", lambda m, command: None),
        (timeline, "find_switch", lambda m, command: None),
    ],
}


@pytest.mark.nightly
@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_broken_rule_is_caught(mutant: str, plan: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, broken in MUTANTS[mutant]:
        monkeypatch.setattr(module, name, broken)
    with pytest.raises(Broken):
        explore(plan)


def test_the_store_refuses_what_was_promised_and_what_is_done() -> None:
    m = append(start(0).m, Switch(3, "a", rendition(1)))
    with pytest.raises(Exception, match="are decided"):
        append(m, Switch(3, "b", rendition(2)))
    with pytest.raises(Exception, match="already"):
        append(m, Switch(9, "a", rendition(2)))
    assert m.upper == 4
    assert advance(m, 2) == m


def test_a_rendition_that_was_active_again_is_settled_after_its_last_end_alone() -> None:
    """Else it were sealed an hour after its first end, while it can be handed back to."""
    m = start(0).m
    for number, (time, to) in enumerate(((10, 1), (20, 0), (handover.KEEP_WARM, 2))):
        m = append(m, Switch(time, str(number), rendition(to)))
    world = start(0)._replace(m=m, uppers=(handover.KEEP_WARM + 1,) * RENDITIONS)
    soon = handover.KEEP_WARM + 21
    effects = [next_effect(situation(world, Command(str(number), 0), (), soon)) for number in range(3)]
    assert effects == [Rest(None), Seal(1), Rest(2 * handover.KEEP_WARM)]
