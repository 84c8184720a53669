"""Carries a caller's deadline to the engine, and tells the work on a request whether its caller still waits.

Imports no gRPC, which takes a tenth of a second.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from chain.errors import Fault


@dataclass(frozen=True, slots=True)
class CallLimits:
    """How long a caller waits and how many wait at once."""

    work: float = 3600.0
    """Seconds for a transform, an ingest or a raw query."""
    question: float = 120.0
    """Seconds for identity and validation: a cold Spark needs ten of them."""
    calls: int = 32
    """Calls in flight; each holds a thread. As many as the service lets wait."""


class RequestCancelled(Fault):
    """Raised inside a handler by ``RequestControl.check`` once nobody waits for the answer any more."""


class RequestControl:
    """A request in flight as its handler sees it. Safe to use from any thread."""

    def __init__(self, on_progress: Callable[[], None] = lambda: None) -> None:
        self.cancelled = threading.Event()
        self._on_progress = on_progress
        self._callbacks: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def progress(self) -> None:
        """Tell the caller that work goes on. Heartbeats are sent anyway, so this is for real steps."""
        self._on_progress()

    def check(self) -> None:
        """Raises RequestCancelled if nobody waits any more."""
        if self.cancelled.is_set():
            raise RequestCancelled("the request was cancelled")

    def register_cancel(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, from another thread, when the request is cancelled; at once if it already is."""
        with self._lock:
            if not self.cancelled.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def finish(self) -> None:
        """The work is over: a cancellation has nothing to stop any more. gRPC calls the end of every call one."""
        with self._lock:
            self._callbacks = []

    def cancel(self) -> None:
        """Idempotent."""
        with self._lock:
            self.cancelled.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
