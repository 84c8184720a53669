"""Attempts that run side by side: one result is kept, every other is discarded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from p2p.dial import first_of


class Door:
    """Something that must be closed unless somebody has it."""

    def __init__(self) -> None:
        self.open = True

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
        self.open = False


def opening(door: Door, meanwhile: Callable[[], object] = lambda: None) -> Callable[[], Awaitable[Door]]:
    async def attempt() -> Door:
        meanwhile()
        return door

    return attempt


async def test_who_is_cancelled_while_an_attempt_succeeds_leaves_nothing_open() -> None:
    door = Door()
    with trio.CancelScope() as leaving:
        await first_of([opening(door, leaving.cancel)], OSError, Door.aclose)
    assert (leaving.cancelled_caught, door.open) == (True, False)


async def test_what_another_attempt_opened_is_closed_when_one_breaks(autojump_clock: object) -> None:
    door = Door()

    async def breaks() -> Door:
        try:
            await trio.sleep_forever()
        finally:
            raise ZeroDivisionError

    with pytest.raises(ExceptionGroup):
        await first_of([breaks, opening(door)], OSError, Door.aclose)
    assert not door.open


async def test_a_late_result_is_discarded_and_the_first_is_kept(autojump_clock: object) -> None:
    late, first = Door(), Door()

    async def comes_late() -> Door:
        with trio.CancelScope(shield=True):
            await trio.sleep(10)
        return late

    assert await first_of([comes_late, opening(first)], OSError, Door.aclose) is first
    assert (first.open, late.open) == (True, False)
