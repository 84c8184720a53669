"""Every reader gets every event once, in order, or is told how many it missed."""

from __future__ import annotations

import ast
from contextlib import aclosing
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from chain.instant import Instant
from odfd.obs.events import EVENT_KINDS, Event, EventLog
from odfd.runtime.ring import Lagged
from worlds.clock import FixedClock

TREE = Path(__file__).parents[4]


@pytest.mark.slow
@given(ring=st.integers(1, 8), since=st.integers(0, 30), steps=st.lists(st.integers(0, 12), max_size=12))
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


OF_THE_NODE = {
    "flow.deleted": "the dataset that it pulled is deleted with it, or it never was in force",
    "flow.stranded": "the dataset that it pulled is deleted: nobody has rights on that any more",
    "journal.begun": "of keys of the node",
    "journal.lost": "of keys of the node",
    "key.discarded": "of a dataset that is deleted for good",
    "node-card.heard": "of what the node tells of itself",
    "node-card.signed": "of what the node tells of itself",
    "objects.collected": "of the disk, which all share",
    "policy.changed": "of the rules of the node",
    "policy.heard": "of a network",
    "secret.rotated": "of keys of the node",
    "validator.suspended": "of whom the node believes",
}
"""Kinds of which the node's owner alone is told, with the reason."""


@pytest.mark.slow
def test_each_event_says_what_it_is_about_or_is_the_owners() -> None:
    """What says nothing is told to no account: a new event is decided on here or at its emission."""
    silent: set[str] = set()
    for path in sorted((TREE / "odfd").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            is_emission = isinstance(node, ast.Call) and (
                ast.unparse(node.func).endswith((".emit", "_emit")) or ast.unparse(node.func) == "emit"
                or (ast.unparse(node.func) == "partial" and ast.unparse(node.args[0]).endswith("emit"))
            )  # fmt: skip
            # What a statement that came tells of itself: of the node, if it says so.
            is_notice = isinstance(node, ast.Call) and ast.unparse(node.func) == "StatementNotice"
            is_silent = is_emission and "about" not in {keyword.arg for keyword in node.keywords}
            if is_silent or (is_notice and "NODE" in map(ast.unparse, node.args)):
                silent |= {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)} & EVENT_KINDS.keys()
    assert silent == OF_THE_NODE.keys()


@given(st.lists(st.integers(0, 5), max_size=40), st.integers(1, 10), st.integers(0, 40))
def test_ticks_rise_and_positions_are_where_their_events_are(steps: list[int], ring: int, at: int) -> None:
    """Also while the clock stands or goes back; what is lost is told, and nothing else is."""
    now = 1_000

    class Clock:
        def now(self) -> Instant:
            return Instant(now * 1_000)

        def monotonic(self) -> int:
            return now

    log = EventLog(Clock(), ring)  # type: ignore[arg-type]
    emitted = []
    for step in steps:
        now += step - 2
        emitted.append(log.emit("x.y"))
    ticks = [event.tick for event in emitted]
    assert ticks == sorted(set(ticks))
    assert log.position(None) == len(emitted)
    assert log.position(0) == max(0, len(emitted) - ring)
    assert log.position((ticks or [1_000])[-1] + 1) is None
    if emitted:
        chosen = emitted[at % len(emitted)]
        is_kept = len(emitted) - chosen.sequence < ring
        assert log.position(chosen.tick) == (chosen.sequence if is_kept else None)
