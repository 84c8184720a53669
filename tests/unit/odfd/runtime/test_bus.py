"""What happened in one feature is told to others, in order, where they want to hear it."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest
import trio

from odfd.runtime.bus import Bus


@dataclass(frozen=True)
class Moved:
    name: str


@dataclass(frozen=True)
class Gone:
    name: str


@dataclass(frozen=True)
class GoneForGood(Gone):
    """Not of the topic that it is derived from."""


def test_subscribers_are_called_in_their_order_with_values_of_their_topics() -> None:
    bus, heard = Bus(), list[tuple[str, str]]()
    bus.subscribe(lambda each: heard.append(("first", each.name)), Moved)
    bus.subscribe(lambda each: heard.append(("second", each.name)), Gone, Moved)
    for each in (Moved("a"), Gone("b"), GoneForGood("c")):
        bus.publish(each)
    assert heard == [("first", "a"), ("second", "a"), ("second", "b")]


def test_a_fault_reaches_who_published_and_nobody_after_it() -> None:
    bus, heard = Bus(), list[Moved]()

    def fail(_: Moved) -> None:
        raise ValueError("broken")

    bus.subscribe(heard.append, Moved)
    bus.subscribe(fail, Moved)
    bus.subscribe(heard.append, Moved)
    with pytest.raises(ValueError, match="broken"):
        bus.publish(Moved("a"))
    assert heard == [Moved("a")]


async def test_what_is_published_in_a_thread_is_heard_in_the_event_loop() -> None:
    bus, heard, here = Bus(), list[tuple[str, int]](), threading.get_ident()
    came = trio.Event()

    def hear(each: Moved) -> None:
        heard.append((each.name, threading.get_ident()))
        came.set()

    bus.subscribe(hear, Moved, soon=True)
    bus.publish(Moved("before the node runs"))
    bus.open()
    await trio.to_thread.run_sync(bus.publish, Moved("a"))
    await came.wait()
    assert heard == [("a", here)]


async def test_one_who_is_called_soon_does_not_hold_up_who_publishes() -> None:
    bus, heard = Bus(), list[str]()
    bus.open()
    bus.subscribe(lambda _: heard.append("soon"), Moved, soon=True)
    bus.subscribe(lambda _: heard.append("now"), Moved)
    bus.publish(Moved("a"))
    heard.append("went on")
    with trio.fail_after(10):
        while "soon" not in heard:
            await trio.lowlevel.checkpoint()
    assert heard == ["now", "went on", "soon"]
