"""Wakes a task at a time of day, also where the clock was set or the machine slept, and never in between.

A pause of the event loop goes by a clock that stands still while the machine sleeps, and does not know that the time of
day was set: who waits by it for a time of day has to look at the clock again and again. Linux has a timer for it
(timerfd_create(2)), which goes off at its time, and at once where the clock is set.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import trio

from chain.instant import SECOND, Instant
from odfd.runtime.clock import Clock, SystemClock

_CLOCK_REALTIME: Final = 0
_NONBLOCK_CLOEXEC: Final = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
_ABSOLUTE, _CANCEL_ON_SET = 1, 2
_LAST: Final = (1 << 62) // SECOND
"""Seconds; later times are as good as never, and a kernel counts nanoseconds."""
_READ: Final = 8


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _Time), ("value", _Time))


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


class WallAlarm:
    """An alarm at one time of day, which may be changed. Of one event loop; close it."""

    def __init__(self) -> None:
        """Raises OSError where the system has no such timers."""
        create = getattr(_library(), "timerfd_create", None)
        if create is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        self._file = int(create(_CLOCK_REALTIME, _NONBLOCK_CLOEXEC))
        if self._file < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def set(self, at: Instant | None) -> None:
        """Sets when it goes off, once; ``None``: never. A time that is past is now."""
        # A time of 0 disarms the timer (timerfd_settime(2)), so the earliest is one nanosecond.
        seconds, rest = divmod(max(int(at), 1), SECOND) if at is not None else (0, 0)
        wanted = _Setting(value=_Time(min(seconds, _LAST), rest))
        if _library().timerfd_settime(self._file, _ABSOLUTE | _CANCEL_ON_SET, ctypes.byref(wanted), None) < 0:
            number = ctypes.get_errno()
            if number != errno.ECANCELED:  # it is set, and the clock was set since the last time
                raise OSError(number, os.strerror(number))

    async def run(self, went_off: Callable[[], None]) -> None:
        """Calls each time it goes off, and when the clock was set while it waited. Runs until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._file)
            with suppress(BlockingIOError):
                try:
                    os.read(self._file, _READ)
                except OSError as error:
                    # TFD_TIMER_CANCEL_ON_SET: the clock was set, and the time may have come.
                    if error.errno != errno.ECANCELED:
                        raise
                went_off()

    def close(self) -> None:
        os.close(self._file)


@contextmanager
def alarm_of(clock: Clock) -> Iterator[WallAlarm | None]:
    """Makes an alarm by a clock; ``None``: it is no clock of the machine, or that has no such timers."""
    alarm = None
    if isinstance(clock, SystemClock):
        with suppress(OSError):
            alarm = WallAlarm()
    try:
        yield alarm
    finally:
        if alarm is not None:
            alarm.close()
