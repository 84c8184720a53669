"""Runs blocking calls that may hang, such as those that ask a server or a network disk, in worker threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

T = TypeVar("T")


async def run_abandonable(call: Callable[[], T]) -> T:
    """Runs a call in a worker thread. If the wait is cancelled the thread goes on alone, and its result is dropped."""
    return await trio.to_thread.run_sync(call, abandon_on_cancel=True)  # type: ignore[call-arg]  # newer than its stubs
