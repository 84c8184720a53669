"""Every reader gets every event once, in order, or is told how many it missed."""

from __future__ import annotations

from contextlib import aclosing

import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.instant import Instant
from odfd.obs.events import Event, EventLog
from odfd.runtime.ring import Lagged
from worlds.clock import FixedClock


@given(ring=st.integers(1, 8), since=st.integers(0, 30), steps=st.lists(st.integers(0, 12), max_size=12))
@settings(max_examples=150)
def test_told_or_said_to_be_lost_never_twice_never_silently(ring: int, since: int, steps: list[int]) -> None:
    async def play() -> None:
        log = EventLog(FixedClock(Instant(0)), ring)
        position: int | None = None
        for _ in range(20):
            log.emit("x.y")
        async with aclosing(log.follow(since)) as news:
            for burst in steps:
                for _ in range(burst):
                    log.emit("x.y")
                if position is None and since <= log.last:
                    # The reader's place is looked at with its first step, which comes now.
                    position = since
                while position is None or position < log.last:
                    item = await anext(news)
                    if isinstance(item, Lagged):
                        if item.missed is None:
                            assert position is None
                            assert since > log.last
                        else:
                            assert position is not None
                            assert item.resume - position - 1 == item.missed > 0
                        position = item.resume - 1
                        continue
                    assert isinstance(item, Event)
                    assert position is not None
                    assert item.sequence == position + 1
                    position = item.sequence

    trio.run(play)


async def test_from_now_on_and_waking(autojump_clock: trio.testing.MockClock) -> None:
    log = EventLog(FixedClock(Instant(5)))
    log.emit("old.one")
    seen: list[Event | Lagged] = []

    async def read() -> None:
        async with aclosing(log.follow()) as news:
            async for item in news:
                seen.append(item)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        log.emit("new.one", "subject", "message", kind="data may have any name")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert [item.kind for item in seen if isinstance(item, Event)] == ["new.one"] * 3
    assert log.last == 2
