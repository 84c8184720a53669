"""Waiting for what real processes do in their own time: looks again until it is so, as long as a full machine takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

PAUSE: Final = 0.2
"""Seconds between two looks: whoever looks all the time takes the processor from whom it waits for."""


def until(is_so: Callable[[], bool], seconds: float = 120.0) -> None:
    """Raises AssertionError when it is not so after that time."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(PAUSE)
