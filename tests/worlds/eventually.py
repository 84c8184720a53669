"""Waiting for what others do in their own time: looks again until it is so, as long as a full machine takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import trio

PATIENCE: Final = 180.0
"""Seconds after which a test says that something does not happen: far beyond what a full machine takes. No test that
passes gets there, so none is quicker for a shorter one."""
ENGINE_START: Final = 600.0
"""Seconds for an engine to start: it computes for half a minute, and has a small part of a core on a full machine."""
PAUSE: Final = 0.2
"""Seconds between two looks: whoever looks all the time takes the processor from whom it waits for."""


def until(is_so: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Raises AssertionError when it is not so after that time."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(PAUSE)


async def became(is_so: Callable[[], Any]) -> None:
    """The same beside an event loop that serves whom it waits for; soon, as that takes little."""
    with trio.fail_after(PATIENCE):
        while not is_so():  # noqa: ASYNC110
            await trio.sleep(0.005)
