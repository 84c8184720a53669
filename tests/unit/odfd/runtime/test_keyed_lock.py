"""Turns: one at a time at each thing, in the order of asking."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from odfd.runtime.slots import KeyedLocks


async def test_one_at_a_time_and_in_order() -> None:
    turns, done, waited = KeyedLocks(), list[str](), list[str]()
    gates = {name: trio.Event() for name in "abx"}

    async def work(thing: str, name: str) -> None:
        async with turns.of(thing, lambda: waited.append(name)):
            done.append(f"{name} begins")
            await gates[name].wait()
            done.append(f"{name} ends")

    async with trio.open_nursery() as nursery:
        for thing, name in (("one", "a"), ("one", "b"), ("other", "x")):
            nursery.start_soon(work, thing, name)
            await wait_all_tasks_blocked()
        assert (done, waited) == (["a begins", "x begins"], ["b"])
        for name in "abx":
            gates[name].set()
            await wait_all_tasks_blocked()
    assert done == ["a begins", "x begins", "a ends", "b begins", "b ends", "x ends"]


async def test_whoever_fails_or_gives_up_leaves_no_trace() -> None:
    turns = KeyedLocks()
    with pytest.raises(ZeroDivisionError):
        async with turns.of("it"):
            raise ZeroDivisionError
    async with turns.of("it"):
        with trio.move_on_after(0) as tired:
            async with turns.of("it"):
                pytest.fail("it is somebody's")
        assert tired.cancelled_caught
    async with turns.of("it"):
        pass
    assert not turns._locks
