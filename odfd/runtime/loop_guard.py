"""Watches the event loop from a thread: logs the code that blocks it, and ends the process if it stays blocked.

A blocked loop serves nobody: not the control socket, no peer, not the service manager's watchdog. The manager kills
such a daemon after half a minute and starts it again; without a manager, the guard kills it. It counts its own checks
instead of reading a clock, so that a process that was stopped, or a machine that slept, does not count as blocked. The
loop reports when it begins to wait and when it goes on; while it waits, the guard sleeps.
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
"""Seconds between two checks."""
HELD: Final = 1.0
"""Seconds without a beat after which a loop counts as blocked; a busy machine delays it for less."""
END: Final = 120.0
"""Seconds of a block after which the guard ends the process."""
FRAMES: Final = 6
"""Number of innermost stack frames of the blocking code in the log."""


class BlockageDetector:
    """Decides whether the loop is blocked. Does no I/O: ``look`` gets the number of beats every ``LOOK`` seconds."""

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
    """Guards the event loop that calls ``run``."""

    def __init__(
        self, logger: Logger, holds: BlockageDetector | None = None, end: Callable[[], None] | None = None
    ) -> None:
        self._logger = logger
        self._holds = holds or BlockageDetector()
        self._end = end or _abort
        self._beats = 0
        """Beats of the loop: it counts each beginning and each end of a wait."""
        self._works = True
        """Whether the loop is running, not waiting."""
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
        """Sleeps until the loop goes on, unless it went on just before."""
        # Set before the loop's state is read, as after_io_wait does it the other way round: one of them sees the other.
        self._parked = True
        if not self._works:
            self._wake.wait()
        self._parked = False
        self._wake.clear()

    def _where(self) -> str:
        """Returns the innermost stack frames of the loop's thread, without values."""
        frame = sys._current_frames().get(self._loop)
        found = traceback.extract_stack(frame)[-FRAMES:] if frame is not None else []
        return " < ".join(f"{each.name} ({Path(each.filename).name}:{each.lineno})" for each in reversed(found))


def _abort() -> None:
    """Aborts like a service manager's watchdog: durable data is intact at each step; engines end with the daemon."""
    os.kill(os.getpid(), signal.SIGABRT)
