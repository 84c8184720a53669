"""Carries a caller's deadline to the engine, and signals the work on a request when the caller has gone.

Imports no gRPC, which takes a tenth of a second.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from chain.errors import Fault
from engines.contract import Progress


@dataclass(frozen=True, slots=True)
class CallLimits:
    """How long a caller waits, and the number of callers that wait at once."""

    work: float = 3600.0
    """Seconds for a transform, an ingest or a raw query."""
    question: float = 120.0
    """Seconds for identity and validation: a cold Spark needs ten of them."""
    calls: int = 32
    """Calls in flight; each holds a thread. As many as the service lets wait."""


class RequestCancelled(Fault):
    """Raised inside a handler by ``RequestControl.check`` once the caller no longer waits for the response."""


class RequestControl:
    """The control of a request in flight for its handler. Safe to use from any thread."""

    def __init__(self, on_progress: Callable[[], None] = lambda: None) -> None:
        self.cancelled = threading.Event()
        self._on_progress = on_progress
        self._measure: Callable[[], Progress] | None = None
        self._tasks: Callable[[], Progress] = Progress
        self._stage: str | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def progress(self) -> None:
        """Reports real progress to the caller; heartbeats are sent independently of it."""
        self._on_progress()

    @contextmanager
    def measured(self, measure: Callable[[], Progress]) -> Iterator[None]:
        """While the block lasts, ``measure`` says how far the work is. It is called in other threads."""
        self._measure = measure
        try:
            yield
        finally:
            self._measure = None

    def stage(self, name: str) -> None:
        """Says what is done from now on (``engines.progress.STAGES``), for the next sign of life. Costs nothing."""
        self._stage = name

    def count_tasks(self, counts: Callable[[], Progress]) -> None:
        """``counts`` says from now on how many tasks of the work are done, unless ``measured`` says more."""
        self._tasks = counts

    def how_far(self) -> Progress:
        """Returns how far the work is, as far as it says so."""
        found = (self._measure or self._tasks)()
        return found if self._stage is None else msgspec.structs.replace(found, stage=self._stage)

    def check(self) -> None:
        """Raises RequestCancelled if the caller no longer waits."""
        if self.cancelled.is_set():
            raise RequestCancelled("the request was cancelled")

    def register_cancel(self, callback: Callable[[], None]) -> None:
        """Registers ``callback``, called once in another thread on cancellation, at once if that is past."""
        with self._lock:
            if not self.cancelled.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def finish(self) -> None:
        """Marks the work as done, so that a cancellation has no effect. gRPC reports the end of every call as one."""
        with self._lock:
            self._callbacks = []

    def cancel(self) -> None:
        """Cancels the request. Idempotent."""
        with self._lock:
            self.cancelled.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
