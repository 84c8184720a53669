"""An alarm of the system goes off at its time of day, and a worker that waits by it does nothing in between."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from chain.instant import SECOND, Instant
from odfd.runtime import alarm as module
from odfd.runtime.alarm import WallAlarm, alarm_of
from odfd.runtime.clock import SystemClock
from worlds.eventually import PATIENCE


class OtherClock:
    def now(self) -> Instant:
        return Instant(0)

    def monotonic(self) -> int:
        return 0


async def rings(alarm: WallAlarm, act: Callable[[], None]) -> None:
    """Until it goes off."""
    rang = trio.Event()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(alarm.run, rang.set)
            act()
            await rang.wait()
            nursery.cancel_scope.cancel()


async def test_it_goes_off_at_its_time_and_again_at_another() -> None:
    clock = SystemClock()
    with alarm_of(clock) as alarm:
        assert alarm is not None
        alarm.set(Instant(clock.now() + 3600 * SECOND))
        await rings(alarm, lambda: alarm.set(Instant(clock.now() + SECOND // 100)))
        await rings(alarm, lambda: alarm.set(Instant(-SECOND)))
        for never in (None, Instant(1 << 70)):
            alarm.set(never)
            with pytest.raises(BlockingIOError):
                os.read(alarm._file, 8)


async def test_a_clock_that_is_set_makes_it_go_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system tells so in place of the number of times."""

    def cancelled(file: int, size: int) -> bytes:
        monkeypatch.undo()
        os.read(file, size)
        raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))

    with alarm_of(SystemClock()) as alarm:
        assert alarm is not None
        monkeypatch.setattr(module.os, "read", cancelled)
        await rings(alarm, lambda: alarm.set(Instant(1)))


async def test_there_is_none_by_another_clock_or_on_another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    with alarm_of(OtherClock()) as alarm:
        assert alarm is None
    monkeypatch.setattr(module, "_library", object)
    with alarm_of(SystemClock()) as alarm:
        assert alarm is None


async def test_an_hour_passes_without_a_step(mock_clock: MockClock) -> None:
    """Virtual time: whatever waits by the clock of the event loop would be woken."""
    with alarm_of(SystemClock()) as alarm:
        assert alarm is not None
        alarm.set(Instant(SystemClock().now() + 3600 * SECOND))
        rang: list[None] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(alarm.run, lambda: rang.append(None))
            mock_clock.jump(3600)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert not rang
