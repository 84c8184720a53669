"""Watches the event loop from a thread: logs the code that blocks it, and ends the process if it stays blocked.

A loop that is held answers nobody: not the control socket, no peer, not the service manager's watchdog. The manager
ends such a daemon after half a minute and starts it again; where there is none, the guard ends it. It counts its own
looks and not a clock, so that a process that was stopped, or a machine that slept, is not taken for one that is held.
The loop says when it begins to wait and when it goes on; while it waits, the guard sleeps and wakes nobody.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from odfd.runtime.supervision import Logger

LOOK: Final = 0.5
"""Seconds between two looks."""
HELD: Final = 1.0
"""Seconds after which a loop without a beat is held: a busy machine delays one for less."""
END: Final = 120.0
"""Seconds after which the process ends, of its own."""
FRAMES: Final = 6
"""Of the stack that holds it, the innermost, in the log."""


class Holds:
    """Decides whether the loop is blocked. Sans-IO: ``look`` gets the beats so far, each ``LOOK`` seconds."""

    def __init__(self, held: float = HELD, end: float = END) -> None:
        self._held, self._end = held, end
        self._beats = -1
        self._since = 0.0
        self.is_held = False

    def look(self, beats: int) -> tuple[str, float]:
        """Returns ``held`` when a block begins, ``released`` at its end, ``end`` if it has none; and its duration."""
        if beats != self._beats:
            lasted, was_held = self._since, self.is_held
            self._beats, self._since, self.is_held = beats, 0.0, False
            return ("released" if was_held else ""), lasted
        self._since += LOOK
        if self._since >= self._end:
            return "end", self._since
        if self._since >= self._held and not self.is_held:
            self.is_held = True
            return "held", self._since
        return "", self._since


class LoopGuard(trio.abc.Instrument):
    """The guard of the loop that ``run`` is called in."""

    def __init__(self, logger: Logger, holds: Holds | None = None, end: Callable[[], None] | None = None) -> None:
        self._logger = logger
        self._holds = holds or Holds()
        self._end = end or _abort
        self._beats = 0
        """Of the loop: each time that it begins to wait, and that it goes on."""
        self._works = True
        """Whether it does not wait."""
        self._parked = False
        """Whether the guard sleeps until the loop goes on."""
        self._wake = threading.Event()
        self._is_stopping = False
        self._loop = 0

    async def run(self) -> None:
        """Runs until cancelled."""
        self._loop = threading.get_ident()
        thread = threading.Thread(target=self._watch, name="loop-guard", daemon=True)
        thread.start()
        trio.lowlevel.add_instrument(self)
        try:
            await trio.sleep_forever()
        finally:
            trio.lowlevel.remove_instrument(self)
            self._is_stopping = True
            self._wake.set()
            thread.join()

    def before_io_wait(self, timeout: float) -> None:  # noqa: ARG002  a hook of trio
        self._beats += 1
        self._works = False

    def after_io_wait(self, timeout: float) -> None:  # noqa: ARG002
        self._beats += 1
        self._works = True
        if self._parked:
            self._wake.set()

    def _watch(self) -> None:
        seen = -1
        while not self._is_stopping:
            if not self._works and self._beats == seen:
                self._park()
                continue
            seen = self._beats
            what, seconds = self._holds.look(seen)
            match what:
                case "held":
                    self._logger.error("event loop held", seconds=seconds, where=self._where())
                case "released":
                    self._logger.error("event loop released", seconds=seconds)
                case "end":
                    self._logger.error("event loop held for too long: the daemon ends", where=self._where())
                    self._end()
                    return
            self._wake.wait(LOOK)

    def _park(self) -> None:
        """Sleeps until the loop goes on; not at all where it did while this was about to."""
        self._parked = True
        if not self._works:
            self._wake.wait()
        self._parked = False
        self._wake.clear()

    def _where(self) -> str:
        """The innermost frames of the thread that the loop is in, without values."""
        frame = sys._current_frames().get(self._loop)
        found = traceback.extract_stack(frame)[-FRAMES:] if frame is not None else []
        return " < ".join(f"{each.name} ({Path(each.filename).name}:{each.lineno})" for each in reversed(found))


def _abort() -> None:
    """Aborts like a service manager's watchdog: durable data is whole at each step; engines die with the daemon."""
    os.kill(os.getpid(), signal.SIGABRT)
